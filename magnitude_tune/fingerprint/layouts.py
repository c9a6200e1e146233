"""Which weight types a CPU backend copies into a layout of its own, and which layouts an engine has here.

Rules: ggml's src/ggml-cpu/amx/amx.cpp and src/ggml-cpu/repack.cpp (`ggml_repack_get_optimal_repack_type`). AMX takes
matrices of plain matmuls only, so experts are left to CPU_REPACK, and only matrices whose rows are a multiple of 32.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.fingerprint.values import Cpu, EngineFacts

__all__ = ["AMX_ROWS", "AMX_TYPES", "cpu_repack_types", "extra_buffers"]

AMX_TYPES: Final = frozenset({"q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs", "f16"})
AMX_ROWS: Final = 32

_AVX2_TYPES: Final = frozenset({"q4_0", "q4_k", "iq4_nl", "mxfp4"})
_AVX512_TYPES: Final = frozenset({"q2_k"})
_NEON_TYPES: Final = _AVX2_TYPES | {"q5_k", "q6_k", "q8_0", "q1_0"}
_DOT_PRODUCT_FLAGS: Final = frozenset({"asimddp", "dotprod", "i8mm"})
_AMX_FLAGS: Final = frozenset({"amx_int8", "avx512_vnni"})


def cpu_repack_types(features: frozenset[str]) -> frozenset[str]:
    """Types that CPU_REPACK takes on a CPU with these features."""
    types: frozenset[str] = frozenset()
    if "avx2" in features:
        types |= _AVX2_TYPES
    if "avx512f" in features:
        types |= _AVX512_TYPES
    if features & _DOT_PRODUCT_FLAGS:
        types |= _NEON_TYPES
    return types


def extra_buffers(engine: EngineFacts | None, cpu: Cpu) -> tuple[str, ...]:
    """Layouts that weights may be repacked into, best first.

    Without an engine: those of a build made for this very CPU, which is the plan before one is installed.
    """
    if engine is not None:
        return engine.extra_buffers
    amx = ("amx",) if cpu.features >= _AMX_FLAGS else ()
    return (*amx, "cpu_repack") if cpu_repack_types(cpu.features) else amx
