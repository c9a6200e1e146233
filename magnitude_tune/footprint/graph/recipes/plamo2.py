"""PLaMo 2: a mamba of its own kind or attention, each with norms before and after.

Source: src/models/plamo2.cpp.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.footprint.graph.attention import Qkv, attend, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import dense
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.state import (
    States,
    by_sequence,
    convolved,
    heads_in,
    load,
    matrix,
    scan,
    states_of,
    store,
)
from magnitude_tune.footprint.graph.tensors import Tensor

__all__ = ["plamo2"]

_EARLY_SINCE: Final = (21, 0)
"""Builds up to ggml 0.20 pick the wanted rows after the last block's network."""


def plamo2(frame: Frame) -> None:
    """The whole graph."""
    graph = frame.graph
    current = frame.embed()
    positions, states, caches, out_ids = frame.positions(), states_of(frame), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if "ssm_in.weight" in layer.shapes:
            mixed = _mixer(frame, layer, states, normed)
        else:
            mixed = _attention(frame, layer, normed, caches.of(layer), positions)
        is_early = layer.is_last and frame.options.ggml >= _EARLY_SINCE
        if is_early:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(_normed(frame, layer, mixed, "post_attention_norm"), current)
        fed = dense(frame, layer, frame.norm(residual, layer, "ffn_norm"))
        fed = _normed(frame, layer, fed, "post_ffw_norm")
        if layer.is_last and not is_early:
            fed, residual = graph.get_rows(fed, out_ids), graph.get_rows(residual, out_ids)
        current = graph.add(fed, residual)
    frame.output(current)


def _normed(frame: Frame, layer: Layer, source: Tensor, name: str) -> Tensor:
    """A norm whose weight has no suffix in its name."""
    weight = frame.weight(layer, name) or frame.weight(layer, f"{name}.weight")
    return frame.normed(source, weight, None, layer.place)


def _attention(frame: Frame, layer: Layer, source: Tensor, cache: Cache, positions: Tensor) -> Tensor:
    graph = frame.graph
    q, k, v = project(frame, layer, source, heads_of(layer))
    q = graph.rope(frame.norm(q, layer, "attn_q_norm"), positions)
    k = graph.rope(frame.norm(k, layer, "attn_k_norm"), positions) if k is not None else None
    return attend(frame, layer, cache, Qkv(q, k, v), v_first=True)


def _mixer(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    n_heads = max(1, frame.number("ssm.time_step_rank", 1))
    kernel = matrix(frame, layer, "ssm_conv1d.weight", 4, frame.number("ssm.inner_size", 1))
    inner, n_state = kernel.ne[1], max(1, frame.number("ssm.state_size", 1))
    head, rank = inner // n_heads, matrix(frame, layer, "ssm_dt.weight", 64, n_heads).ne[0]
    state = load(frame, layer, states, max(0, kernel.ne[0] - 1) * inner)
    both = frame.linear(by_sequence(frame, source), layer, "ssm_in")
    both = graph.cont(graph.permute(both, 0, 2, 1, 3), 2 * head, n_heads, tokens, sequences)
    x = graph.cont(graph.part(both, head, n_heads, tokens, sequences), inner, tokens, sequences)
    gate = graph.part(both, head, n_heads, tokens, sequences)
    x = graph.unary(convolved(frame, layer, state, graph.transpose(x), kernel))
    made = frame.linear(x, layer, "ssm_x")
    b = _normed(frame, layer, graph.part(made, n_state, tokens, sequences), "ssm_b_norm")
    c = _normed(frame, layer, graph.part(made, n_state, tokens, sequences), "ssm_c_norm")
    step = _normed(frame, layer, graph.part(made, rank, tokens, sequences), "ssm_dt_norm")
    step = frame.linear(step, layer, "ssm_dt")
    decay = graph.view(matrix(frame, layer, "ssm_a", n_heads), 1, n_heads)
    x = heads_in(frame, x, head, n_heads)
    b, c = heads_in(frame, b, n_state, 1), heads_in(frame, c, n_state, 1)
    scanned = scan(frame, layer, states, (x, step, decay, b, c), (n_state, head, n_heads))
    store(frame, layer, graph.view(scanned, n_heads * head * n_state * sequences))
    y = graph.view(scanned, head, n_heads, tokens, sequences)
    y = graph.add(y, graph.mul(x, graph.view(matrix(frame, layer, "ssm_d", n_heads), 1, n_heads)))
    y = graph.gated(graph.cont(gate), y)
    result = frame.linear(graph.view(y, head * n_heads, tokens, sequences), layer, "ssm_out")
    return graph.view(result, result.ne[0], tokens * sequences)
