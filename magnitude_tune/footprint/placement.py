"""Which block lives where: the engine's rule for `n_gpu_layers`, devices and their shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from magnitude_tune.errors import UsageError
from magnitude_tune.footprint.parts import HOST
from magnitude_tune.request import layers_per_device

__all__ = ["Placement", "Span", "place_layers"]


class Span(NamedTuple):
    """Blocks `first` up to and without `end` at one place; empty where only the output layer is there."""

    place: int
    first: int
    end: int
    holds_output: bool


class Placement(NamedTuple):
    """Where everything is: the blocks the CPU keeps (from 0 on), and one span per used device, in their order."""

    host_blocks: int
    output_place: int
    spans: tuple[Span, ...]

    @property
    def all_offloaded(self) -> bool:
        """Whether no block and no output layer stays on the CPU."""
        return self.host_blocks == 0 and self.output_place != HOST


def place_layers(
    block_count: int, n_gpu_layers: int, places: Sequence[int], shares: Sequence[int], default_shares: Sequence[int]
) -> Placement:
    """Offloads the last `n_gpu_layers` of `block_count + 1` layers, the output layer counted, in device order.

    Args:
        block_count: blocks as the header counts them.
        n_gpu_layers: layers to offload; any number above `block_count` is all, any below zero too.
        places: places of the used devices, in the engine's order; none keeps everything on the CPU.
        shares: `tensor_split`, or nothing.
        default_shares: shares where `shares` is empty: the engine takes free memory.

    Raises:
        UsageError: there are more shares than devices, or they are negative.
    """
    if len(shares) > len(places) or any(share < 0 for share in shares):
        raise UsageError(
            f"tensor_split {list(shares)} does not fit {len(places)} devices", hint="give each device a share from 0 up"
        )
    layers = block_count + 1
    offloaded = layers if n_gpu_layers < 0 else min(n_gpu_layers, layers)
    if not places or not offloaded:
        return Placement(block_count, HOST, ())
    start = layers - offloaded
    ends = accumulate(layers_per_device(offloaded, _filled(shares or default_shares, len(places))))
    spans = []
    first = start
    for place, end in zip(places, ends, strict=True):
        last = start + end
        spans.append(Span(place, first, min(last, block_count), first <= block_count < last))
        first = last
    spans = [span for span in spans if span.holds_output or span.end > span.first]
    return Placement(min(start, block_count), spans[-1].place, tuple(spans))


def _filled(shares: Sequence[int], n: int) -> list[int]:
    """One share for each device; the devices that are left out get none."""
    return [*shares, *([0] * (n - len(shares)))]
