"""What the engine's process takes of the host besides tensors, and a device's own overhead.

Figures are measurements at ggml 0.20.0 (llama-server) and 0.25.3 (embedded): anonymous and library pages of the
process, and the growth of anonymous memory while a vocabulary loads (262144 tokens without merges: 42 MiB; 151936
tokens with as many merges: 42 MiB).
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.units import MIB

__all__ = ["HostCosts"]

_EMBEDDED_BASE: Final = 22 * MIB
_SERVER_BASE: Final = 28 * MIB
_BYTES_PER_TOKEN: Final = 168
_BYTES_PER_MERGE: Final = 128
_PROCESS_DOUBT_PERCENT: Final = 15
_DEVICE_OVERHEAD: Final = {
    "cuda": 512 * MIB,
    "rocm": 512 * MIB,
    "sycl": 512 * MIB,
    "vulkan": 128 * MIB,
    "metal": 64 * MIB,
}
_UNKNOWN_OVERHEAD: Final = 256 * MIB


class HostCosts:
    """Process base, prompt cache and device overhead of one engine and one model."""

    def __init__(self, header: ModelHeader, engine: EngineFacts | None, backends: tuple[str, ...]) -> None:
        embedded = engine is not None and engine.name == "llama_cpp_python"
        base = _EMBEDDED_BASE if embedded else _SERVER_BASE
        vocabulary = _BYTES_PER_TOKEN * max(0, header.n_vocab) + _BYTES_PER_MERGE * max(0, header.n_merges)
        self._process = base + vocabulary
        self._has_prompt_cache = engine is None or engine.prompt_cache
        self._backends = backends

    def parts(self, places: tuple[int, ...], cache_ram: int) -> list[Part]:
        """Terms for the used devices' places and a prompt cache of at most `cache_ram` MiB."""
        # Budgets hold the upper end of the estimate.
        doubt = self._process * _PROCESS_DOUBT_PERCENT // 100
        low, high = self._process - doubt, self._process + doubt
        parts = [Part("process", HOST, high, self._process, "estimated", _PROCESS_RULE, low, high)]
        if cache_ram > 0 and self._has_prompt_cache:
            parts.append(Part("prompt_cache", HOST, cache_ram * MIB, 0, "bounded", _CACHE_RULE))
        for place in places:
            overhead = self._overhead(place)
            if overhead:
                parts.append(
                    Part(
                        "device_overhead",
                        place,
                        overhead,
                        overhead,
                        "estimated",
                        _OVERHEAD_RULE,
                        overhead // 2,
                        overhead,
                    )
                )
        return parts

    def _overhead(self, place: int) -> int:
        backend = self._backends[place - 1]
        return 0 if backend == "rpc" else _DEVICE_OVERHEAD.get(backend, _UNKNOWN_OVERHEAD)


_PROCESS_RULE: Final = (
    "measured base of the engine's process, 168 B a token and 128 B a merge of the vocabulary, +-15 %"
)
_CACHE_RULE: Final = "limit of the server's prompt cache; empty at start, fills with conversations"
_OVERHEAD_RULE: Final = (
    "context and kernels of the backend's driver: class figure (CUDA 0.3 to 0.5 GiB), not measured here"
)
