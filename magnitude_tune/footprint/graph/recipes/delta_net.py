"""Gated delta nets beside gated attention: Qwen3-Next and Qwen3.5, dense or with experts.

Source: src/models/{delta-net-base,qwen3next,qwen35,qwen35moe}.cpp. The delta net is one operation: every backend
whose kernels are known here has it.
"""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.footprint.graph.attention import Qkv, attended, heads_of
from magnitude_tune.footprint.graph.feed_forward import Routing, dense, experts, used_experts
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.state import (
    States,
    by_sequence,
    convolved,
    heads_in,
    load,
    matrix,
    states_of,
    store,
)
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["delta_step", "qwen3next", "qwen35", "unit_norm"]


class _Heads(NamedTuple):
    """Heads of keys and of values, and the elements of one of each."""

    keys: int
    values: int
    key: int
    value: int


def qwen3next(frame: Frame) -> None:
    """Beta and alpha come from one matrix; keys are repeated for the heads of values."""
    _build(frame, is_next=True)


def qwen35(frame: Frame) -> None:
    """Beta and alpha have a matrix each; the delta net itself repeats keys."""
    _build(frame, is_next=False)


def _build(frame: Frame, *, is_next: bool) -> None:
    graph = frame.graph
    current = frame.embed()
    states, caches = states_of(frame), caches_of(frame)
    positions, out_ids = frame.positions(1 if is_next else 4), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        graph.expand(normed)
        if "ssm_conv1d.weight" in layer.shapes:
            mixed = _linear_attention(frame, layer, states, normed, is_next=is_next)
        else:
            mixed = _attention(frame, layer, normed, caches.of(layer), positions)
        residual = graph.add(mixed, current)
        normed = frame.norm(residual, layer, "post_attention_norm")
        current = graph.add(_feed_forward(frame, layer, normed), residual)
    frame.output(current, rows=out_ids)


def unit_norm(frame: Frame, source: Tensor) -> Tensor:
    """The L2 norm, made of a root mean square norm and a factor."""
    return frame.graph.scale(frame.graph.rms_norm(source))


def delta_step(frame: Frame, layer: Layer, operands: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """The delta rule over the micro batch; the new state is written back.

    Args:
        frame: the graph.
        layer: the block.
        operands: q, k, v, gate, beta, and the state [size, size, heads, sequences].
    """
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    size, n_heads = operands[2].ne[0], operands[2].ne[1]
    result = graph.op("gated_delta_net", (size * n_heads, tokens * sequences + size * sequences), *operands)
    said = graph.view(result, size, n_heads, tokens, sequences)
    store(frame, layer, graph.view(result, size, size, n_heads, sequences))
    return said


def _linear_attention(frame: Frame, layer: Layer, states: States, source: Tensor, *, is_next: bool) -> Tensor:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    heads = _heads(frame, layer)
    kernel = matrix(frame, layer, "ssm_conv1d.weight", 4, 2 * heads.keys * heads.key + heads.values * heads.value)
    mixed, z = _projected(frame, layer, source, heads)
    beta, alpha = _beta_alpha(frame, layer, source, heads, is_next=is_next)
    alpha = graph.unary(graph.add(alpha, matrix(frame, layer, "ssm_dt.bias", heads.values)))
    gate = graph.mul(alpha, matrix(frame, layer, "ssm_a", heads.values))
    gate = graph.view(gate, 1, heads.values, tokens, sequences)
    before = load(frame, layer, states, max(0, kernel.ne[0] - 1) * kernel.ne[1])
    made = convolved(frame, layer, before, graph.transpose(mixed), kernel)
    state = load(frame, layer, states, heads.value * heads.value * heads.values)
    state = graph.view(state, heads.value, heads.value, heads.values, sequences)
    made = graph.unary(made)
    q = unit_norm(frame, heads_in(frame, made, heads.key, heads.keys))
    k = unit_norm(frame, heads_in(frame, made, heads.key, heads.keys))
    v = heads_in(frame, made, heads.value, heads.values)
    if is_next and heads.keys != heads.values:
        q, k = _repeated(frame, q, heads), _repeated(frame, k, heads)
    said = delta_step(frame, layer, (q, k, v, gate, beta, state))
    z = graph.view(z, heads.value, heads.values, tokens, sequences)
    gated = graph.mul(frame.norm(said, layer, "ssm_norm"), graph.unary(z))
    result = frame.linear(graph.view(gated, heads.value * heads.values, tokens, sequences), layer, "ssm_out")
    return graph.view(result, result.ne[0], tokens * sequences)


def _heads(frame: Frame, layer: Layer) -> _Heads:
    values = max(1, frame.number("ssm.time_step_rank", 1))
    inner = matrix(frame, layer, "ssm_out.weight", frame.number("ssm.inner_size", 1)).ne[0]
    key = max(1, frame.number("ssm.state_size", 1))
    return _Heads(max(1, frame.number("ssm.group_count", 1)), values, key, max(1, inner // values))


def _projected(frame: Frame, layer: Layer, source: Tensor, heads: _Heads) -> tuple[Tensor, Tensor]:
    """Queries, keys and values side by side [width, tokens, sequences], and the output's gate."""
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    if "ssm_in.weight" not in layer.shapes or "attn_qkv.weight" in layer.shapes:
        mixed = by_sequence(frame, frame.linear(source, layer, "attn_qkv"))
        return mixed, frame.linear(source, layer, "attn_gate")
    value = heads.value * (heads.values // heads.keys)
    both = frame.linear(source, layer, "ssm_in")
    both = graph.view(both, 2 * heads.key + 2 * value, heads.keys, tokens, sequences)
    z = graph.cont(graph.part(both, value, heads.keys, tokens, sequences))
    parts = [
        graph.cont(graph.part(both, width, heads.keys, tokens, sequences), width * heads.keys, tokens, sequences)
        for width in (heads.key, heads.key, value)
    ]
    return graph.concat(graph.concat(parts[0], parts[1], 0), parts[2], 0), z


def _beta_alpha(frame: Frame, layer: Layer, source: Tensor, heads: _Heads, *, is_next: bool) -> tuple[Tensor, Tensor]:
    """How much of each token is written, and what decides how much of the state stays."""
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    if not is_next:
        beta = graph.view(frame.linear(source, layer, "ssm_beta"), 1, heads.values, tokens, sequences)
        alpha = graph.view(frame.linear(source, layer, "ssm_alpha"), heads.values, tokens, sequences)
        return graph.unary(beta), alpha
    share = max(1, heads.values // heads.keys)
    both = graph.view(frame.linear(source, layer, "ssm_ba"), 2 * share, heads.keys, tokens, sequences)
    beta = graph.unary(graph.cont(graph.part(both, share, heads.keys, tokens, sequences)))
    alpha = graph.cont(graph.part(both, share, heads.keys, tokens, sequences), heads.values, tokens, sequences)
    return graph.view(beta, 1, heads.values, tokens, sequences), alpha


def _repeated(frame: Frame, source: Tensor, heads: _Heads) -> Tensor:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    share = max(1, heads.values // heads.keys)
    narrow = graph.view(source, heads.key, 1, heads.keys, tokens * sequences)
    wide = graph.op("repeat", (heads.key, share, heads.keys, tokens * sequences), narrow)
    return graph.view(wide, heads.key, heads.keys * share, tokens, sequences)


def _attention(frame: Frame, layer: Layer, source: Tensor, cache: Cache, positions: Tensor) -> Tensor:
    """Attention whose queries come with a gate."""
    graph, tokens, heads = frame.graph, frame.tokens, heads_of(layer)
    both = frame.linear(source, layer, "attn_q")
    head, row = F32 * 2 * heads.k, F32 * 2 * heads.k * heads.queries
    q, gate = (graph.view(both, heads.k, heads.queries, tokens, nb=(F32, head, row, row * tokens)) for _ in range(2))
    k = graph.view(frame.linear(source, layer, "attn_k"), heads.k, heads.cached, tokens)
    v = graph.view(frame.linear(source, layer, "attn_v"), heads.v, heads.cached, tokens)
    q = graph.rope(frame.norm(q, layer, "attn_q_norm"), positions)
    k = graph.rope(frame.norm(k, layer, "attn_k_norm"), positions)
    mixed = attended(frame, layer, cache, Qkv(q, k, v), v_first=True)
    opening = graph.unary(graph.cont(gate, heads.k * heads.queries, tokens))
    return frame.linear(graph.mul(mixed, opening), layer, "attn_output")


def _feed_forward(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    graph = frame.graph
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, source)
    used = used_experts(frame, layer)
    mixed = experts(frame, layer, source, Routing(used, scaled=frame.has("expert_weights_scale")))
    if "ffn_up_shexp.weight" not in layer.shapes:
        return mixed
    shared = dense(frame, layer, source, "_shexp")
    if weight := frame.weight(layer, "ffn_gate_inp_shexp.weight"):
        shared = graph.mul(shared, graph.unary(graph.mul_mat(weight, source)))
    return graph.add(mixed, shared)
