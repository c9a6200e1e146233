"""An encoder with a decoder, of which the engine reserves the decoder: T5; and T5's encoder alone.

Source: src/models/{t5,t5encoder}.cpp, `build_attn_inp_cross`, `build_pos_bias` in src/llama-graph.cpp.
"""

from __future__ import annotations

from magnitude_tune.footprint.graph.attention import Heads, Qkv, attended, combine, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import dense
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.tensors import F16, F32, I32, Tensor

__all__ = ["t5", "t5_encoder"]


def t5(frame: Frame) -> None:
    """The decoder, which reads as many embeddings of the encoder as the model was trained for; all rows are wanted."""
    graph, tokens = frame.graph, frame.tokens
    current = frame.embed()
    n_encoded = frame.number("context_length", 1)
    encoded = frame.input(F32, current.ne[0], n_encoded)
    caches = caches_of(frame)
    buckets = frame.input(I32, caches.full.cells, tokens)
    cross_mask = frame.input(F16 if frame.options.flash_attn else F32, n_encoded, tokens)
    out_ids = frame.input(I32, tokens)
    layers = [_side(layer, "dec.") for layer in frame.layers]
    for layer in layers:
        normed = frame.norm(current, layer, "attn_norm")
        made = project(frame, layer, normed, heads_of(layer))
        bias = _position_bias(frame, layer, layers[0], buckets)
        mixed = attended(frame, layer, caches.full, made, v_first=True, bias=bias)
        current = graph.add(frame.linear(mixed, layer, "attn_o"), current)
        mixed = _cross(frame, layer, frame.norm(current, layer, "cross_attn_norm"), (encoded, cross_mask))
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        current = graph.add(mixed, current)
        current = graph.add(dense(frame, layer, frame.norm(current, layer, "ffn_norm")), current)
    frame.output(current, norm="dec.output_norm")


def t5_encoder(frame: Frame) -> None:
    """The encoder: its tokens attend to the whole batch."""
    graph, tokens = frame.graph, frame.tokens
    current = frame.embed()
    buckets = frame.input(I32, tokens, tokens)
    mask = frame.input(F16 if frame.options.flash_attn else F32, tokens, tokens)
    out_ids = frame.input(I32, tokens)
    layers = [_side(layer, "enc.") for layer in frame.layers]
    for layer in layers:
        normed = frame.norm(current, layer, "attn_norm")
        q, k, v = _whole(project(frame, layer, normed, _heads(layer)))
        bias = _position_bias(frame, layer, layers[0], buckets)
        for tensor in (q, k, v):
            graph.expand(tensor)
        mixed = combine(frame, layer, (q, k, v), 1, mask, bias=bias, v_is_transposed=False)
        mixed = frame.linear(mixed, layer, "attn_o")
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        current = graph.add(mixed, current)
        current = graph.add(dense(frame, layer, frame.norm(current, layer, "ffn_norm")), current)
    weight = frame.outer_weight("enc.output_norm.weight", frame.options.output_place)
    current = frame.normed(current, weight, None, None)
    current.is_output = True
    graph.expand(current)


def _side(layer: Layer, prefix: str) -> Layer:
    """The block with its tensors of one side named as in other models."""
    shapes = {name.removeprefix(prefix): shape for name, shape in layer.shapes.items() if name.startswith(prefix)}
    return layer._replace(shapes=shapes)


def _heads(layer: Layer) -> Heads:
    queries, cached = max(1, layer.kv.head_count), max(1, layer.kv.head_count_kv)
    size = max(1, (*layer.shapes.get("attn_q.weight", ()), 1, 1)[1] // queries)
    return Heads(queries, cached, size, size)


def _whole(made: Qkv) -> tuple[Tensor, Tensor, Tensor]:
    return made.q, made.k or made.q, made.v or made.q


def _position_bias(frame: Frame, layer: Layer, first: Layer, buckets: Tensor) -> Tensor:
    """A bias for each head, token and cell; blocks without a table of their own use the first block's."""
    graph = frame.graph
    owner = layer if "attn_rel_b.weight" in layer.shapes else first
    table = frame.weight(owner, "attn_rel_b.weight") or graph.weight(owner.place, max(1, layer.kv.head_count), 1)
    cells, tokens = buckets.ne[:2]
    rows = graph.get_rows(table, graph.view(buckets, cells * tokens))
    return graph.cont(graph.permute(graph.view(rows, table.ne[0], cells, tokens), 2, 0, 1, 3))


def _cross(frame: Frame, layer: Layer, source: Tensor, inputs: tuple[Tensor, Tensor]) -> Tensor:
    encoded, mask = inputs
    graph, heads = frame.graph, heads_of(layer)
    q = graph.view(frame.linear(source, layer, "cross_attn_q"), heads.k, heads.queries, source.ne[1])
    k = graph.view(frame.linear(encoded, layer, "cross_attn_k"), heads.k, heads.cached, encoded.ne[1])
    v = graph.view(frame.linear(encoded, layer, "cross_attn_v"), heads.v, heads.cached, encoded.ne[1])
    for tensor in (q, k, v):
        graph.expand(tensor)
    mixed = combine(frame, layer, (q, k, v), 1, mask, v_is_transposed=False)
    return frame.linear(mixed, layer, "cross_attn_o")
