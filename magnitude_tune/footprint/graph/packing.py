"""How much memory the events of a graph take: best fit into free blocks, as ggml's allocator does it.

Source: `ggml_dyn_tallocr` in ggml/src/ggml-alloc.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnitude_tune.footprint.graph.layout import ALLOCATE, Event

__all__ = ["peak_bytes"]

_ENDLESS: Final = 1 << 62


def peak_bytes(events: Sequence[Event], sizes: Sequence[int]) -> int:
    """Bytes of the buffer that holds all events; `sizes` are in bytes, padded to the backend's alignment."""
    blocks = [[0, _ENDLESS]]
    at: dict[int, tuple[int, int]] = {}
    peak = 0
    for what, slot, index in events:
        size = sizes[index]
        if what == ALLOCATE:
            offset = _take(blocks, size)
            at[slot] = (offset, size)
            peak = max(peak, offset + size)
        else:
            _give_back(blocks, *at.pop(slot))
    return peak


def _take(blocks: list[list[int]], size: int) -> int:
    """The smallest block that is large enough, the last of equal ones; the endless one only if there is none."""
    best, best_size = -1, _ENDLESS
    for index in range(len(blocks) - 1):
        length = blocks[index][1]
        if size <= length <= best_size:
            best, best_size = index, length
    block = blocks[best]
    offset = block[0]
    block[0] += size
    block[1] -= size
    if not block[1]:
        del blocks[best]
    return offset


def _give_back(blocks: list[list[int]], offset: int, size: int) -> None:
    """An empty tensor leaves an empty block, which keeps its neighbours apart: as in ggml."""
    end = offset + size
    for index, block in enumerate(blocks):
        if block[0] + block[1] == offset:
            block[1] += size
            if index + 1 < len(blocks) and blocks[index + 1][0] == end:
                block[1] += blocks[index + 1][1]
                del blocks[index + 1]
            return
        if block[0] == end:
            block[0] = offset
            block[1] += size
            return
        if block[0] > end:
            blocks.insert(index, [offset, size])
            return
