"""Which of NVIDIA's architectures an engine's CUDA code was compiled for, in its own words."""

from __future__ import annotations

import re

__all__ = ["cuda_archs"]


def cuda_archs(system_info: str) -> tuple[int, ...]:
    """Architectures of `CUDA : ARCHS = 500,610,890 | ...`, ascending (`890` is capability 8.9); empty without any."""
    found = re.search(r"\bCUDA : ARCHS = ([0-9]{2,5}(?:,[0-9]{2,5}){0,99})\b", system_info, re.ASCII)
    return tuple(sorted({int(arch) for arch in found[1].split(",")})) if found else ()
