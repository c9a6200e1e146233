"""The server's prompt cache in host memory: decided last, from what the plan leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from magnitude_tune.footprint.values import FootprintModel
from magnitude_tune.magnitude import magnitude_of_bytes
from magnitude_tune.request import Settings
from magnitude_tune.resolver.choose import Limits

__all__ = ["CACHE_SIZES_MIB", "with_prompt_cache"]

CACHE_SIZES_MIB: Final = (8192, 1024, 256, 0)


def with_prompt_cache(
    settings: Settings,
    footprint: FootprintModel,
    *,
    m: float,
    totals: tuple[int, ...],
    limits: Limits,
    sizes_mib: tuple[int, ...] = CACHE_SIZES_MIB,
) -> Settings | None:
    """The settings with the largest prompt cache that magnitude and memory hold; None where no size does."""
    for size in sizes_mib:
        candidate = replace(settings, cache_ram=size)
        reserved = footprint.reserved(candidate)
        mu = max(magnitude_of_bytes(n, total) for n, total in zip(reserved, totals, strict=True))
        if mu <= m + 1e-9 and limits.hold_bytes(reserved):
            return candidate
    return None
