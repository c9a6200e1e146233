"""MiniMax-01: linear attention over whole micro batches, with ordinary attention every few blocks.

Source: src/models/minimax-01.cpp. The engine reserves its last graph for one sequence, where what each token lets
through of each other is largest; here it is as large, and the states are those of all slots.
"""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.footprint.graph.attention import Qkv, attend, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import Routing, experts, used_experts
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.state import States, load, matrix, states_of, store
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["minimax_01"]


class _Decay(NamedTuple):
    """Inputs: slopes of the heads, and how queries, keys and scores fade."""

    slopes: Tensor
    q: Tensor
    k: Tensor
    diagonal: Tensor


def minimax_01(frame: Frame) -> None:
    """The whole graph."""
    graph, tokens = frame.graph, frame.tokens
    n_heads = max(1, frame.number("attention.head_count", 1))
    current = frame.embed()
    states, caches, positions, out_ids = states_of(frame), caches_of(frame), frame.positions(), frame.output_ids()
    decay = _Decay(
        frame.input(F32, n_heads),
        frame.input(F32, 1, n_heads, tokens),
        frame.input(F32, 1, n_heads, tokens),
        frame.input(F32, tokens, tokens, n_heads),
    )
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if "attn_norm_2.weight" in layer.shapes:
            mixed = _linear_attention(frame, layer, states, normed, decay)
        else:
            q, k, v = project(frame, layer, normed, heads_of(layer))
            q, k = graph.rope(q, positions), graph.rope(k, positions) if k is not None else None
            mixed = attend(frame, layer, caches.of(layer), Qkv(q, k, v), v_first=True)
        if layer.is_last:
            mixed, normed = graph.get_rows(mixed, out_ids), graph.get_rows(normed, out_ids)
        residual = graph.add(mixed, graph.scale(normed))
        normed = frame.norm(residual, layer, "ffn_norm")
        used = used_experts(frame, layer)
        fed = experts(frame, layer, normed, Routing(used, scaled=frame.has("expert_weights_scale")))
        current = graph.add(fed, graph.scale(normed))
    frame.output(current)


def _linear_attention(frame: Frame, layer: Layer, states: States, source: Tensor, decay: _Decay) -> Tensor:
    graph, tokens = frame.graph, frame.tokens
    n_heads = decay.slopes.ne[0]
    inner = matrix(frame, layer, "attn_norm_2.weight", n_heads).ne[0]
    head = max(1, inner // n_heads)
    load(frame, layer, states, 0)
    slopes = graph.scale(decay.slopes)
    source = graph.view(source, source.ne[0], tokens)
    made = graph.view(graph.unary(frame.linear(source, layer, "attn_qkv")), 3 * head, n_heads, tokens)
    q, k, v = (graph.part(made, head, n_heads, tokens) for _ in range(3))
    state = load(frame, layer, states, head * head * n_heads)
    state = graph.view(state, head, head, n_heads, frame.dims.sequences)
    q_decay, k_decay, diagonal = (graph.unary(graph.scale(each)) for each in decay[1:])
    before = graph.mul_mat(state, graph.permute(graph.mul(q, q_decay), 0, 2, 1, 3))
    scores = graph.mul_mat(graph.permute(k, 0, 2, 1, 3), graph.permute(q, 0, 2, 1, 3))
    scores = graph.mul(scores, diagonal)
    v = graph.cont(graph.permute(v, 1, 2, 0, 3))
    mixed = graph.add(before, graph.mul_mat(v, scores))
    graph.expand(mixed)
    fade = graph.view(graph.unary(graph.scale(slopes)), 1, 1, n_heads)
    k = graph.cont(graph.permute(graph.mul(k, k_decay), 1, 2, 0, 3))
    store(frame, layer, graph.add(graph.mul(state, fade), graph.mul_mat(k, v)))
    mixed = graph.view(graph.cont(graph.permute(mixed, 0, 2, 1, 3)), inner, tokens)
    normed = frame.norm(mixed, layer, "attn_norm_2")
    gate = graph.unary(frame.linear(source, layer, "attn_gate"))
    result = frame.linear(graph.mul(gate, normed), layer, "attn_output")
    return graph.view(result, result.ne[0], tokens)
