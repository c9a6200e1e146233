"""What every recipe works with: one graph, the batch's dimensions, and the blocks it is built from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.dims import Dims
from magnitude_tune.footprint.graph.tensors import F16, F32, I32, I64, Graph, Tensor
from magnitude_tune.header.values import LayerKv, Scalar

__all__ = ["Cache", "Frame", "Layer", "Options"]

_EXPERTS: Final = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps")
"""Tensors that `n_cpu_moe` keeps on the CPU (common/common.h, LLM_FFN_EXPS_REGEX)."""


class Layer(NamedTuple):
    """One block: its number, its tensors' shapes by name, what it caches, and where it is.

    `stands_for`: how many blocks of its like it stands for, where the recipe counts them. `host_experts`: its experts
    are on the CPU wherever the block is.
    """

    block: int
    shapes: Mapping[str, tuple[int, ...]]
    kv: LayerKv
    place: int
    is_last: bool
    slides: bool
    stands_for: int = 1
    host_experts: bool = False

    def place_of(self, name: str) -> int:
        """Where one of the block's tensors is."""
        return 0 if self.host_experts and _EXPERTS.match(name) else self.place


class Options(NamedTuple):
    """What decides the structure of a graph besides the model and its placement.

    Args:
        flash_attn: attention in one operation.
        one_stream: all slots share one stream of the cache: it is unified, or there is one slot.
        rotates_k, rotates_v: quantised caches are rotated first.
        full_offload: norms are held at their layer's device.
        output_place: where the output layer is.
        ggml: version of the library, (minor, patch) of 0.x.
        k_block, v_block: elements and bytes of a block of the cache's types.
        few_cells: the cache has no more cells than an indexer chooses.
    """

    flash_attn: bool
    one_stream: bool
    rotates_k: bool
    rotates_v: bool
    full_offload: bool
    output_place: int
    ggml: tuple[int, int]
    k_block: tuple[int, int] = (1, 2)
    v_block: tuple[int, int] = (1, 2)
    few_cells: bool = False


class Cache(NamedTuple):
    """Inputs of attention over one cache: where to write, what may be seen, and how it is rotated.

    `widest_v`: elements of V a token in the widest block: without flash attention every row is that wide.
    """

    cells: int
    k_ids: Tensor
    v_ids: Tensor
    mask: Tensor
    k_rotation: Tensor | None
    v_rotation: Tensor | None
    widest_v: int


class Frame:
    """The graph of one micro batch under construction."""

    def __init__(
        self,
        layers: tuple[Layer, ...],
        outer: Mapping[str, tuple[int, ...]],
        hparams: Mapping[str, Scalar | tuple[Scalar, ...]],
        dims: Dims,
        options: Options,
    ) -> None:
        self.graph = Graph()
        self.layers = layers
        self.outer = outer
        self.dims = dims
        self.options = options
        self._hparams = hparams

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch, over all sequences."""
        return self.dims.tokens * self.dims.sequences

    @property
    def streams(self) -> int:
        """Streams of the cache."""
        return 1 if self.options.one_stream else self.dims.sequences

    def number(self, key: str, default: int = 0) -> int:
        """A whole number of the architecture's own keys; the largest of an array; never negative."""
        value = self._hparams.get(key, default)
        if isinstance(value, tuple):
            value = max((element for element in value if isinstance(element, int)), default=default)
        return max(0, value) if isinstance(value, int) else default

    def number_at(self, key: str, block: int, default: int = 0) -> int:
        """As `number`, of one block where there is one for each."""
        value = self._hparams.get(key, default)
        if isinstance(value, tuple):
            value = value[block] if block < len(value) else default
        return max(0, value) if isinstance(value, int) else default

    def has(self, key: str) -> bool:
        """Whether the architecture's own key is there and not zero."""
        return bool(self._hparams.get(key))

    def scales(self, key: str) -> bool:
        """Whether the architecture's own key is a number that changes what is multiplied by it."""
        value = self._hparams.get(key)
        return isinstance(value, (int, float)) and value not in (0, 1)

    def real_at(self, key: str, block: int) -> float:
        """A number of one block, or of all; 0 where there is none."""
        value = self._hparams.get(key)
        if isinstance(value, tuple):
            value = value[block] if block < len(value) else None
        return float(value) if isinstance(value, (int, float)) else 0.0

    # Leaves

    def input(self, kind: int, *ne: int) -> Tensor:
        """An input of the graph."""
        return self.graph.input(kind, *ne)

    def weight(self, layer: Layer, name: str) -> Tensor | None:
        """A weight of a block; None where the block has none of that name."""
        shape = layer.shapes.get(name)
        return None if shape is None else self.graph.weight(layer.place_of(name), *shape)

    def outer_weight(self, name: str, place: int) -> Tensor | None:
        """A weight outside the blocks."""
        shape = self.outer.get(name)
        return None if shape is None else self.graph.weight(place, *shape)

    def positions(self, per_token: int = 1) -> Tensor:
        """Positions of the tokens."""
        return self.input(I32, self.tokens * per_token)

    def output_ids(self) -> Tensor:
        """Which rows of the last block are wanted."""
        return self.input(I32, self.dims.outputs)

    def cache_inputs(self, cells: int, k: int, v_all: int) -> Cache:
        """Inputs for one cache of `cells` a stream; heads of `k` elements; `v_all` elements of V a token, at most."""
        options, tokens = self.options, self.tokens
        return Cache(
            cells=cells,
            k_ids=self.input(I64, tokens),
            v_ids=self.input(I64, tokens if options.flash_attn else tokens * v_all),
            mask=self.mask(cells),
            k_rotation=self._rotation(_rotation_size(k)) if options.rotates_k else None,
            v_rotation=self._rotation(64) if options.rotates_v else None,
            widest_v=v_all,
        )

    def mask(self, cells: int) -> Tensor:
        """Which cells each token sees."""
        kind = F16 if self.options.flash_attn else F32
        return self.input(kind, cells, self.tokens // self.streams, 1, self.streams)

    def _rotation(self, size: int) -> Tensor:
        return self.input(F32, size, size)

    # Pieces that every class of model shares

    def embed(self, *, scaled: bool = False, wider: int = 0) -> Tensor:
        """Token embeddings; the engine keeps an input for ready-made ones beside.

        `wider`: how many more embeddings of a token ready-made ones hold beside the first.
        """
        graph = self.graph
        table = self.outer_weight("token_embd.weight", 0) or graph.weight(0, 1, 1)
        rows = graph.get_rows(table, self.input(I32, self.tokens))
        width = table.ne[0] * (1 + wider)
        if wider:
            rows = graph.op("pad", (width, self.tokens), rows)
        graph.expand(rows)
        graph.expand(self.input(F32, width, self.tokens))
        if wider:
            rows = graph.part(rows, table.ne[0], self.tokens)
        if scaled:
            rows = graph.scale(rows)
            graph.expand(rows)
        return rows

    def norm(self, source: Tensor, layer: Layer, name: str, *, layer_norm: bool = False) -> Tensor:
        """A norm of a block with whatever weight and bias it has; without either the bare norm."""
        weight, bias = self.weight(layer, f"{name}.weight"), self.weight(layer, f"{name}.bias")
        return self.normed(source, weight, bias, layer.place, layer_norm=layer_norm)

    def normed(
        self, source: Tensor, weight: Tensor | None, bias: Tensor | None, place: int | None, *, layer_norm: bool = False
    ) -> Tensor:
        """A norm; at `place` where the engine holds it there (None: outside the blocks)."""
        graph = self.graph
        result = graph.norm(source) if layer_norm else graph.rms_norm(source)
        if (weight or bias) and place is not None and self.options.full_offload:
            result.home = place
        if weight:
            result = graph.mul(result, weight)
        return graph.add(result, bias) if bias else result

    def linear(self, source: Tensor, layer: Layer, name: str) -> Tensor:
        """A matrix of a block with its scale and bias, where it has them."""
        weight = self.weight(layer, f"{name}.weight") or self.graph.weight(layer.place, source.ne[0], source.ne[0])
        result = self.graph.mul_mat(weight, source)
        if scale := self.weight(layer, f"{name}.scale"):
            result = self.graph.mul(result, scale)
        bias = self.weight(layer, f"{name}.bias")
        return self.graph.add(result, bias) if bias else result

    def output(
        self,
        source: Tensor,
        *,
        layer_norm: bool = False,
        scaled: bool = False,
        capped: bool = False,
        rows: Tensor | None = None,
        norm: str = "output_norm",
        reads_embedding: bool = False,
    ) -> None:
        """The final norm and the logits; `scaled` and `capped`: what some models do to them.

        `rows`: which rows are wanted, where they are picked after the norm. `norm`: its name.
        `reads_embedding`: logits are made with the token embedding where it lies.
        """
        graph, place = self.graph, self.options.output_place
        # LFM2's files name the output norm as others name the norm of the embedding.
        weight = self.outer_weight(f"{norm}.weight", place) or self.outer_weight("token_embd_norm.weight", place)
        bias = self.outer_weight(f"{norm}.bias", place)
        normed = self.normed(source, weight, bias, None, layer_norm=layer_norm)
        if rows is not None:
            normed.is_output = True
            normed = graph.get_rows(normed, rows)
        head = None if reads_embedding else self.outer_weight("output.weight", place)
        head = head or self.outer_weight("token_embd.weight", 0 if reads_embedding else place)
        logits = graph.mul_mat(head, normed) if head else normed
        if bias := self.outer_weight("output.bias", place):
            logits = graph.add(logits, bias)
        if scaled:
            logits = graph.scale(logits)
        if capped:
            logits = graph.scale(graph.unary(graph.scale(logits)))
        logits.is_output = normed.is_output = True
        graph.expand(logits)


def _rotation_size(k: int) -> int:
    """The largest power of two from 64 on that divides the head size."""
    size = 64
    while k % (2 * size) == 0 and k:
        size *= 2
    return size
