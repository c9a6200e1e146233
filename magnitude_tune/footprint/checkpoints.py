"""Context checkpoints of llama-server: copies of what cannot be rolled back, kept for each slot in host memory.

A conversation goes on from a checkpoint where the cache itself no longer holds what is needed: sliding-window layers
have dropped it, recurrent layers have overwritten it. Rules: `create_checkpoint` in llama.cpp's
tools/server/server-context.cpp, and `state_write` of the caches with the flag that leaves full-attention layers out.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.header.types import row_bytes
from magnitude_tune.header.values import Attention, ModelHeader

__all__ = ["Checkpoints"]

_CELL_BYTES: Final = 16
"""Position, number of sequences and, for images, two coordinates: stored with each cell."""

_LAYER_BYTES: Final = 32
"""Type and row size of K and of V: stored with each layer."""

_F32_BYTES: Final = 4
_CACHING: Final = frozenset({Attention.FULL, Attention.SLIDING, Attention.MLA, Attention.HYBRID})
_PER_PROMPT: Final = 2
"""A plain prompt leaves two: a micro batch and four tokens before its end, and four tokens before its end."""


class Checkpoints:
    """Bytes of the checkpoints of one model."""

    def __init__(self, header: ModelHeader) -> None:
        loaded = header.layers[: max(0, header.block_count - max(0, header.nextn_predict_layers))]
        self._window = max(0, header.sliding_window)
        sliding = [layer for layer in loaded if layer.attention is Attention.SLIDING and self._window]
        recurrent = [layer for layer in loaded if layer.attention in (Attention.RECURRENT, Attention.HYBRID)]
        state = header.recurrent if header.causal else None
        full = [layer for layer in loaded if layer.attention in _CACHING and layer not in sliding]
        self._full = [(layer.k + layer.indexer, layer.v) for layer in full] if header.causal else []
        self._rows = [(layer.k, layer.v) for layer in sliding] if header.causal else []
        self._state = len(recurrent) * _F32_BYTES * (max(0, state.r) + max(0, state.s)) if state else 0

    @property
    def needed(self) -> bool:
        """Whether the model has anything that cannot be rolled back: without it the server makes no checkpoints."""
        return bool(self._rows or self._state)

    def n_bytes(self, n_ctx_slot: int, type_k: str, type_v: str) -> int:
        """Bytes of one checkpoint: the window's cells of each sliding layer, and the recurrent state of one slot."""
        if not self.needed:
            return 0
        n_cells = min(self._window, max(1, n_ctx_slot)) if self._rows else 0
        cell = sum(row_bytes(type_k, k) + row_bytes(type_v, v) for k, v in self._rows)
        return n_cells * (cell + _CELL_BYTES) + _LAYER_BYTES * len(self._rows) + self._state

    def conversation_bytes(self, n_ctx_slot: int, type_k: str, type_v: str) -> int:
        """Bytes of a whole conversation as the prompt cache keeps it, without its checkpoints."""
        cell = sum(row_bytes(type_k, k) + row_bytes(type_v, v) for k, v in self._full)
        return max(1, n_ctx_slot) * (cell + _CELL_BYTES) + self.n_bytes(n_ctx_slot, type_k, type_v)

    def parts(self, n_checkpoints: int, n_slots: int, one: int) -> list[Part]:
        """The term for `n_checkpoints` a slot of `one` bytes each."""
        if n_checkpoints <= 0 or one <= 0:
            return []
        each = max(1, n_slots) * one
        made = min(n_checkpoints, _PER_PROMPT)
        return [Part("checkpoints", HOST, n_checkpoints * each, made * each, "bounded", _RULE, 0, n_checkpoints * each)]


_RULE: Final = (
    "slots x checkpoints x (window cells of sliding layers + recurrent state of a slot); one prompt leaves up to two"
)
