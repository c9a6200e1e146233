"""Decoders of attention and feed-forward blocks: most models there are.

What a block does follows from the tensors it has (fused or single Q, K, V; norms of Q and K; norms after attention
and feed-forward; gates; experts; shared experts). What tensors do not tell is in `Style`.
Source: src/models/*.cpp.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from magnitude_tune.footprint.graph.attention import Qkv, attend, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import Routing, dense, experts
from magnitude_tune.footprint.graph.frame import Cache, Frame, Layer
from magnitude_tune.footprint.graph.tensors import Tensor

__all__ = ["MAX_EXPERTS", "Caches", "Style", "block", "caches_of", "transformer"]


MAX_EXPERTS: Final = 1024


class Style(NamedTuple):
    """What a class of transformers does that its tensors do not show.

    Args:
        layer_norm: norms subtract the mean: they are never done in place.
        parallel: attention and feed-forward read the same norm and are added together.
        rope: which blocks rotate Q and K.
        embed_scaled: embeddings are multiplied by a number.
        q_scaled: Q is multiplied by a number after rotation.
        late_rows: the wanted rows are picked after all blocks, not within the last one.
        softmax_late, normalised: see `Routing`.
        logits_scaled: logits are multiplied by a number.
        squared: the feed-forward activation is relu squared.
    """

    layer_norm: bool = False
    parallel: bool = False
    rope: Literal["all", "sliding", "none"] = "all"
    embed_scaled: bool = False
    q_scaled: bool = False
    late_rows: bool = False
    softmax_late: bool = False
    normalised: bool = True
    logits_scaled: bool = False
    squared: bool = False


class Caches(NamedTuple):
    """Inputs of the full cache, which is always there, and of the sliding one where a block has it."""

    full: Cache
    sliding: Cache | None

    def of(self, layer: Layer) -> Cache:
        """The cache that a block reads."""
        return self.sliding if layer.slides and self.sliding else self.full


def caches_of(frame: Frame) -> Caches:
    """Inputs for the caches of the frame's blocks.

    A model with sliding blocks has both caches, even where no block uses the full one.
    """
    attending = [layer for layer in frame.layers if layer.kv.k]
    k = max((heads_of(layer).k for layer in attending), default=1)
    widest_v = max((layer.kv.v for layer in attending), default=1)
    slides = any(layer.slides for layer in frame.layers)
    return Caches(
        full=frame.cache_inputs(frame.dims.full_cells, k, widest_v),
        sliding=frame.cache_inputs(frame.dims.sliding_cells, k, widest_v) if slides else None,
    )


def transformer(frame: Frame, style: Style) -> None:
    """The whole graph."""
    graph = frame.graph
    current = frame.embed(scaled=style.embed_scaled)
    positions = frame.positions()
    caches = caches_of(frame)
    out_ids = frame.output_ids()
    for layer in frame.layers:
        current = block(frame, layer, current, style, (positions, caches, None if style.late_rows else out_ids))
    if style.late_rows:
        current.is_output = True
        current = graph.get_rows(current, out_ids)
    frame.output(
        current,
        layer_norm=style.layer_norm,
        scaled=style.logits_scaled,
        capped=frame.has("final_logit_softcapping"),
    )


def block(
    frame: Frame, layer: Layer, source: Tensor, style: Style, inputs: tuple[Tensor, Caches, Tensor | None]
) -> Tensor:
    """One block: attention, then the feed-forward network."""
    graph = frame.graph
    positions, caches, out_ids = inputs
    normed = frame.norm(source, layer, "attn_norm", layer_norm=style.layer_norm)
    attended = _attention(frame, layer, normed, style, (positions, caches))
    if layer.is_last and out_ids is not None:
        attended, source = graph.get_rows(attended, out_ids), graph.get_rows(source, out_ids)
        normed = graph.get_rows(normed, out_ids) if style.parallel else normed
    if style.parallel:
        return graph.add(graph.add(feed_forward(frame, layer, normed, style), source), attended)
    has_ffn_norm = "ffn_norm.weight" in layer.shapes
    if has_ffn_norm and "post_attention_norm.weight" in layer.shapes:
        attended = frame.norm(attended, layer, "post_attention_norm", layer_norm=style.layer_norm)
    residual = graph.add(attended, source)
    name = "ffn_norm" if has_ffn_norm else "post_attention_norm"
    normed = frame.norm(residual, layer, name, layer_norm=style.layer_norm)
    fed = feed_forward(frame, layer, normed, style)
    if post := frame.weight(layer, "post_ffw_norm.weight"):
        fed = frame.normed(fed, post, None, None, layer_norm=style.layer_norm)
    return graph.add(fed, residual)


def _attention(frame: Frame, layer: Layer, source: Tensor, style: Style, inputs: tuple[Tensor, Caches]) -> Tensor:
    positions, caches = inputs
    made = project(frame, layer, source, heads_of(layer))
    q, k = _normed(frame, layer, made.q, "attn_q_norm"), made.k
    rotates = style.rope == "all" or (style.rope == "sliding" and layer.slides)
    q = frame.graph.rope(q, positions) if rotates else q
    if k is not None:
        k = _normed(frame, layer, k, "attn_k_norm")
        k = frame.graph.rope(k, positions) if rotates else k
    q = frame.graph.scale(q) if style.q_scaled else q
    v_first = caches.sliding is None
    return attend(frame, layer, caches.of(layer), Qkv(q, k, made.v), v_first=v_first)


def _normed(frame: Frame, layer: Layer, source: Tensor, name: str) -> Tensor:
    """Norm of Q or K, where the block has one."""
    return frame.norm(source, layer, name) if f"{name}.weight" in layer.shapes else source


def feed_forward(frame: Frame, layer: Layer, source: Tensor, style: Style) -> Tensor:
    """A dense network or a mixture with or without a shared expert."""
    graph = frame.graph
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, source, squared=style.squared)
    routing = Routing(
        used=min(max(1, frame.number_at("expert_used_count", layer.block, 1)), MAX_EXPERTS),
        softmax_late=style.softmax_late,
        normalised=style.normalised,
        scaled=frame.has("expert_weights_scale"),
        groups=frame.number("expert_group_count"),
        groups_used=frame.number("expert_group_used_count"),
    )
    mixed = experts(frame, layer, source, routing)
    if "ffn_up_shexp.weight" not in layer.shapes:
        return mixed
    if gate := frame.weight(layer, "ffn_gate_inp_shexp.weight"):
        scores = graph.mul_mat(graph.view(gate, gate.ne[0], 1) if gate.ne[1] != 1 else gate, source)
        opening = graph.like("div", graph.unary(scores), scores)
        return graph.add(mixed, graph.mul(dense(frame, layer, source, "_shexp"), opening))
    return graph.add(mixed, dense(frame, layer, source, "_shexp"))
