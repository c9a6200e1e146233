"""Kimi Linear: delta attention with a gate for each channel, and latent attention without rotation.

Source: src/models/kimi-linear.cpp. The engine reserves its last graph for one sequence; here all slots are in it.
"""

from __future__ import annotations

from magnitude_tune.footprint.graph.attention import Qkv, attend
from magnitude_tune.footprint.graph.feed_forward import mixture
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.delta_net import delta_step, unit_norm
from magnitude_tune.footprint.graph.recipes.latent import cached, sizes_of
from magnitude_tune.footprint.graph.recipes.transformer import caches_of
from magnitude_tune.footprint.graph.state import States, by_sequence, convolved, load, matrix, states_of
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["kimi_linear"]


def kimi_linear(frame: Frame) -> None:
    """The whole graph."""
    graph = frame.graph
    current = frame.embed()
    states, caches, out_ids = states_of(frame), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        graph.expand(normed)
        if "ssm_conv1d_q.weight" in layer.shapes:
            mixed = _delta_attention(frame, layer, states, normed)
        else:
            mixed = _latent_attention(frame, layer, caches.of(layer), normed)
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(mixed, current)
        fed = mixture(frame, layer, frame.norm(residual, layer, "ffn_norm"), normalised=True)
        current = graph.add(fed, residual)
    frame.output(current)


def _delta_attention(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    head = max(1, frame.number("kda.head_dim", 1))
    kernels = [matrix(frame, layer, f"ssm_conv1d_{name}.weight", 4, 1, head) for name in "qkv"]
    inner = max(1, kernels[0].ne[1] * kernels[0].ne[2])
    n_heads = max(1, inner // head)
    before = load(frame, layer, states, 3 * max(0, kernels[0].ne[0] - 1) * inner)
    q, k, v = (
        _convolution(frame, layer, before, (source, kernel), name) for kernel, name in zip(kernels, "qkv", strict=True)
    )
    q, k, v = (graph.view(tensor, head, n_heads, tokens, sequences) for tensor in (q, k, v))
    gate = frame.linear(frame.linear(source, layer, "ssm_f_a"), layer, "ssm_f_b")
    gate = graph.unary(graph.add(gate, matrix(frame, layer, "ssm_dt.bias", inner)))
    decay = graph.view(matrix(frame, layer, "ssm_a", 1, n_heads), 1, n_heads)
    gate = graph.mul(graph.view(gate, head, n_heads, tokens * sequences), decay)
    gate = graph.view(gate, head, n_heads, tokens, sequences)
    beta = graph.unary(graph.view(frame.linear(source, layer, "ssm_beta"), 1, n_heads, tokens, sequences))
    state = graph.view(load(frame, layer, states, head * inner), head, head, n_heads, sequences)
    said = delta_step(frame, layer, (unit_norm(frame, q), unit_norm(frame, k), v, gate, beta, state))
    said = graph.view(graph.cont(said), head, n_heads, tokens * sequences)
    opening = frame.linear(frame.linear(source, layer, "ssm_g_a"), layer, "ssm_g_b")
    opening = graph.unary(graph.view(opening, head, n_heads, tokens * sequences))
    gated = graph.mul(frame.norm(said, layer, "ssm_norm"), opening)
    return frame.linear(graph.cont(gated, inner, tokens * sequences), layer, "attn_output")


def _convolution(frame: Frame, layer: Layer, before: Tensor, read: tuple[Tensor, Tensor], name: str) -> Tensor:
    """Q, K or V after its own convolution."""
    graph, (source, kernel) = frame.graph, read
    made = by_sequence(frame, frame.linear(source, layer, f"attn_{name}"))
    flat = graph.view(kernel, kernel.ne[0], kernel.ne[1] * kernel.ne[2])
    convolution = convolved(frame, layer, before, graph.transpose(made), flat)
    return graph.unary(graph.view(convolution, flat.ne[1], frame.tokens))


def _latent_attention(frame: Frame, layer: Layer, cache: Cache, source: Tensor) -> Tensor:
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q = graph.view(frame.linear(source, layer, "attn_q"), sizes.plain + sizes.rotated, sizes.heads, tokens)
    packed = frame.linear(source, layer, "attn_kv_a_mqa")
    row = packed.strides[1]
    rest = graph.view(packed, sizes.rotated, 1, tokens, nb=(F32, row, row, row * tokens))
    plain = frame.norm(graph.part(packed, sizes.rank, tokens), layer, "attn_kv_a_norm")
    if "attn_k_b.weight" not in layer.shapes:
        return _unpacked(frame, layer, cache, (q, plain, rest))
    q_plain = graph.permute(graph.part(q, sizes.plain, sizes.heads, tokens), 0, 2, 1, 3)
    brought = graph.permute(frame.linear(q_plain, layer, "attn_k_b"), 0, 2, 1, 3)
    q = graph.concat(brought, graph.part(q, sizes.rotated, sizes.heads, tokens), 0)
    v = graph.view(plain, sizes.rank, 1, tokens)
    k = graph.concat(v, rest, 0)
    for tensor in (q, v, k):
        graph.expand(tensor)
    rows = graph.view(k, k.ne[0], tokens)
    graph.expand(graph.set_rows(graph.cache(layer.place, rows.ne[0], 1), rows, cache.k_ids))
    return frame.linear(cached(frame, layer, cache, q, sizes.rank), layer, "attn_output")


def _unpacked(frame: Frame, layer: Layer, cache: Cache, made: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q, plain, rest = made
    both = frame.linear(plain, layer, "attn_kv_b")
    head = F32 * (sizes.plain + sizes.v)
    row = head * sizes.heads
    k, v = (
        graph.view(both, width, sizes.heads, tokens, nb=(F32, head, row, row * tokens))
        for width in (sizes.plain, sizes.v)
    )
    spread = graph.op("repeat", (sizes.rotated, sizes.heads, tokens), rest)
    return attend(frame, layer, cache, Qkv(q, graph.concat(spread, k, 0), graph.cont(v)), v_first=True)
