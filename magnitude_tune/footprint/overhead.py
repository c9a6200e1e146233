"""What a device's driver takes of its memory for a process, besides the engine's buffers.

No engine prints it. Figures are what others measured, each with its source in the rule: the interval reaches over what
was seen, and budgets hold its upper end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.parts import Part
from magnitude_tune.units import MIB

__all__ = ["device_overhead"]


class _Seen(NamedTuple):
    """MiB: the least and the most that was seen, and a usual figure."""

    low: int
    usual: int
    high: int
    rule: str


_OVERHEAD: Final = {
    "cuda": _Seen(
        107,
        456,
        640,
        "CUDA context, kernels and workspaces: contexts of 107 (RTX 4060 Ti) to 555 MiB (RTX PRO 6000), llama.cpp PR "
        "23604; 451 to 456 MiB in all on RTX 4090, PR 15860",
    ),
    "rocm": _Seen(
        400,
        650,
        850,
        "HIP context and rocBLAS kernels: 498 MiB for rocBLAS alone on RX 7900 XTX, llama.cpp PR 11080; 0.8 GB at peak "
        "on that card, Quartermaster PR 69",
    ),
    "vulkan": _Seen(
        17,
        128,
        410,
        "Vulkan driver and pipelines: 17 MiB on RX 9060 XT (RADV), llama.cpp PR 20858; 0.4 GB on RX 7900 XTX, "
        "Quartermaster PR 69",
    ),
    "metal": _Seen(0, 64, 128, "Metal pipelines: nothing beside the buffers on Apple M5 as Metal counts; a guess"),
    "sycl": _Seen(64, 400, 640, "Level Zero context and oneMKL: nobody's figures are public; taken to be like CUDA"),
}
_UNKNOWN: Final = _Seen(0, 256, 512, "driver of an unknown backend: a guess")


def device_overhead(place: int, backend: str) -> Part | None:
    """The term of one device; none over RPC, where the device has a process of its own."""
    if backend == "rpc":
        return None
    seen = _OVERHEAD.get(backend, _UNKNOWN)
    low, usual, high = (figure * MIB for figure in (seen.low, seen.usual, seen.high))
    return Part("device_overhead", place, high, usual, "estimated", seen.rule, low, high)
