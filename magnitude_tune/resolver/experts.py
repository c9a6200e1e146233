"""How many layers to offload, and the experts of how many blocks to leave on the CPU: the pairs worth pricing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from magnitude_tune.resolver.splits import LayerBytes

__all__ = ["expert_pairs"]

_GAIN: Final = 0.015
"""A pair that saves less of the turn time than another, for no fewer bytes, is not worth pricing."""

_STEP: Final = 64
"""Pairs lie no further apart in bytes than this part of the model, so that tight host memory finds one too."""

_MANY_LAYERS: Final = 256
"""No model known has as many; beyond them not every number of layers is looked at, whatever a header says."""

_Pair = tuple[int, int]


def expert_pairs(
    layers: LayerBytes, counts: Iterable[int], turn_seconds: Callable[[int, int], float]
) -> tuple[_Pair, ...]:
    """Pairs of n_gpu_layers and n_cpu_moe, fewest bytes on the device first.

    There are as many pairs as the square of the blocks, and most lose against another: a byte of a block's dense part
    and cache gains more or less time on the device than a byte of experts. Time is taken to add up: that of the dense
    parts of n layers, and that of the experts of the blocks from the n_cpu_moe-th on.

    Args:
        layers: bytes of layers on the device.
        counts: numbers of layers to offload, from 1.
        turn_seconds: the turn time of a pair on the device, in seconds.
    """
    n_all = layers.n_layers
    n_blocks = n_all - 1
    dense, whole = layers.before(n_blocks), layers.before(0)
    experts = [more - less for more, less in zip(whole, dense, strict=True)]
    ends = [end for end in range(n_blocks + 1) if end == 0 or experts[end] > experts[end - 1]]
    stride = 1 + n_all // _MANY_LAYERS
    ends = ends[::stride]
    kept_on_cpu = {end: turn_seconds(n_all, end) for end in ends}
    longest = turn_seconds(n_all, n_blocks)
    priced: list[tuple[int, float, _Pair]] = []
    for n_gpu_layers in sorted(counts, reverse=True)[::stride]:
        on_host = n_all - n_gpu_layers
        seconds = turn_seconds(n_gpu_layers, n_blocks) - longest
        for end in (0, *(end for end in ends if end > on_host)):
            first = max(end, on_host)
            n_bytes = dense[-1] - dense[on_host] + experts[-1] - experts[min(first, n_blocks)]
            saved = kept_on_cpu[end] if end >= on_host or on_host == 0 else _at(kept_on_cpu, on_host)
            priced.append((n_bytes, seconds + saved, (n_gpu_layers, end)))
    return _frontier(priced, whole[-1] // _STEP)


def _at(seconds: dict[int, float], end: int) -> float:
    """The time for the first count of blocks from `end` down whose last block has experts."""
    return next(seconds[count] for count in range(end, -1, -1) if count in seconds)


def _frontier(priced: list[tuple[int, float, _Pair]], step: int) -> tuple[_Pair, ...]:
    """Pairs each faster than every one with fewer bytes, or the fastest within a step of bytes."""
    found: list[_Pair] = []
    fastest, reached = float("inf"), -step - 1
    waiting: tuple[int, float, _Pair] | None = None
    for n_bytes, seconds, pair in sorted(priced):
        if seconds < fastest * (1 - _GAIN):
            found.append(pair)
            fastest, reached, waiting = seconds, n_bytes, None
            continue
        if waiting is None or seconds <= waiting[1]:
            waiting = (n_bytes, seconds, pair)
        if n_bytes - reached > step:
            found.append(waiting[2])
            fastest, reached, waiting = min(fastest, waiting[1]), waiting[0], None
    return tuple(dict.fromkeys((*found, max(priced)[2]))) if priced else ()
