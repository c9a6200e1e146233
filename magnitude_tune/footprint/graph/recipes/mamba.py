"""Selective state spaces: mamba and mamba2, alone and beside attention.

Source: src/models/{mamba-base,mamba,mamba2,jamba,granite-hybrid,falcon-h1,nemotron-h}.cpp.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.footprint.graph.attention import Qkv, attend, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import Routing, dense, experts, used_experts
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import Style, caches_of, feed_forward
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

__all__ = ["falcon_h1", "granite_hybrid", "jamba", "mamba", "mamba2_mixer", "mamba_mixer", "nemotron_h"]

_SINCE: Final = (21, 0)
"""Builds up to ggml 0.20 reshape what mamba2 made, and read mamba's time step where it lies."""


def mamba(frame: Frame) -> None:
    """Models of nothing but mamba or mamba2 blocks."""
    graph = frame.graph
    current = frame.embed()
    states, out_ids = states_of(frame), frame.output_ids()
    for layer in frame.layers:
        mixed = _mixer(frame, layer, states, frame.norm(current, layer, "attn_norm"))
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        current = graph.add(mixed, current)
    frame.output(current)


def jamba(frame: Frame) -> None:
    """Mamba or attention, then a dense network or a mixture of experts."""
    graph = frame.graph
    current = frame.embed()
    states, caches, out_ids = states_of(frame), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if _is_recurrent(layer):
            mixed = _mixer(frame, layer, states, normed)
        else:
            q, k, v = project(frame, layer, normed, heads_of(layer))
            mixed = attend(frame, layer, caches.of(layer), Qkv(q, k, v), v_first=True)
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(current, mixed)
        fed = feed_forward(frame, layer, frame.norm(residual, layer, "ffn_norm"), Style(normalised=False))
        current = graph.add(residual, fed)
    frame.output(current)


def granite_hybrid(frame: Frame) -> None:
    """Mamba2 or attention, then a dense network or a mixture with a shared expert."""
    graph = frame.graph
    current = frame.embed(scaled=frame.has("embedding_scale"))
    states, caches, out_ids = states_of(frame), caches_of(frame), frame.output_ids()
    positions = frame.positions() if frame.number("rope.scaling.finetuned", 1) else None
    scaled = frame.has("residual_scale")
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if _is_recurrent(layer):
            mixed = _mixer(frame, layer, states, normed)
        else:
            mixed = _attention(frame, layer, normed, caches.of(layer), positions)
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        residual = graph.add(graph.scale(mixed) if scaled else mixed, current)
        fed = feed_forward(frame, layer, frame.norm(residual, layer, "ffn_norm"), Style())
        current = graph.add(graph.scale(fed) if scaled else fed, residual)
    frame.output(current, scaled=frame.has("logit_scale"))


def falcon_h1(frame: Frame) -> None:
    """Attention and mamba2 side by side in each block."""
    graph = frame.graph
    current = frame.embed()
    positions, states, caches, out_ids = frame.positions(), states_of(frame), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        attended = _attention(frame, layer, normed, caches.of(layer), positions)
        mixed = _mixer(frame, layer, states, frame.norm(current, layer, "attn_norm"))
        residual = graph.add(graph.add(attended, mixed), current)
        if layer.is_last:
            residual = graph.get_rows(residual, out_ids)
        fed = dense(frame, layer, frame.norm(residual, layer, "ffn_norm"))
        current = graph.add(fed, residual)
    frame.output(current)


def nemotron_h(frame: Frame) -> None:
    """Mamba2, attention, a dense network or a mixture of experts: one of them a block."""
    graph = frame.graph
    current = frame.embed()
    states, caches, out_ids = states_of(frame), caches_of(frame), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if _is_recurrent(layer):
            mixed = _mixer(frame, layer, states, normed)
        elif "attn_output.weight" in layer.shapes:
            mixed = _attention(frame, layer, normed, caches.of(layer), None)
        else:
            mixed = _latent_experts(frame, layer, normed)
        current = graph.add(mixed, current)
    frame.output(current, rows=out_ids)


def _latent_experts(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    """A network of squared activations, or experts of narrower inputs beside a shared one of the full width."""
    graph = frame.graph
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, source, squared=True)
    down, up = frame.weight(layer, "ffn_latent_down.weight"), frame.weight(layer, "ffn_latent_up.weight")
    narrow = graph.mul_mat(down, source) if down else source
    routing = Routing(
        used=used_experts(frame, layer),
        normalised=frame.has("expert_weights_norm"),
        scaled=frame.has("expert_weights_scale"),
    )
    mixed = experts(frame, layer, narrow, routing, scores=frame.linear(source, layer, "ffn_gate_inp"))
    mixed = graph.mul_mat(up, mixed) if up else mixed
    return graph.add(mixed, dense(frame, layer, source, "_shexp", squared=True))


def mamba_mixer(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    """The first kind: one decay for each channel and element of state."""
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    kernel = matrix(frame, layer, "ssm_conv1d.weight", 4, 2 * source.ne[0])
    inner = kernel.ne[1]
    decay = matrix(frame, layer, "ssm_a", 16, inner)
    n_state, rank = decay.ne[0], matrix(frame, layer, "ssm_dt.weight", 1, inner).ne[0]
    state = load(frame, layer, states, max(0, kernel.ne[0] - 1) * inner)
    both = frame.linear(by_sequence(frame, source), layer, "ssm_in")
    x = graph.part(both, inner, tokens, sequences)
    gate = graph.part(both, inner, tokens, sequences)
    x = convolved(frame, layer, state, graph.transpose(x), kernel)
    if bias := frame.weight(layer, "ssm_conv1d.bias"):
        x = graph.add(x, bias)
    x = graph.unary(x)
    made = frame.linear(x, layer, "ssm_x")
    step = graph.part(made, rank, tokens, sequences)
    b = heads_in(frame, made, n_state, 1)
    c = heads_in(frame, made, n_state, 1)
    if "ssm_dt_norm.weight" in layer.shapes or frame.has("ssm.dt_b_c_rms"):
        step = frame.norm(step, layer, "ssm_dt_norm")
        b, c = frame.norm(b, layer, "ssm_b_norm"), frame.norm(c, layer, "ssm_c_norm")
    elif frame.options.ggml >= _SINCE:
        step = graph.cont(step)
    step = frame.linear(step, layer, "ssm_dt")
    heads = graph.view(x, 1, inner, tokens, sequences)
    scanned = scan(frame, layer, states, (heads, step, decay, b, c), (n_state, 1, inner))
    store(frame, layer, graph.view(scanned, n_state * inner * sequences))
    y = graph.view(scanned, inner, tokens, sequences)
    y = graph.add(y, graph.mul(x, matrix(frame, layer, "ssm_d", inner)))
    y = graph.gated(graph.cont(gate), y)
    result = frame.linear(y, layer, "ssm_out")
    return graph.view(result, result.ne[0], tokens * sequences)


def mamba2_mixer(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    """The second kind: one decay for each head."""
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    n_heads = matrix(frame, layer, "ssm_a", 1, max(1, frame.number("ssm.time_step_rank", 1))).ne[1]
    inner = matrix(frame, layer, "ssm_out.weight", frame.number("ssm.inner_size", 1)).ne[0]
    n_groups, n_state = max(1, frame.number("ssm.group_count", 1)), max(1, frame.number("ssm.state_size", 1))
    kernel = matrix(frame, layer, "ssm_conv1d.weight", 4, inner + 2 * n_groups * n_state)
    head = inner // max(1, n_heads)
    state = load(frame, layer, states, max(0, kernel.ne[0] - 1) * kernel.ne[1])
    made = by_sequence(frame, frame.linear(source, layer, "ssm_in"))
    gate = heads_in(frame, made, head, n_heads)
    xbc = graph.part(made, kernel.ne[1], tokens, sequences)
    step = graph.part(made, n_heads, tokens, sequences)
    xbc = convolved(frame, layer, state, graph.transpose(xbc), kernel)
    if bias := frame.weight(layer, "ssm_conv1d.bias"):
        xbc = graph.add(xbc, bias)
    xbc = graph.unary(xbc)
    x = heads_in(frame, xbc, head, n_heads)
    b = heads_in(frame, xbc, n_state, n_groups)
    c = heads_in(frame, xbc, n_state, n_groups)
    step = graph.add(graph.cont(step), matrix(frame, layer, "ssm_dt.bias", n_heads))
    decay = matrix(frame, layer, "ssm_a", 1, n_heads)
    scanned = scan(frame, layer, states, (x, step, decay, b, c), (n_state, head, n_heads))
    store(frame, layer, graph.view(scanned, n_state * inner, sequences))
    y = graph.view(scanned, head, n_heads, tokens, sequences)
    y = graph.add(y, graph.mul(x, matrix(frame, layer, "ssm_d", 1, n_heads)))
    y = graph.gated(graph.cont(gate), y)
    if "ssm_norm.weight" in layer.shapes:
        y = graph.view(y, inner // n_groups, n_groups, tokens, sequences)
        y = frame.norm(y, layer, "ssm_norm")
    result = frame.linear(graph.view(y, inner, tokens * sequences), layer, "ssm_out")
    return result if frame.options.ggml >= _SINCE else graph.view(result, result.ne[0], tokens * sequences)


def _mixer(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    """Of whichever kind the block's tensors are."""
    kind = mamba_mixer if "ssm_x.weight" in layer.shapes else mamba2_mixer
    return kind(frame, layer, states, source)


def _is_recurrent(layer: Layer) -> bool:
    return "ssm_in.weight" in layer.shapes


def _attention(frame: Frame, layer: Layer, source: Tensor, cache: Cache, positions: Tensor | None) -> Tensor:
    q, k, v = project(frame, layer, source, heads_of(layer))
    if positions is not None and k is not None:
        q, k = frame.graph.rope(q, positions), frame.graph.rope(k, positions)
    return attend(frame, layer, cache, Qkv(q, k, v), v_first=True)
