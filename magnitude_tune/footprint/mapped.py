"""The ranges of a model's files that stay mapped: one per file, from the first to the last tensor the CPU keeps there.

Rule: llama.cpp's `get_mapping_range` and `load_all_data` (src/llama-model-loader.cpp). What lies between, be it on a
device or repacked, stays mapped too; what lies before and after is unmapped once everything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from magnitude_tune.header.values import TensorGroup

__all__ = ["MappedRanges", "Parts"]

_Range = tuple[int, int]
_Ranges = dict[tuple[int, bool], _Range]
_NONE: Final[_Range] = (1 << 63, 0)


class Parts(NamedTuple):
    """Groups by what decides their place: `blocks` and `experts` have one list a block, rope is in neither."""

    inputs: Sequence[TensorGroup]
    outputs: Sequence[TensorGroup]
    rope: Sequence[TensorGroup]
    blocks: Sequence[Sequence[TensorGroup]]
    experts: Sequence[Sequence[TensorGroup]]


class MappedRanges:
    """Bytes of the ranges for any placement, from ranges over the blocks merged once."""

    def __init__(self, parts: Parts, stays: Callable[[TensorGroup], bool], lazy: Callable[[TensorGroup], bool]) -> None:
        everything = [*parts.inputs, *parts.outputs, *parts.rope, *(g for block in parts.blocks for g in block)]
        self.known = all(group.end_byte > group.first_byte or not group.n_bytes for group in everything)
        self._parts = parts
        self._stays = stays
        self._lazy = lazy
        self._inputs = self._of(parts.inputs)
        self._outputs = self._of(filter(stays, parts.outputs))
        self._rope = self._of(parts.rope)
        self._blocks = self._running(parts.blocks)
        self._experts: dict[int, list[_Ranges]] = {}

    def n_bytes(self, host_blocks: int, moe_end: int, *, output_on_host: bool) -> int:
        """Bytes mapped with blocks up to `host_blocks`, experts up to `moe_end` and maybe the output on the CPU."""
        found = [self._inputs, self._blocks[host_blocks]]
        if host_blocks:
            found.append(self._rope)
        if output_on_host:
            found.append(self._outputs)
        if moe_end > host_blocks:
            found.append(self._experts_from(host_blocks)[moe_end - host_blocks])
        merged: _Ranges = {}
        for ranges in found:
            _merge(merged, ranges.items())
        return sum(end - first for first, end in merged.values() if end > first)

    def _experts_from(self, block: int) -> list[_Ranges]:
        found = self._experts.get(block)
        if found is None:
            found = self._experts[block] = self._running(self._parts.experts[block:])
        return found

    def _running(self, blocks: Iterable[Sequence[TensorGroup]]) -> list[_Ranges]:
        """The merged ranges before each block, and of all of them."""
        merged: _Ranges = {}
        running = [merged]
        for groups in blocks:
            kept = self._of(filter(self._stays, groups))
            if kept:
                merged = dict(merged)
                _merge(merged, kept.items())
            running.append(merged)
        return running

    def _of(self, groups: Iterable[TensorGroup]) -> _Ranges:
        ranges: _Ranges = {}
        # A tensor that is read lazily has a range of its own.
        _merge(ranges, (((group.shard, self._lazy(group)), (group.first_byte, group.end_byte)) for group in groups))
        return ranges


def _merge(into: _Ranges, ranges: Iterable[tuple[tuple[int, bool], _Range]]) -> None:
    for key, (first, end) in ranges:
        so_far = into.get(key, _NONE)
        into[key] = (min(first, so_far[0]), max(end, so_far[1]))
