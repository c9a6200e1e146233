"""Delta attention with a gate for each channel beside latent attention: Kimi Linear and BailingMoE 3.

Source: src/models/{kimi-linear,bailingmoe3}.cpp. Of Kimi Linear the engine reserves its last graph for one sequence;
here all slots are in it, which comes to the same size.
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

__all__ = ["bailingmoe3", "kimi_linear"]


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


def bailingmoe3(frame: Frame) -> None:
    """Its latent attention rotates and has a gate for each head; rows are picked after the last norm."""
    graph = frame.graph
    current = frame.embed()
    states, caches = states_of(frame), caches_of(frame)
    positions, out_ids = frame.positions(), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if "ssm_conv1d_q.weight" in layer.shapes:
            mixed = _delta_attention(frame, layer, states, normed)
        else:
            mixed = _gated_latent_attention(frame, layer, caches.of(layer), normed, positions)
        residual = graph.add(mixed, current)
        normed = frame.norm(residual, layer, "ffn_norm")
        fed = mixture(frame, layer, normed, normalised=frame.has("expert_weights_norm"))
        current = graph.add(fed, residual)
    frame.output(current, rows=out_ids)


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
    is_low_rank = "ssm_f_b.weight" in layer.shapes
    gate = graph.add(_gate(frame, layer, source, "f"), matrix(frame, layer, "ssm_dt.bias", inner))
    gate = graph.unary(gate) if is_low_rank else gate
    decay = graph.view(matrix(frame, layer, "ssm_a", 1, n_heads), 1, n_heads)
    gate = graph.mul(graph.view(gate, head, n_heads, tokens * sequences), decay)
    gate = gate if is_low_rank else graph.scale(graph.unary(gate))
    gate = graph.view(gate, head, n_heads, tokens, sequences)
    beta = graph.unary(graph.view(frame.linear(source, layer, "ssm_beta"), 1, n_heads, tokens, sequences))
    state = graph.view(load(frame, layer, states, head * inner), head, head, n_heads, sequences)
    said = delta_step(frame, layer, (unit_norm(frame, q), unit_norm(frame, k), v, gate, beta, state))
    said = graph.view(graph.cont(said), head, n_heads, tokens * sequences)
    opening = _gate(frame, layer, source, "g")
    opening = graph.unary(graph.view(opening, head, n_heads, tokens * sequences))
    gated = graph.mul(frame.norm(said, layer, "ssm_norm"), opening)
    return frame.linear(graph.cont(gated, inner, tokens * sequences), layer, "attn_output")


def _gate(frame: Frame, layer: Layer, source: Tensor, name: str) -> Tensor:
    """From one matrix or two narrow ones."""
    made = frame.graph.mul_mat(matrix(frame, layer, f"ssm_{name}_a.weight", source.ne[0], source.ne[0]), source)
    return frame.linear(made, layer, f"ssm_{name}_b") if f"ssm_{name}_b.weight" in layer.shapes else made


def _convolution(frame: Frame, layer: Layer, before: Tensor, read: tuple[Tensor, Tensor], name: str) -> Tensor:
    """Q, K or V after its own convolution."""
    graph, (source, kernel) = frame.graph, read
    made = by_sequence(frame, frame.linear(source, layer, f"attn_{name}"))
    flat = graph.view(kernel, kernel.ne[0], kernel.ne[1] * kernel.ne[2])
    convolution = convolved(frame, layer, before, graph.transpose(made), flat)
    return graph.unary(graph.view(convolution, flat.ne[1], frame.tokens))


def _gated_latent_attention(frame: Frame, layer: Layer, cache: Cache, source: Tensor, positions: Tensor) -> Tensor:
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q, packed, rest = _made(frame, layer, source)
    q_rest = graph.rope(graph.part(q, sizes.rotated, sizes.heads, tokens), positions)
    rest = graph.rope(rest, positions)
    plain = frame.norm(graph.part(packed, sizes.rank, tokens), layer, "attn_kv_a_norm")
    mixed = _absorbed(frame, layer, cache, (q, q_rest, plain, rest))
    opening = graph.view(frame.linear(source, layer, "attn_gate"), 1, sizes.heads, tokens)
    mixed = graph.mul(graph.view(mixed, sizes.v, sizes.heads, tokens), graph.unary(opening))
    return frame.linear(graph.cont(mixed, sizes.v * sizes.heads, tokens), layer, "attn_output")


def _made(frame: Frame, layer: Layer, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, the row that is cached with all that belongs to it, and its part that others rotate."""
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    if "attn_q_a.weight" in layer.shapes:
        short = frame.norm(frame.linear(source, layer, "attn_q_a"), layer, "attn_q_a_norm")
        q = frame.linear(short, layer, "attn_q_b")
    else:
        q = frame.linear(source, layer, "attn_q")
    packed = frame.linear(source, layer, "attn_kv_a_mqa")
    row = packed.strides[1]
    rest = graph.view(packed, sizes.rotated, 1, tokens, nb=(F32, row, row, row * tokens))
    return graph.view(q, sizes.plain + sizes.rotated, sizes.heads, tokens), packed, rest


def _latent_attention(frame: Frame, layer: Layer, cache: Cache, source: Tensor) -> Tensor:
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q, packed, rest = _made(frame, layer, source)
    plain = frame.norm(graph.part(packed, sizes.rank, tokens), layer, "attn_kv_a_norm")
    if "attn_k_b.weight" not in layer.shapes:
        return _unpacked(frame, layer, cache, (q, plain, rest))
    q_rest = graph.part(q, sizes.rotated, sizes.heads, tokens)
    return frame.linear(_absorbed(frame, layer, cache, (q, q_rest, plain, rest)), layer, "attn_output")


def _absorbed(frame: Frame, layer: Layer, cache: Cache, made: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Attention over cached rows: `made` are Q, its second part, and both parts of the row."""
    graph, sizes, tokens = frame.graph, sizes_of(frame, layer), frame.tokens
    q, q_rest, plain, rest = made
    q_plain = graph.permute(graph.part(q, sizes.plain, sizes.heads, tokens), 0, 2, 1, 3)
    brought = graph.permute(frame.linear(q_plain, layer, "attn_k_b"), 0, 2, 1, 3)
    q = graph.concat(brought, q_rest, 0)
    v = graph.view(plain, sizes.rank, 1, tokens)
    k = graph.concat(v, rest, 0)
    for tensor in (q, v, k):
        graph.expand(tensor)
    rows = graph.view(k, k.ne[0], tokens)
    graph.expand(graph.set_rows(graph.cache(layer.place, rows.ne[0], 1), rows, cache.k_ids))
    return cached(frame, layer, cache, q, sizes.rank)


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
