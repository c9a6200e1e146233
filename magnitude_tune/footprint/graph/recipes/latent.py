"""Multi-head latent attention: keys and values unpacked from one short row a token.

With the keys of MLA in the header the cache holds that row, and queries are brought to its space; without them keys
and values are unpacked before they are cached.
Source: src/models/{deepseek2,deepseek2ocr,mistral4}.cpp.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.attention import Qkv, attend, cells_of, combine, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import mixture
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["Sizes", "deepseek2", "deepseek2ocr", "latent_attention", "sizes_of", "stored"]

_MAX_BLOCKS: Final = 1024


class Sizes(NamedTuple):
    """Elements of a head: without and with rotation, of V; and of the row that is cached, without its rotated part."""

    heads: int
    plain: int
    rotated: int
    v: int
    rank: int


def sizes_of(frame: Frame, layer: Layer) -> Sizes:
    """From the shapes of a block's matrices, where they are plausible."""
    heads = max(1, layer.kv.head_count)
    rotated = max(1, frame.number("rope.dimension_count", 64))
    packed = layer.shapes.get("attn_kv_a_mqa.weight", (1, frame.number("attention.kv_lora_rank", 1) + rotated))
    rank = max(1, (packed[1] if len(packed) > 1 else 1) - rotated)
    key = frame.number("attention.key_length_mla") or frame.number("attention.key_length", 1)
    value = frame.number("attention.value_length_mla") or frame.number("attention.value_length", 1)
    return Sizes(heads, max(1, key - rotated), rotated, max(1, value), rank)


def deepseek2(frame: Frame) -> None:
    """Latent attention, then a dense network in the first blocks and a mixture in the others."""
    graph = frame.graph
    current = frame.embed()
    scale = frame.input(F32, 1, 1, frame.tokens) if frame.has("attention.temperature_scale") else None
    positions, caches, out_ids = frame.positions(), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        attended = latent_attention(frame, layer, caches.full, normed, (positions, scale))
        if layer.is_last:
            attended, current = graph.get_rows(attended, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(attended, current)
        fed = mixture(frame, layer, frame.norm(residual, layer, "ffn_norm"), frame.has("expert_weights_norm"))
        current = graph.add(fed, residual)
    frame.output(current)


def deepseek2ocr(frame: Frame) -> None:
    """As `deepseek2` with ordinary attention."""
    graph = frame.graph
    current = frame.embed()
    positions, caches, out_ids = frame.positions(), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        q, k, v = project(frame, layer, normed, heads_of(layer))
        q, k = graph.rope(q, positions), graph.rope(k, positions) if k is not None else None
        attended = attend(frame, layer, caches.full, Qkv(q, k, v), v_first=True)
        if layer.is_last:
            attended, current = graph.get_rows(attended, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(attended, current)
        fed = mixture(frame, layer, frame.norm(residual, layer, "ffn_norm"), frame.has("expert_weights_norm"))
        current = graph.add(fed, residual)
    frame.output(current)


def latent_attention(
    frame: Frame, layer: Layer, cache: Cache, source: Tensor, inputs: tuple[Tensor, Tensor | None]
) -> Tensor:
    """One block's attention, output matrix included; `inputs`: positions, and what queries are multiplied by."""
    graph, sizes = frame.graph, sizes_of(frame, layer)
    q = _queries(frame, layer, source, sizes)
    packed = frame.linear(source, layer, "attn_kv_a_mqa")
    row = packed.strides
    rotated = graph.view(packed, sizes.rotated, 1, frame.tokens, nb=(F32, row[1], row[1], row[1] * frame.tokens))
    rotated = graph.rope(rotated, inputs[0])
    plain = frame.norm(graph.part(packed, sizes.rank, frame.tokens), layer, "attn_kv_a_norm")
    if "attn_k_b.weight" in layer.shapes:
        return _absorbed(frame, layer, cache, (q, plain, rotated), inputs)
    return _unpacked(frame, layer, cache, (q, plain, rotated), inputs)


def _queries(frame: Frame, layer: Layer, source: Tensor, sizes: Sizes) -> Tensor:
    """[plain + rotated, heads, tokens], through a short row where the block has one."""
    if "attn_q_a.weight" in layer.shapes:
        short = frame.norm(frame.linear(source, layer, "attn_q_a"), layer, "attn_q_a_norm")
        q = frame.linear(short, layer, "attn_q_b")
    else:
        q = frame.linear(source, layer, "attn_q")
    return frame.graph.view(q, sizes.plain + sizes.rotated, sizes.heads, frame.tokens)


def _absorbed(
    frame: Frame,
    layer: Layer,
    cache: Cache,
    made: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor | None],
) -> Tensor:
    """Queries brought to the space of the cached row."""
    graph, sizes = frame.graph, sizes_of(frame, layer)
    q, plain, rotated = made
    positions, scale = inputs
    q_rotated = graph.rope(graph.part(q, sizes.rotated, sizes.heads, frame.tokens), positions)
    q_plain = graph.permute(graph.part(q, sizes.plain, sizes.heads, frame.tokens), 0, 2, 1, 3)
    brought = frame.linear(q_plain, layer, "attn_k_b")
    q = graph.concat(graph.permute(brought, 0, 2, 1, 3), q_rotated, 0)
    v = graph.view(plain, sizes.rank, 1, frame.tokens)
    k = graph.concat(v, rotated, 0)
    if scale is not None:
        q = graph.mul(q, scale)
    stored(frame, layer, cache, (q, v, k))
    return frame.linear(cached(frame, layer, cache, q, sizes.rank), layer, "attn_output")


def stored(frame: Frame, layer: Layer, cache: Cache, made: tuple[Tensor, Tensor, Tensor]) -> None:
    """Compute queries, values and the rows that begin with them, and cache the rows."""
    graph, k = frame.graph, made[2]
    for tensor in made:
        graph.expand(tensor)
    rows = graph.view(k, k.ne[0], frame.tokens)
    graph.expand(graph.set_rows(graph.cache(layer.place, rows.ne[0], 1), rows, cache.k_ids))


def cached(frame: Frame, layer: Layer, cache: Cache, q: Tensor, rank: int, *, chosen: Tensor | None = None) -> Tensor:
    """Attention over cached rows, whose first `rank` elements are the values.

    `chosen`: ids of the cells that are attended to; all where it is None.
    """
    graph = frame.graph
    mask = cache.mask if chosen is None else _only(frame, layer, cache.mask, chosen)
    elements, n_bytes = frame.options.k_block
    k = cells_of(frame, layer, cache, (q.ne[0], 1), frame.options.k_block)
    width = max(1, rank * n_bytes // (elements * abs(k.kind)))
    v = graph.part(k, width, 1, cache.cells, frame.streams)
    unpack = frame.weight(layer, "attn_v_b.weight")
    return combine(frame, layer, (q, k, v), frame.streams, mask, v_is_transposed=False, width=rank, unpack=unpack)


def _only(frame: Frame, layer: Layer, mask: Tensor, chosen: Tensor) -> Tensor:
    """A mask with all cells hidden but the chosen ones.

    The zeros of all blocks have memory from the start on: those of the blocks that this one stands for, too.
    """
    graph = frame.graph
    cells, tokens, _, streams = mask.ne
    hidden = graph.like("fill", mask)
    single = graph.view(hidden, 1, cells, tokens, streams)
    ids = graph.view(chosen, chosen.ne[0], tokens, streams)
    n_zeros = min(max(1, layer.stands_for), _MAX_BLOCKS)
    blank = [Tensor("none", F32, (1, chosen.ne[0], tokens, streams)) for _ in range(n_zeros)]
    zeros = graph.like("fill", *blank)
    shown = graph.view(graph.set_rows(single, zeros, ids), cells, tokens, 1, streams)
    return graph.add(shown, mask)


def _unpacked(
    frame: Frame,
    layer: Layer,
    cache: Cache,
    made: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor | None],
) -> Tensor:
    """Keys and values as of ordinary attention."""
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q, plain, rotated = made
    positions, scale = inputs
    both = frame.linear(plain, layer, "attn_kv_b")
    step = (sizes.plain + sizes.v) * F32
    strides = (F32, step, step * sizes.heads, step * sizes.heads * tokens)
    k = graph.view(both, sizes.plain, sizes.heads, tokens, nb=strides)
    v = graph.cont(graph.view(both, sizes.v, sizes.heads, tokens, nb=strides))
    q = graph.rope(q, positions)
    k = graph.concat(k, graph.op("repeat", (sizes.rotated, sizes.heads, tokens), rotated), 0)
    if scale is not None:
        q = graph.mul(q, scale)
    return attend(frame, layer, cache, Qkv(q, k, v), v_first=True)
