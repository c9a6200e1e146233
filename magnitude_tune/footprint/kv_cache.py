"""The KV cache and recurrent state of every class of model, layer by layer.

Rules: llama.cpp's src/llama-kv-cache.cpp, -iswa, -recurrent and `create_memory` in src/llama-model.cpp. A layer's
cache lies where the layer lies.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

from magnitude_tune.errors import UsageError
from magnitude_tune.footprint.batch import Batch
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import Attention, LayerKv, ModelHeader
from magnitude_tune.request import KV_TYPES

__all__ = ["KvCache"]

_CACHING: Final = frozenset({Attention.FULL, Attention.SLIDING, Attention.MLA, Attention.HYBRID})
_RECURRENT: Final = frozenset({Attention.RECURRENT, Attention.HYBRID})
_F32_BYTES: Final = 4


class _PerCell(NamedTuple):
    """Bytes of one cell in all blocks before each block: full layers and sliding ones apart."""

    full: tuple[int, ...]
    sliding: tuple[int, ...]


class KvCache:
    """Cache bytes for any placement, from sums over the blocks made once for each pair of types."""

    def __init__(self, header: ModelHeader) -> None:
        self._header = header
        loaded = max(0, header.block_count - max(0, header.nextn_predict_layers))
        self._layers = [
            layer if header.causal and index < loaded else None
            for index, layer in enumerate(_exactly(header.layers, header.block_count))
        ]
        self._widest_v = max((layer.v for layer in self._layers if layer and layer.attention in _CACHING), default=0)
        state = header.recurrent
        per_slot = _F32_BYTES * (max(0, state.r) + max(0, state.s)) if state else 0
        self._state = list(
            accumulate(
                (per_slot if layer and layer.attention in _RECURRENT else 0 for layer in self._layers), initial=0
            )
        )
        self._per_cell: dict[tuple[str, str, bool], _PerCell] = {}
        self.has_sliding = any(self._slides(layer) for layer in self._layers)
        self.has_full = any(
            layer is not None and layer.attention in _CACHING and not self._slides(layer) for layer in self._layers
        )

    def parts(self, placement: Placement, batch: Batch) -> list[Part]:
        """KV cache and recurrent state of one placement."""
        size = batch.cells
        per_cell = self._bytes_per_cell(batch.type_k, batch.type_v, batch.flash_attn)
        kv_rule = _UNIFIED_RULE if size.streams == 1 else _STREAMS_RULE
        parts = []
        places = [(HOST, 0, placement.host_blocks), *((span.place, span.first, span.end) for span in placement.spans)]
        for place, first, end in places:
            n_bytes = size.full * (per_cell.full[end] - per_cell.full[first])
            n_bytes += size.sliding * (per_cell.sliding[end] - per_cell.sliding[first])
            if n_bytes:
                n_bytes *= size.streams
                parts.append(Part("kv_cache", place, n_bytes, n_bytes, "exact", kv_rule))
            state = batch.n_slots * (self._state[end] - self._state[first])
            if state:
                parts.append(Part("recurrent_state", place, state, state, "exact", _STATE_RULE))
        return parts

    def _bytes_per_cell(self, type_k: str, type_v: str, flash_attn: bool) -> _PerCell:
        key = (type_k, type_v, flash_attn)
        found = self._per_cell.get(key)
        if found is None:
            each = [self._layer_bytes(layer, type_k, type_v, flash_attn) for layer in self._layers]
            slides = [self._slides(layer) for layer in self._layers]
            found = _PerCell(
                tuple(accumulate((0 if s else b for b, s in zip(each, slides, strict=True)), initial=0)),
                tuple(accumulate((b if s else 0 for b, s in zip(each, slides, strict=True)), initial=0)),
            )
            self._per_cell[key] = found
        return found

    def _slides(self, layer: LayerKv | None) -> bool:
        return layer is not None and layer.attention is Attention.SLIDING and self._header.sliding_window > 0

    def _layer_bytes(self, layer: LayerKv | None, type_k: str, type_v: str, flash_attn: bool) -> int:
        if layer is None or layer.attention not in _CACHING:
            return 0
        v = 0 if layer.attention is Attention.MLA else layer.v
        if v and not flash_attn:
            # Without flash attention V is kept transposed, in rows of the widest layer.
            v = self._widest_v
        return _row(type_k, layer.k) + _row(type_v, v) + _row(type_k, layer.indexer)


def _row(type_name: str, n_elements: int) -> int:
    """Bytes of one row; a row that cannot be cut into blocks, which the engine refuses, counts its share."""
    if type_name not in KV_TYPES:
        raise UsageError(f"unknown KV cache type {type_name!r}", hint=f"known types: {', '.join(KV_TYPES)}")
    elements, size = TENSOR_TYPES[type_name]
    return -(-max(0, n_elements) * size // elements)


def _exactly(layers: tuple[LayerKv, ...], n: int) -> list[LayerKv | None]:
    """One entry a block, whatever the header holds."""
    return [*layers[:n], *([None] * (n - len(layers)))]


_UNIFIED_RULE: Final = "cells (padded to 256) x rows of K and V; sliding layers: min(cells, window x slots + n_ubatch)"
_STREAMS_RULE: Final = "slots x cells (padded to 256) x rows of K and V; sliding layers: min(cells, window + n_ubatch)"
_STATE_RULE: Final = "f32 convolution and state of each recurrent layer, a copy a slot"
