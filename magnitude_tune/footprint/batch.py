"""What a graph is built for: the tokens of a micro batch, the slots, the cells of the cache."""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.request import padded

__all__ = ["Batch", "Cells", "cells", "padded"]


class Cells(NamedTuple):
    """Cells of one stream, of full and of sliding-window layers, and the number of streams."""

    full: int
    sliding: int
    streams: int


def cells(n_ctx: int, n_parallel: int, kv_unified: bool, n_ubatch: int, sliding_window: int) -> Cells:
    """Cells per stream: one stream for all slots where the cache is unified, else one a slot.

    A slot that does not share gets PAD(n_ctx / n_parallel, 256). A sliding-window layer keeps
    PAD(min(cells, window * (n_parallel if unified else 1) + n_ubatch), 256).
    """
    total = padded(max(1, n_ctx))
    slots = max(1, n_parallel)
    full = total if kv_unified else padded(max(1, total // slots))
    window = max(0, sliding_window) * (slots if kv_unified else 1) + max(1, n_ubatch)
    return Cells(full, padded(min(full, window)), 1 if kv_unified else slots)


class Batch(NamedTuple):
    """`n_tokens` of a micro batch, one row of logits for each of `n_slots`, and the cache they read."""

    n_tokens: int
    n_slots: int
    cells: Cells
    flash_attn: bool
    type_k: str
    type_v: str
