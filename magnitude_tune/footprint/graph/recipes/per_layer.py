"""Gemma models whose blocks have inputs of their own, and share caches: Gemma 3n (with AltUp and Laurel) and Gemma 4.

Source: src/models/{gemma3n,gemma4}.cpp.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.footprint.graph.attention import Qkv, attended, heads_of, mix, project, rotated
from magnitude_tune.footprint.graph.feed_forward import Routing, dense, experts
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import MAX_EXPERTS, Caches, caches_of
from magnitude_tune.footprint.graph.tensors import I32, Tensor

__all__ = ["gemma3n", "gemma4"]

_MAX_STREAMS: Final = 64
_MAX_BLOCKS: Final = 1024
_SPARSE_BLOCKS: Final = 10
"""The first blocks of Gemma 3n keep only the largest activations of their gates."""


def gemma4(frame: Frame) -> None:
    """Gemma 4: an ordinary Gemma with inputs for each block, experts beside the dense network, shared caches."""
    graph = frame.graph
    current = frame.embed(scaled=True)
    positions, caches, out_ids = frame.positions(), caches_of(frame), frame.output_ids()
    inputs = _per_layer_inputs(frame, current)
    for layer in frame.layers:
        attended_to = _attention(frame, layer, frame.norm(current, layer, "attn_norm"), (positions, caches))
        residual = graph.add(frame.norm(attended_to, layer, "post_attention_norm"), current)
        fed = frame.normed(_gemma4_fed(frame, layer, residual), _post(frame, layer), None, None)
        current = graph.add(fed, residual)
        if inputs is not None:
            current = graph.add(current, _own_input(frame, layer, current, inputs))
        if scale := frame.weight(layer, "layer_output_scale.weight"):
            current = graph.mul(current, scale)
    frame.output(current, capped=frame.has("final_logit_softcapping"), rows=out_ids)


def gemma3n(frame: Frame) -> None:
    """Gemma 3n: several streams of activations, of which each block computes one and corrects the others."""
    graph, tokens = frame.graph, frame.tokens
    current = frame.embed(scaled=True)
    positions, caches = frame.positions(), caches_of(frame)
    inputs = _per_layer_inputs(frame, current)
    streams, n_embd = _streams(frame), current.ne[0]
    current = graph.concat(current, _projected(frame, current, streams), 2)
    for layer in frame.layers:
        current = _altup_block(frame, layer, current, (positions, caches, inputs))
    target = _magnitude(frame, graph.view(current, n_embd, tokens))
    others = graph.view(current, n_embd, tokens, streams - 1)
    weight = frame.outer_weight("altup_unembd_proj.weight", frame.options.output_place)
    others = _rescaled(frame, graph.mul_mat(weight, others) if weight else others, target)
    merged = graph.view(current, n_embd, tokens)
    for _ in range(streams - 1):
        merged = graph.add(merged, graph.view(others, n_embd, tokens))
    merged = graph.get_rows(graph.scale(merged), frame.output_ids())
    frame.output(merged, capped=True)


def _streams(frame: Frame) -> int:
    """Streams of activations: one more than are projected."""
    return min(_MAX_STREAMS, max(1, (*frame.outer.get("altup_proj.weight", ()), 1, 1, 1)[2])) + 1


def _per_layer_inputs(frame: Frame, embedded: Tensor) -> Tensor | None:
    """Inputs of all blocks: [width, tokens, blocks]. None where the model has none."""
    graph, tokens = frame.graph, frame.tokens
    place = frame.layers[0].place if frame.layers else 0
    table = frame.outer_weight("per_layer_token_embd.weight", 0)
    if table is None:
        return None
    width = max(1, frame.number("embedding_length_per_layer_input", 1))
    n_blocks = max(1, table.ne[0] // width)
    chosen = graph.view(graph.get_rows(table, frame.input(I32, tokens)), width, n_blocks, tokens)
    chosen = graph.scale(chosen)
    graph.expand(chosen)
    weight = frame.outer_weight("per_layer_model_proj.weight", place) or graph.weight(place, 1, width * n_blocks)
    made = graph.view(graph.scale(graph.mul_mat(weight, embedded)), width, n_blocks, tokens)
    made = frame.normed(made, frame.outer_weight("per_layer_proj_norm.weight", place), None, None)
    return graph.cont(graph.permute(graph.scale(graph.add(made, chosen)), 0, 2, 1, 3))


def _attention(frame: Frame, layer: Layer, source: Tensor, inputs: tuple[Tensor, Caches]) -> Tensor:
    """Attention over a block's own cache, or over that of the last earlier block of its kind that has one."""
    positions, caches = inputs
    graph, cache = frame.graph, caches.of(layer)
    if not layer.kv.k:
        return _shared_attention(frame, layer, source, inputs)
    heads = heads_of(layer)
    if "attn_v.weight" in layer.shapes or "attn_qkv.weight" in layer.shapes:
        q, k, v = project(frame, layer, source, heads)
    else:
        q = graph.view(frame.linear(source, layer, "attn_q"), heads.k, heads.queries, frame.tokens)
        made = frame.linear(source, layer, "attn_k")
        k, v = (graph.view(made, heads.k, heads.cached, frame.tokens) for _ in range(2))
    q = graph.rope(frame.norm(q, layer, "attn_q_norm"), positions)
    k = graph.rope(frame.norm(k, layer, "attn_k_norm"), positions) if k is not None else None
    v = graph.rms_norm(v) if v is not None else None
    return frame.linear(attended(frame, layer, cache, Qkv(q, k, v), v_first=False), layer, "attn_output")


def _shared_attention(frame: Frame, layer: Layer, source: Tensor, inputs: tuple[Tensor, Caches]) -> Tensor:
    positions, caches = inputs
    graph, cache = frame.graph, caches.of(layer)
    like = [other for other in frame.layers if other.kv.k and other.slides == layer.slides]
    donor = like[-1] if like else layer
    size = heads_of(donor).k
    q = frame.linear(source, layer, "attn_q")
    q = graph.view(q, size, max(1, layer.kv.head_count), frame.tokens)
    q = graph.rope(frame.norm(q, layer, "attn_q_norm"), positions)
    q = rotated(frame, q, cache.k_rotation)
    graph.expand(q)
    mixed = mix(frame, donor, q, cache)
    return frame.linear(rotated(frame, mixed, cache.v_rotation), layer, "attn_output")


def _post(frame: Frame, layer: Layer) -> Tensor | None:
    return frame.weight(layer, "post_ffw_norm.weight")


def _gemma4_fed(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    graph = frame.graph
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, frame.norm(source, layer, "ffn_norm"))
    fed = dense(frame, layer, frame.norm(source, layer, "ffn_norm"))
    fed = frame.norm(fed, layer, "post_ffw_norm_1")
    routed = frame.norm(source, layer, "pre_ffw_norm_2")
    scaled = graph.scale(graph.rms_norm(source))
    scaled = graph.mul(scaled, frame.weight(layer, "ffn_gate_inp.scale") or graph.weight(layer.place, source.ne[0]))
    router = frame.weight(layer, "ffn_gate_inp.weight") or graph.weight(layer.place, source.ne[0], 1)
    used = min(max(1, frame.number("expert_used_count", 1)), MAX_EXPERTS)
    routed = experts(frame, layer, routed, Routing(used=used), scores=graph.mul_mat(router, scaled))
    return graph.add(fed, frame.norm(routed, layer, "post_ffw_norm_2"))


def _own_input(frame: Frame, layer: Layer, source: Tensor, inputs: Tensor) -> Tensor:
    """What a block adds for its own input."""
    graph = frame.graph
    opened = graph.unary(frame.linear(source, layer, "inp_gate"))
    # A device that does not hold the inputs gets a copy of every block's, all at once.
    for _ in range(min(layer.stands_for, _MAX_BLOCKS)):
        opened = graph.mul(opened, graph.view(inputs, *inputs.ne[:2]))
    return frame.norm(frame.linear(opened, layer, "proj"), layer, "post_norm")


def _magnitude(frame: Frame, source: Tensor) -> Tensor:
    graph = frame.graph
    squares = graph.like("sqr", source)
    return graph.like("sqrt", graph.op("sum_rows", (1, *squares.ne[1:]), squares))


def _rescaled(frame: Frame, source: Tensor, target: Tensor) -> Tensor:
    """With the magnitude of the target."""
    graph = frame.graph
    now = _magnitude(frame, source)
    return graph.like("div", graph.mul(source, target), now)


def _projected(frame: Frame, source: Tensor, streams: int) -> Tensor:
    """All streams but the first."""
    graph, tokens = frame.graph, frame.tokens
    target = _magnitude(frame, source)
    repeated = graph.op("repeat", (source.ne[0], tokens, streams - 1), source)
    weight = frame.outer_weight("altup_proj.weight", frame.options.output_place)
    return _rescaled(frame, graph.mul_mat(weight, repeated) if weight else repeated, target)


def _altup_block(frame: Frame, layer: Layer, source: Tensor, inputs: tuple[Tensor, Caches, Tensor | None]) -> Tensor:
    positions, caches, own = inputs
    graph, tokens, (n_embd, _, streams, _) = frame.graph, frame.tokens, source.ne
    predictions = _predicted(frame, layer, source)
    active = graph.view(predictions, n_embd, tokens)
    normed = frame.norm(active, layer, "attn_norm")
    low = frame.linear(frame.linear(normed, layer, "laurel_l"), layer, "laurel_r")
    laurel = graph.add(frame.norm(low, layer, "laurel_post_norm"), normed)
    attended_to = _attention(frame, layer, normed, (positions, caches))
    current = graph.add(frame.norm(attended_to, layer, "post_attention_norm"), active)
    residual = graph.scale(graph.add(current, laurel))
    fed = frame.normed(
        _sparse_fed(frame, layer, frame.norm(residual, layer, "ffn_norm")), _post(frame, layer), None, None
    )
    corrected = _corrected(frame, layer, predictions, graph.add(fed, residual))
    first = graph.view(corrected, n_embd, tokens)
    first = graph.mul(first, frame.weight(layer, "altup_correct_scale.weight") or graph.weight(layer.place, n_embd))
    first = _own_input(frame, layer, first, own) if own is not None else first
    rest = graph.add(graph.view(corrected, n_embd, tokens, streams - 1), first)
    return graph.concat(graph.view(corrected, n_embd, tokens), rest, 2)


def _sparse_fed(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    graph = frame.graph
    up, gate = frame.linear(source, layer, "ffn_up"), frame.linear(source, layer, "ffn_gate")
    if layer.block < _SPARSE_BLOCKS:
        single = (1, *gate.ne[1:])
        mean = graph.op("mean", single, gate)
        squares = graph.like("sqr", graph.like("sub", gate, mean))
        deviation = graph.like("sqrt", graph.scale(graph.op("sum_rows", single, squares)))
        gate = graph.unary(graph.like("sub", gate, graph.add(mean, graph.scale(deviation))))
    return frame.linear(graph.mul(up, graph.unary(gate)), layer, "ffn_down")


def _modalities(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    routed = frame.graph.scale(frame.norm(source, layer, "altup_router_norm"))
    return frame.graph.unary(frame.linear(routed, layer, "altup_router"))


def _predicted(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    """What the block expects of all streams."""
    graph, tokens, (n_embd, _, streams, _) = frame.graph, frame.tokens, source.ne
    factors = frame.linear(_modalities(frame, layer, graph.view(source, n_embd, tokens)), layer, "altup_predict_coef")
    factors = graph.view(factors, streams, streams, tokens)
    made = graph.mul_mat(graph.cont(graph.permute(source, 1, 2, 0, 3)), factors)
    return graph.add(graph.cont(graph.permute(made, 0, 2, 1, 3)), source)


def _corrected(frame: Frame, layer: Layer, predictions: Tensor, active: Tensor) -> Tensor:
    """All streams, corrected by what the block computed for one."""
    graph, tokens, (n_embd, _, streams, _) = frame.graph, frame.tokens, predictions.ne
    modalities = _modalities(frame, layer, active)
    innovation = graph.like("sub", active, graph.view(predictions, n_embd, tokens))
    factors = graph.scale(frame.linear(modalities, layer, "altup_correct_coef"))
    factors = graph.cont(graph.transpose(factors), 1, tokens, streams)
    spread = graph.op("repeat", (n_embd, tokens, streams), innovation)
    return graph.add(graph.mul(spread, factors), predictions)
