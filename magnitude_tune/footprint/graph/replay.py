"""Compute buffers of any batch on any placement, from replayed graphs that are built once for each structure."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.batch import Batch
from magnitude_tune.footprint.graph.assumed import assumed_block, assumed_outer
from magnitude_tune.footprint.graph.dims import PLACEHOLDERS, Dims, evaluate
from magnitude_tune.footprint.graph.frame import Frame, Layer, Options
from magnitude_tune.footprint.graph.layout import Layout, lay_out
from magnitude_tune.footprint.graph.packing import peak_bytes
from magnitude_tune.footprint.graph.recipes.registry import recipe_of
from magnitude_tune.footprint.graph.scheduler import schedule
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import Attention, LayerKv, ModelHeader
from magnitude_tune.request import PLAIN_KV_TYPES

__all__ = ["NEWEST_GGML", "Replay"]

_IN_PLACE: Final = frozenset(
    {"fill", "scale", "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "log", "unary", "rope", "rms_norm"}
    | {"clamp", "soft_max"}
)
_ALIGNMENT: Final = 32
_BLOCKS_ALIKE: Final = 5
_RECURRENT_ALIKE: Final = 6
"""States are read before the block that they follow has ended, so the free memory takes longer to find its pattern."""
_ROTATION: Final = 64
"""Quantised caches of heads of a multiple of this many elements are rotated."""
NEWEST_GGML: Final = (25, 3)
_RECURRENT: Final = frozenset({Attention.RECURRENT, Attention.HYBRID})
_NO_KV: Final = LayerKv(Attention.NONE, 0, 0, 0, 0)


class _Kept(NamedTuple):
    """A block that stands for its like: its number, where it is, whether it is the last, and for how many it stands.

    `host_experts`: its experts are on the CPU.
    """

    block: int
    place: int
    is_last: bool
    stands_for: int = 1
    host_experts: bool = False


class Replay:
    """Compute buffers of one model, by an engine whose tensor library has version 0.x of `ggml`: (minor, patch)."""

    def __init__(self, header: ModelHeader, ggml: tuple[int, int] = NEWEST_GGML) -> None:
        self._header = header
        self._ggml = ggml
        self._recipe = recipe_of(header.architecture)
        self._n_blocks = max(0, header.block_count - max(0, header.nextn_predict_layers))
        deep = header.shapes.hparams.get("n_deepstack_layers")
        self._turns_at = max(self._recipe.turns_at, deep if isinstance(deep, int) else 0)
        full = (index for index, layer in enumerate(header.layers, start=1) if layer.attention is Attention.FULL)
        self._period = next(full, 1)
        self._kinds = [self._kind(index) for index in range(self._n_blocks)]
        self._first_of_kind = {kind: index for index, kind in reversed([*enumerate(self._kinds)])}
        self._blocks: dict[tuple[Placement, int], tuple[_Kept, ...]] = {}
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._peaks: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._rotates_k = all(layer.k // max(1, layer.head_count_kv) % _ROTATION == 0 for layer in header.layers)
        self._rotates_v = all(layer.v // max(1, layer.head_count_kv) % _ROTATION == 0 for layer in header.layers)
        indexed = header.shapes.hparams.get("attention.indexer.top_k")
        self._indexed = indexed if isinstance(indexed, int) else 0
        self.known = self._recipe.known

    def buffers(
        self, placement: Placement, batch: Batch, n_outputs: int, *, pipelined: bool, n_cpu_moe: int = 0
    ) -> tuple[int, ...]:
        """Bytes of the compute buffer of the CPU and of each span of the placement.

        `n_cpu_moe`: so many first blocks have their experts on the CPU, wherever they are.
        """
        where = (placement, min(max(n_cpu_moe, 0), self._n_blocks))
        blocks = self._blocks.get(where)
        if blocks is None:
            blocks = self._blocks[where] = self._contracted(*where)
        options = self._options(placement, batch)
        structure = (blocks, options, len(placement.spans), pipelined)
        tokens = -(-batch.n_tokens // batch.n_slots)
        dims = Dims(tokens, batch.n_slots, batch.cells.full, batch.cells.sliding, n_outputs)
        key = (structure, dims)
        found = self._peaks.get(key)
        if found is None:
            layout = self._layouts.get(structure)
            if layout is None:
                layout = self._layouts[structure] = self._layout(blocks, options, len(placement.spans), pipelined)
            sizes = [-(-evaluate(size, dims) // _ALIGNMENT) * _ALIGNMENT for size in layout.sizes]
            found = self._peaks[key] = tuple(peak_bytes(events, sizes) for events in layout.events)
        return found

    def _layout(self, blocks: tuple[_Kept, ...], options: Options, n_devices: int, pipelined: bool) -> Layout:
        frame = self._frame(blocks, options, PLACEHOLDERS)
        self._recipe.build(frame)
        plan = schedule(frame.graph, n_devices + 1, pipelined=pipelined)
        return lay_out(plan, n_devices + 1, _IN_PLACE)

    def _frame(self, blocks: tuple[_Kept, ...], options: Options, dims: Dims) -> Frame:
        header = self._header
        layers = tuple(
            Layer(
                block=kept.block,
                shapes=header.shapes.of_block(kept.block) or assumed_block(header, kept.block),
                kv=self._kv(kept.block),
                place=kept.place,
                is_last=kept.is_last,
                slides=self._slides(kept.block),
                stands_for=kept.stands_for,
                host_experts=kept.host_experts,
            )
            for kept in blocks
        )
        return Frame(layers, header.shapes.outer or assumed_outer(header), header.shapes.hparams, dims, options)

    def _options(self, placement: Placement, batch: Batch) -> Options:
        span_of = {span.place: index for index, span in enumerate(placement.spans, start=1)}
        return Options(
            flash_attn=batch.flash_attn,
            one_stream=batch.cells.streams == 1,
            rotates_k=self._rotates_k and batch.type_k not in PLAIN_KV_TYPES,
            rotates_v=self._rotates_v and batch.type_v not in PLAIN_KV_TYPES,
            full_offload=placement.all_offloaded,
            output_place=span_of.get(placement.output_place, 0),
            ggml=self._ggml,
            k_block=TENSOR_TYPES[batch.type_k],
            v_block=TENSOR_TYPES[batch.type_v],
            few_cells=batch.cells.full <= self._indexed,
        )

    def _contracted(self, placement: Placement, n_cpu_moe: int) -> tuple[_Kept, ...]:
        """The blocks that matter: a few for each pair of a block and the one before it, at each place, and the last.

        Memory is reused from block to block: once the free memory between blocks has found its pattern, a block after
        its like adds nothing that earlier such blocks did not.
        Each is named by the first of its kind, so that placements of one pattern share one graph.
        """
        seen: dict[tuple[object, ...], int] = {}
        last_of: dict[tuple[object, ...], int] = {}
        kept: list[_Kept] = []
        before: object = None
        places = _places(placement, self._n_blocks)
        on_host = [block < n_cpu_moe and place > 0 for block, place in enumerate(places)]
        for block, here in enumerate(zip(self._kinds, places, on_host, strict=True)):
            is_last = block == self._n_blocks - 1
            times = seen.get((before, here), 0)
            recurs = before == here and self._kv(block).attention in _RECURRENT
            if is_last or times < (_RECURRENT_ALIKE if recurs else _BLOCKS_ALIKE):
                seen[before, here] = times + 1
                last_of[before, here] = len(kept)
                kept.append(_Kept(self._first_of_kind[here[0]], here[1], is_last, host_experts=here[2]))
            elif self._recipe.counts:
                index = last_of[before, here]
                kept[index] = kept[index]._replace(stands_for=kept[index].stands_for + 1)
            before = here
        return tuple(kept)

    def _kind(self, index: int) -> tuple[object, ...]:
        of_block = self._header.shapes.kind_of_block
        shapes = of_block[index] if index < len(of_block) else -1
        return (shapes, self._kv(index), self._slides(index), index < self._turns_at)

    def _kv(self, index: int) -> LayerKv:
        return self._header.layers[index] if index < len(self._header.layers) else _NO_KV

    def _slides(self, index: int) -> bool:
        attention = self._kv(index).attention
        if attention is Attention.SHARED:
            # Blocks that read another's cache keep the pattern of those that have one: its last is full.
            attention = self._kv(index % self._period).attention
        return attention is Attention.SLIDING and self._header.sliding_window > 0


def _places(placement: Placement, n_blocks: int) -> list[int]:
    """For each block 0 for the CPU, or the number of its span from 1 on."""
    places = [0] * n_blocks
    for number, span in enumerate(placement.spans, start=1):
        for index in range(span.first, min(span.end, n_blocks)):
            places[index] = number
    return places
