"""The KV cache and recurrent state of every class of model, layer by layer.

Rules: llama.cpp's src/llama-kv-cache.cpp, -iswa, -dsa, -msa, -dsv4, src/llama-memory-recurrent.cpp, -hybrid and
`create_memory` in src/llama-model.cpp. A layer's cache lies where the layer lies.
"""

from __future__ import annotations

from itertools import accumulate
from operator import sub
from typing import Final, NamedTuple

from magnitude_tune.errors import UsageError
from magnitude_tune.footprint.batch import Batch, padded
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.footprint.weights import CUDA_LIKE
from magnitude_tune.header.types import TENSOR_TYPES, row_bytes
from magnitude_tune.header.values import Attention, LayerKv, ModelHeader
from magnitude_tune.request import KV_TYPES

__all__ = ["KvCache"]

_CACHING: Final = frozenset({Attention.FULL, Attention.SLIDING, Attention.MLA, Attention.HYBRID})
_RECURRENT: Final = frozenset({Attention.RECURRENT, Attention.HYBRID})
_RATIOS: Final = (4, 128)
_F32_BYTES: Final = 4
_CPU_ALIGNMENT: Final = 32
_CUDA_ALIGNMENT: Final = 128
_CUDA_ROW: Final = 512


class _Row(NamedTuple):
    """Bytes of one cell by what decides how many cells there are: those of four- and 128-fold compression last."""

    full: int = 0
    sliding: int = 0
    compressed: int = 0
    heavily: int = 0
    filling: int = 0
    """Not per cell: what CUDA fills the last row of each tensor up with."""

    def plus(self, other: _Row) -> _Row:
        return _Row(*(a + b for a, b in zip(self, other, strict=True)))


class KvCache:
    """Cache bytes for any placement, from sums over the blocks made once for each pair of types."""

    def __init__(self, header: ModelHeader, backends: tuple[str, ...] = ()) -> None:
        self._backends = backends
        self._window = max(0, header.sliding_window)
        self._layers = _exactly(header.layers, header.block_count)
        self._compresses = any(layer is not None and layer.compress_ratio for layer in self._layers)
        state = header.recurrent
        self._shape = (max(0, state.r), max(0, state.s)) if state else (0, 0)
        self._rows: dict[tuple[str, str, bool], list[_Row]] = {}
        self._states: dict[tuple[int, int], list[int]] = {}

    def parts(self, placement: Placement, batch: Batch) -> list[Part]:
        """KV cache and recurrent state of one placement."""
        size = batch.cells
        rows = self._rows_before(batch.type_k, batch.type_v, batch.flash_attn)
        # deepseek4 gives each slot a cache of its own, whatever is asked for.
        streams = batch.n_slots if self._compresses else size.streams
        kv_rule = _UNIFIED_RULE if streams == 1 else _STREAMS_RULE
        n_cells = (size.full, self._sliding_cells(batch), *(padded(-(-size.full // ratio)) for ratio in _RATIOS))
        parts = []
        places = [(HOST, 0, placement.host_blocks), *((span.place, span.first, span.end) for span in placement.spans)]
        for place, first, end in places:
            on_cuda = place != HOST and self._backend(place) in CUDA_LIKE
            row = map(sub, rows[end], rows[first])
            n_bytes = streams * sum(cells * cell for cells, cell in zip(n_cells, row, strict=False))
            if on_cuda and n_bytes:
                n_bytes += rows[end].filling - rows[first].filling
            if n_bytes:
                parts.append(Part("kv_cache", place, n_bytes, n_bytes, "exact", kv_rule))
            states = self._states_before(batch.n_slots, _CUDA_ALIGNMENT if on_cuda else _CPU_ALIGNMENT)
            state = states[end] - states[first]
            if state:
                parts.append(Part("recurrent_state", place, state, state, "exact", _STATE_RULE))
        return parts

    def _backend(self, place: int) -> str:
        return self._backends[place - 1] if place <= len(self._backends) else ""

    def _sliding_cells(self, batch: Batch) -> int:
        if not self._compresses:
            return batch.cells.sliding
        return padded(min(batch.cells.full, self._window + batch.n_tokens))

    def _rows_before(self, type_k: str, type_v: str, flash_attn: bool) -> list[_Row]:
        """Sums of all blocks before each block, and of all of them."""
        key = (type_k, type_v, flash_attn)
        found = self._rows.get(key)
        if found is None:
            each = (self._row(layer, type_k, type_v, flash_attn) for layer in self._layers)
            found = self._rows[key] = list(accumulate(each, _Row.plus, initial=_Row()))
        return found

    def _row(self, layer: LayerKv | None, type_k: str, type_v: str, flash_attn: bool) -> _Row:
        _require_known(type_k)
        _require_known(type_v)
        if layer is None or (layer.attention not in _CACHING and not layer.padded_v):
            return _Row()
        # Without flash attention V is kept transposed, in rows of the widest layer.
        v = layer.v if flash_attn else max(layer.v, layer.padded_v)
        cell = row_bytes(type_k, layer.k) + row_bytes(type_v, v)
        indexer = row_bytes(type_k, layer.indexer) + row_bytes(type_v, layer.indexer_v)
        filling = sum(_filling(type_k, n) for n in (layer.k, layer.indexer))
        filling += sum(_filling(type_v, n) for n in (v, layer.indexer_v))
        if layer.compress_ratio:
            light = layer.compress_ratio == _RATIOS[0]
            compressed = row_bytes(type_k, layer.k) + indexer
            filling += _filling(type_k, layer.k)
            return _Row(0, cell, compressed if light else 0, 0 if light else compressed, filling)
        # An indexer looks at all tokens, also where its layer slides.
        return _Row(indexer, cell, 0, 0, filling) if self._slides(layer) else _Row(cell + indexer, 0, 0, 0, filling)

    def _states_before(self, n_slots: int, alignment: int) -> list[int]:
        """Bytes of recurrent state of all blocks before each block: two tensors a layer, each aligned."""
        found = self._states.get((n_slots, alignment))
        if found is None:
            r, s = (_aligned(_F32_BYTES * n * n_slots, alignment) for n in self._shape)
            each = (
                0
                if layer is None
                else (r + s if layer.attention in _RECURRENT else 0)
                + _aligned(_F32_BYTES * max(0, layer.extra_state) * n_slots, alignment)
                for layer in self._layers
            )
            found = self._states[n_slots, alignment] = list(accumulate(each, initial=0))
        return found

    def _slides(self, layer: LayerKv | None) -> bool:
        return layer is not None and layer.attention is Attention.SLIDING and self._window > 0


def _require_known(type_name: str) -> None:
    if type_name not in KV_TYPES:
        raise UsageError(f"unknown KV cache type {type_name!r}", hint=f"known types: {', '.join(KV_TYPES)}")


def _filling(type_name: str, n_elements: int) -> int:
    """What CUDA adds to a tensor of quantised rows that are no multiple of 512 elements, aligned to 128 bytes."""
    elements, size = TENSOR_TYPES[type_name]
    if elements == 1 or n_elements <= 0:
        return 0
    return _aligned(-n_elements % _CUDA_ROW // elements * size, _CUDA_ALIGNMENT)


def _aligned(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _exactly(layers: tuple[LayerKv, ...], n: int) -> list[LayerKv | None]:
    """One entry a block, whatever the header holds."""
    return [*layers[:n], *([None] * (n - len(layers)))]


_UNIFIED_RULE: Final = "cells (padded to 256) x rows of K and V; sliding layers: min(cells, window x slots + n_ubatch)"
_STREAMS_RULE: Final = "slots x cells (padded to 256) x rows of K and V; sliding layers: min(cells, window + n_ubatch)"
_STATE_RULE: Final = "f32 convolution and state of each recurrent layer, a copy a slot"
