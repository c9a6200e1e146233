"""Latent attention to the cells that an indexer with a cache of its own chooses.

Source: src/models/{deepseek32,glm-dsa}.cpp, `build_attn` over `llm_graph_input_attn_k_dsa` in src/llama-graph.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.footprint.graph.attention import cells_of
from magnitude_tune.footprint.graph.feed_forward import mixture
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.latent import cached, sizes_of, stored
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.tensors import F16, F32, I32, I64, Tensor

__all__ = ["deepseek32"]


class _Indexer(NamedTuple):
    """Inputs of the indexer: where its keys go, what may be seen, and what its keys and queries are rotated by."""

    ids: Tensor
    mask: Tensor
    rotation: Tensor


def deepseek32(frame: Frame) -> None:
    """Latent attention to chosen cells, then a dense network in the first blocks and a mixture in the others."""
    graph = frame.graph
    current = frame.embed()
    positions, cache = frame.positions(), caches_of(frame).full
    indexer, out_ids = _indexer(frame), frame.output_ids()
    chosen: Tensor | None = None
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        short = frame.norm(frame.linear(normed, layer, "attn_q_a"), layer, "attn_q_a_norm")
        if chosen is None or _chooses(frame, layer):
            chosen = _chosen(frame, layer, cache, (normed, short, positions), indexer)
        mixed = _attention(frame, layer, cache, (normed, short, positions), chosen)
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(mixed, current)
        fed = mixture(frame, layer, frame.norm(residual, layer, "ffn_norm"), frame.has("expert_weights_norm"))
        current = graph.add(fed, residual)
    frame.output(current)


def _indexer(frame: Frame) -> _Indexer:
    size = max(1, frame.number("attention.indexer.key_length", 128))
    mask = frame.input(F16, frame.dims.full_cells, frame.tokens // frame.streams, 1, frame.streams)
    return _Indexer(frame.input(I64, frame.tokens), mask, frame.input(F32, size, size))


def _chooses(frame: Frame, layer: Layer) -> bool:
    """Whether a block has an indexer of its own; others take what the one before them chose."""
    return bool(frame.number_at("attention.indexer.types", layer.block, 1)) and "indexer.attn_k.weight" in layer.shapes


def _chosen(
    frame: Frame, layer: Layer, cache: Cache, sources: tuple[Tensor, Tensor, Tensor], indexer: _Indexer
) -> Tensor:
    """Ids of the best cells of each token."""
    graph, tokens, streams = frame.graph, frame.tokens, frame.streams
    source, short, positions = sources
    size, heads = indexer.rotation.ne[0], max(1, frame.number("attention.indexer.head_count", 1))
    q = graph.view(frame.linear(short, layer, "indexer.attn_q_b"), size, heads, tokens)
    k = frame.norm(frame.linear(source, layer, "indexer.attn_k"), layer, "indexer.k_norm", layer_norm=True)
    k = graph.mul_mat(indexer.rotation, graph.rope(graph.view(k, size, 1, tokens), positions))
    q = graph.mul_mat(indexer.rotation, graph.rope(q, positions))
    rows = graph.view(k, size, tokens)
    graph.expand(graph.set_rows(graph.cache(layer.place, size, 1), rows, indexer.ids))
    weights = graph.view(frame.linear(source, layer, "indexer.proj"), heads, tokens // streams, 1, streams)
    keys = cells_of(frame, layer, cache, (size, 1), frame.options.k_block)
    by_stream = graph.view(q, size, heads, tokens // streams, streams)
    cells = (cache.cells, tokens // streams, 1, streams)
    scores = graph.op("lightning_indexer", cells, by_stream, keys, graph.scale(weights), indexer.mask)
    most = cache.cells if frame.options.few_cells else max(1, frame.number("attention.indexer.top_k", 1))
    return graph.cont(graph.op("top_k", (most, *cells[1:]), scores, kind=I32))


def _attention(
    frame: Frame, layer: Layer, cache: Cache, sources: tuple[Tensor, Tensor, Tensor], chosen: Tensor
) -> Tensor:
    graph, sizes = frame.graph, sizes_of(frame, layer)
    source, short, positions = sources
    q = graph.view(frame.linear(short, layer, "attn_q_b"), sizes.plain + sizes.rotated, sizes.heads, frame.tokens)
    q_rotated = graph.rope(graph.part(q, sizes.rotated, sizes.heads, frame.tokens), positions)
    packed = frame.linear(source, layer, "attn_kv_a_mqa")
    row = packed.strides[1]
    rotated = graph.view(packed, sizes.rotated, 1, frame.tokens, nb=(F32, row, row, row * frame.tokens))
    rotated = graph.rope(rotated, positions)
    plain = frame.norm(graph.part(packed, sizes.rank, frame.tokens), layer, "attn_kv_a_norm")
    q_plain = graph.permute(graph.part(q, sizes.plain, sizes.heads, frame.tokens), 0, 2, 1, 3)
    brought = graph.permute(frame.linear(q_plain, layer, "attn_k_b"), 0, 2, 1, 3)
    v = graph.view(plain, sizes.rank, 1, frame.tokens)
    q = graph.concat(brought, q_rotated, 0)
    stored(frame, layer, cache, (q, v, graph.concat(v, rotated, 0)))
    return frame.linear(cached(frame, layer, cache, q, sizes.rank, chosen=chosen), layer, "attn_output")
