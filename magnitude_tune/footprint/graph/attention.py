"""Attention over a cache, or within a batch where there is none.

Source: `build_qkv`, `build_attn` and `build_attn_mha` in src/llama-graph.cpp, `cpy_k` and `cpy_v` in
src/llama-kv-cache.cpp.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.tensors import F16, F32, Tensor

__all__ = [
    "Heads",
    "Qkv",
    "attend",
    "attended",
    "cells_of",
    "combine",
    "heads_of",
    "mix",
    "project",
    "rotated",
    "store",
]

_F32_BLOCK: Final = (1, 4)


class Heads(NamedTuple):
    """Heads of queries and of keys and values, and the elements of one head of K and of V."""

    queries: int
    cached: int
    k: int
    v: int


class Qkv(NamedTuple):
    """Queries, keys and values: [elements, heads, tokens]. K and V are None where a block reads another's cache."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None


def heads_of(layer: Layer) -> Heads:
    """Heads of a block from what it caches."""
    kv = layer.kv
    cached = max(1, kv.head_count_kv)
    return Heads(max(1, kv.head_count), cached, max(1, kv.k // cached), max(1, (kv.v or kv.k) // cached))


def project(frame: Frame, layer: Layer, source: Tensor, heads: Heads) -> Qkv:
    """Q, K and V of one block, from one matrix or from three."""
    graph, tokens = frame.graph, frame.tokens
    q, k, v = heads.queries * heads.k, heads.cached * heads.k, heads.cached * heads.v
    if "attn_qkv.weight" in layer.shapes:
        fused = frame.linear(source, layer, "attn_qkv")
        if frame.has("attention.clamp_kqv"):
            fused = graph.like("clamp", fused)
        row = (q + k + v) * F32
        return Qkv(
            graph.view(fused, heads.k, heads.queries, tokens, nb=(F32, heads.k * F32, row, row * tokens)),
            graph.view(fused, heads.k, heads.cached, tokens, nb=(F32, heads.k * F32, row, row * tokens)),
            graph.view(fused, heads.v, heads.cached, tokens, nb=(F32, heads.v * F32, row, row * tokens)),
        )
    made = [frame.linear(source, layer, name) for name in ("attn_q", "attn_k", "attn_v")]
    if frame.has("attention.clamp_kqv"):
        made = [graph.like("clamp", tensor) for tensor in made]
    return Qkv(
        graph.view(made[0], heads.k, heads.queries, tokens),
        graph.view(made[1], heads.k, heads.cached, tokens),
        graph.view(made[2], heads.v, heads.cached, tokens),
    )


def rotated(frame: Frame, source: Tensor, rotation: Tensor | None) -> Tensor:
    """Multiplied by the rotation of a quantised cache; as it is where there is none."""
    if rotation is None:
        return source
    graph, size = frame.graph, rotation.ne[0]
    a, b, c, d = source.ne
    rows = (a * b * c * d) // size
    flat = graph.view(source, size, rows) if source.nb is None else graph.cont(source, size, rows)
    return graph.view(graph.mul_mat(rotation, flat), *source.ne)


def store(frame: Frame, layer: Layer, cache: Cache, k: Tensor | None, v: Tensor | None) -> None:
    """Write K and V into the cache. Without flash attention V is kept transposed, in rows of the widest block."""
    graph, tokens = frame.graph, frame.tokens
    if k is not None:
        rows = graph.view(k, k.ne[0] * k.ne[1], tokens)
        graph.expand(graph.set_rows(graph.cache(layer.place, rows.ne[0], 1), rows, cache.k_ids))
    if v is None:
        return
    width = v.ne[0] * v.ne[1]
    if frame.options.flash_attn:
        rows = graph.view(v, width, tokens)
    else:
        flat = graph.view(v, width, tokens) if v.nb is None else graph.cont(v, width, tokens)
        if width < cache.widest_v:
            flat = graph.op("pad", (cache.widest_v, tokens), flat)
        rows = graph.view(flat, 1, flat.ne[0] * tokens)
    graph.expand(graph.set_rows(graph.cache(layer.place, rows.ne[0], 1), rows, cache.v_ids))


def mix(frame: Frame, layer: Layer, q: Tensor, cache: Cache, *, bias: Tensor | None = None) -> Tensor:
    """Softmax(K Q) V over a cache: [elements of V x heads, tokens]."""
    heads, options = heads_of(layer), frame.options
    k = cells_of(frame, layer, cache, (heads.k, heads.cached), options.k_block)
    v = cells_of(frame, layer, cache, (heads.v, heads.cached), options.v_block)
    # With flash attention V lies as it comes, but a bias rules that operation out.
    lies = options.flash_attn and bias is not None
    shape = (frame, layer, (q, k, v), frame.streams, cache.mask)
    return combine(*shape, bias=bias, width=heads.v, v_is_transposed=not lies)


def cells_of(frame: Frame, layer: Layer, cache: Cache, heads: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """All cells of K or V; rows of a quantised type are as long as their bytes, counted in f16."""
    graph, (width, n_heads), (elements, n_bytes) = frame.graph, heads, block
    kind = F32 if block == _F32_BLOCK else F16
    source = Tensor("none", kind, (1, 1, 1, 1))
    source.place = layer.place
    return graph.view(source, -(-width * n_bytes // (elements * kind)), n_heads, cache.cells, frame.streams)


def combine(
    frame: Frame,
    layer: Layer,
    qkv: tuple[Tensor, Tensor, Tensor],
    streams: int,
    mask: Tensor,
    *,
    bias: Tensor | None = None,
    v_is_transposed: bool = True,
    width: int = 0,
    unpack: Tensor | None = None,
) -> Tensor:
    """`build_attn_mha`.

    `width`: elements of a head of V, where `v` differs. `unpack`: the matrix that makes values of what MLA caches.
    """
    graph, tokens = frame.graph, frame.tokens
    q, k, v = qkv
    width, n_heads = width or v.ne[0], q.ne[1]
    by_stream = (*q.strides[:3], q.strides[2] * (tokens // streams))
    q = graph.permute(graph.view(q, q.ne[0], n_heads, tokens // streams, streams, nb=by_stream), 0, 2, 1, 3)
    k, v = graph.permute(k, 0, 2, 1, 3), graph.permute(v, 0, 2, 1, 3)
    sinks = frame.weight(layer, "attn_sinks.weight")
    if frame.options.flash_attn and bias is None:
        k = graph.cast(k, F16) if k.kind == F32 else k
        v = graph.cast(v, F16) if v.kind == F32 else v
        operands = (q, k, v, mask, *((sinks,) if sinks else ()))
        mixed = graph.op("flash_attn", (width, n_heads, tokens // streams, streams), *operands)
        if unpack is not None:
            mixed = graph.mul_mat(unpack, graph.permute(mixed, 0, 2, 1, 3))
            mixed = graph.cont(graph.permute(mixed, 0, 2, 1, 3))
            width = mixed.ne[0]
        result = graph.view(mixed, width * n_heads, tokens)
    else:
        scores = graph.mul_mat(k, q)
        if bias is not None:
            scores = graph.add(scores, bias)
        scores = graph.like("soft_max", scores, mask, *((sinks,) if sinks else ()))
        if not v_is_transposed:
            v = graph.cont(graph.transpose(v))
            mixed = graph.mul_mat(v, scores)
        else:
            mixed = graph.op("mul_mat", (width, tokens // streams, n_heads, streams), v, scores)
        if unpack is not None:
            mixed = graph.mul_mat(unpack, mixed)
            width = mixed.ne[0]
        result = graph.cont(graph.permute(mixed, 0, 2, 1, 3), width * n_heads, tokens)
    graph.expand(result)
    return result


def attend(frame: Frame, layer: Layer, cache: Cache, qkv: Qkv, *, v_first: bool, bias: Tensor | None = None) -> Tensor:
    """Attention of one block over its cache, output matrix included.

    `v_first`: V is computed before K, as in models with one cache; those with two keep the order Q, K, V.
    """
    return frame.linear(attended(frame, layer, cache, qkv, v_first=v_first, bias=bias), layer, "attn_output")


def attended(
    frame: Frame, layer: Layer, cache: Cache, qkv: Qkv, *, v_first: bool, bias: Tensor | None = None
) -> Tensor:
    """As `attend`, without the output matrix."""
    graph = frame.graph
    q = rotated(frame, qkv.q, cache.k_rotation)
    k = rotated(frame, qkv.k, cache.k_rotation) if qkv.k is not None else None
    v = rotated(frame, qkv.v, cache.v_rotation) if qkv.v is not None else None
    for tensor in (q, v, k) if v_first else (q, k, v):
        if tensor is not None:
            graph.expand(tensor)
    store(frame, layer, cache, k, v)
    mixed = mix(frame, layer, q, cache, bias=bias)
    return rotated(frame, mixed, cache.v_rotation)
