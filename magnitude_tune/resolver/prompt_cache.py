"""The server's prompt cache and context checkpoints in host memory: decided last, from what the plan leaves.

Of a model with sliding windows or recurrent state the server reads a whole conversation again unless it has a
checkpoint to go on from: without one, a prompt cache is memory for nothing. So checkpoints come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from magnitude_tune.header.values import Attention, ModelHeader
from magnitude_tune.magnitude import magnitude_of_bytes
from magnitude_tune.request import Settings
from magnitude_tune.resolver.choose import Limits
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import MIB

__all__ = ["CACHE_SIZES_MIB", "CHECKPOINTS", "needs_checkpoints", "with_prompt_cache"]

CACHE_SIZES_MIB: Final = (8192, 1024, 256, 0)

CHECKPOINTS: Final = (4, 1, 0)
"""Four keep the start of the first message, which new conversations share, beside the three that a turn makes; fewer
are overwritten by each turn, and of those one is enough to go on with a conversation."""

_PASSING: Final = frozenset({Attention.SLIDING, Attention.RECURRENT, Attention.HYBRID})


def needs_checkpoints(header: ModelHeader) -> bool:
    """Whether a layer forgets what it has read, so that a conversation can go on only from a copy."""
    return header.causal and any(layer.attention in _PASSING for layer in header.layers)


def with_prompt_cache(
    settings: Settings, subject: Subject, pins: Mapping[str, int | str | bool], *, m: float, limits: Limits
) -> Settings | None:
    """The settings with the most checkpoints, then the largest prompt cache, that magnitude and memory hold.

    None where nothing does that the pins allow.
    """
    footprint = subject.footprint
    totals = [subject.machine.pool(name).total_bytes for name in footprint.pools]
    for candidate in _candidates(settings, subject, pins):
        reserved = footprint.reserved(candidate)
        mu = max(magnitude_of_bytes(n, total) for n, total in zip(reserved, totals, strict=True))
        if mu <= m + 1e-9 and limits.hold_bytes(reserved):
            return candidate
    return None


def _candidates(settings: Settings, subject: Subject, pins: Mapping[str, int | str | bool]) -> Iterator[Settings]:
    needed = needs_checkpoints(subject.header)
    counts = (int(pins["ctx_checkpoints"]),) if "ctx_checkpoints" in pins else CHECKPOINTS if needed else (0,)
    without = sum(subject.footprint.reserved(settings))
    for count in counts:
        base = replace(settings, ctx_checkpoints=count)
        each = (sum(subject.footprint.reserved(base)) - without) // (max(1, count) * max(1, settings.n_parallel))
        if "cache_ram" in pins:
            sizes: tuple[int, ...] = (int(pins["cache_ram"]),)
        elif needed and not count:
            sizes = (0,)
        else:
            # A conversation that is kept holds its window and its checkpoints: a cache for less keeps none.
            sizes = tuple(size for size in CACHE_SIZES_MIB if not size or size * MIB >= (count + 1) * each)
        for size in sizes:
            yield replace(base, cache_ram=size)
