"""Which weight types a CPU's extra buffers hold in a faster layout."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Repackable", "repackable_types"]

_AMX: Final = frozenset(("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs", "f16"))
_AVX2: Final = frozenset(("q4_0", "q4_k", "iq4_nl", "mxfp4"))
_AVX512: Final = frozenset(("q2_k",))
_NEON: Final = _AVX2 | {"q5_k", "q6_k", "q8_0", "q1_0"}
_DOT_PRODUCT_FLAGS: Final = frozenset(("asimddp", "dotprod", "i8mm"))
_AMX_FLAGS: Final = frozenset(("amx_int8", "avx512_vnni"))
_AMX_ROWS: Final = 32


class Repackable(NamedTuple):
    """Types by what they are used for: in blocks, as experts, and in the output matrix.

    AMX leaves experts to `cpu_repack`, and matrices whose rows are no multiple of 32: the vocabulary decides for the
    output matrix, blocks have round widths.
    """

    dense: frozenset[str]
    experts: frozenset[str]
    output: frozenset[str]


def repackable_types(extra_buffers: tuple[str, ...] | None, features: frozenset[str], n_vocab: int) -> Repackable:
    """Types that these extra buffers take on a CPU with these features; None stands for a build made for this CPU.

    Source: ggml's src/ggml-cpu/amx/amx.cpp and src/ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`.
    """
    plain: frozenset[str] = frozenset()
    if "avx2" in features:
        plain |= _AVX2
    if "avx512f" in features:
        plain |= _AVX512
    if features & _DOT_PRODUCT_FLAGS:
        plain |= _NEON
    if extra_buffers is None:
        extra_buffers = ("amx", "cpu_repack") if features >= _AMX_FLAGS else ("cpu_repack",)
    experts = plain if "cpu_repack" in extra_buffers else frozenset[str]()
    dense = experts | _AMX if "amx" in extra_buffers else experts
    return Repackable(dense, experts, experts if n_vocab % _AMX_ROWS else dense)
