"""Short gated convolutions between attention blocks: LFM2, dense or with experts.

Source: src/models/{lfm2,lfm2moe}.cpp.
"""

from __future__ import annotations

from magnitude_tune.footprint.graph.attention import Qkv, attend, heads_of, project
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import Style, caches_of, feed_forward
from magnitude_tune.footprint.graph.state import States, by_sequence, convolved, load, matrix, states_of
from magnitude_tune.footprint.graph.tensors import Tensor

__all__ = ["lfm2"]


def lfm2(frame: Frame) -> None:
    """The whole graph."""
    graph = frame.graph
    current = frame.embed()
    states, caches = states_of(frame), caches_of(frame)
    positions, out_ids = frame.positions(), frame.output_ids()
    for layer in frame.layers:
        normed = frame.norm(current, layer, "attn_norm")
        if "shortconv.in_proj.weight" in layer.shapes:
            mixed = _convolution(frame, layer, states, normed)
        else:
            mixed = _attention(frame, layer, normed, caches.of(layer), (positions, caches.sliding is None))
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        current = graph.add(current, mixed)
        current = graph.add(current, feed_forward(frame, layer, frame.norm(current, layer, "ffn_norm"), Style()))
    frame.output(current)


def _convolution(frame: Frame, layer: Layer, states: States, source: Tensor) -> Tensor:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    made = frame.linear(by_sequence(frame, source), layer, "shortconv.in_proj")
    width = made.ne[0] // 3
    b, c, x = (graph.part(made, width, tokens, sequences) for _ in range(3))
    gated = graph.transpose(graph.mul(b, x))
    kernel = matrix(frame, layer, "shortconv.conv.weight", 3, width)
    state = load(frame, layer, states, max(0, kernel.ne[0] - 1) * width)
    y = graph.mul(c, convolved(frame, layer, state, gated, kernel))
    y = frame.linear(y, layer, "shortconv.out_proj")
    return graph.view(y, y.ne[0], tokens * sequences)


def _attention(frame: Frame, layer: Layer, source: Tensor, cache: Cache, at: tuple[Tensor, bool]) -> Tensor:
    positions, v_first = at
    graph = frame.graph
    q, k, v = project(frame, layer, source, heads_of(layer))
    q = graph.rope(frame.norm(q, layer, "attn_q_norm"), positions)
    k = graph.rope(frame.norm(k, layer, "attn_k_norm"), positions) if k is not None else None
    return attend(frame, layer, cache, Qkv(q, k, v), v_first=v_first)
