"""Decoders with experts: ordinary attention, then a mixture in most blocks.

What a block does follows from its tensors (gates of attention, norms after it and after the experts, shared experts,
router biases); what they do not tell is in `Kind`.
Source: src/models/{llama4,glm4-moe,dots1,bailingmoe,bailingmoe2,ernie4-5-moe,exaone-moe,minimax-m2,grok,dbrx,arctic,
olmoe,hunyuan-moe,mimo2,step35,afmoe,smallthinker,grovemoe,laguna,cohere2moe,hy-v3,deepseek,granite}.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from magnitude_tune.footprint.graph.attention import Heads, Qkv, attended, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import Routing, dense, experts, mixture, routing_of
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import Caches, caches_of
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["KINDS", "Kind", "mixtures"]


class Kind(NamedTuple):
    """What a class of mixtures does that its tensors do not show.

    Args:
        normalised: weights of experts are divided by their sum; None: where the header says so.
        rope: which blocks rotate Q and K; `sliding` is all of them where none slides.
        rope_first: Q and K are rotated, then normed.
        late_rows: the wanted rows are picked after all blocks, not within the last one; `before`: the output's norm.
        residual_first: what goes around a network is added to by it, instead of the other way.
        layer_norm: norms subtract the mean.
        embed_scaled, logits_scaled, residual_scaled, q_scaled: multiplied by a number.
        temperature: queries of blocks that do not rotate are multiplied by a factor of their position.
        parallel: attention and experts read the same norm and are added together.
        early_router: experts are picked by what comes into the block.
        shared_first: the shared expert is computed before the others.
        never_flash: the engine turns flash attention off.
    """

    normalised: bool | None = None
    rope: Literal["all", "sliding"] = "all"
    rope_first: bool = False
    late_rows: Literal["", "before", "after"] = ""
    residual_first: bool = False
    layer_norm: bool = False
    embed_scaled: bool = False
    logits_scaled: bool = False
    residual_scaled: bool = False
    q_scaled: bool = False
    temperature: bool = False
    parallel: bool = False
    early_router: bool = False
    shared_first: bool = False
    never_flash: bool = False


class _Inputs(NamedTuple):
    """Of the whole graph; `wanted` is None where rows are picked after all blocks."""

    positions: Tensor
    caches: Caches
    wanted: Tensor | None
    temperature: Tensor | None


_RMS: Final = "attention.layer_norm_rms_epsilon"
_SUMMED: Final = Kind(normalised=True)
_PLAIN: Final = Kind(normalised=False)

KINDS: Final[Mapping[str, Kind]] = {
    "llama4": Kind(normalised=False, rope="sliding", temperature=True),
    "glm4moe": Kind(),
    "dots1": Kind(),
    "deepseek": _PLAIN,
    "bailingmoe": Kind(),
    "bailingmoe2": Kind(),
    "ernie4_5-moe": _SUMMED,
    "exaone-moe": Kind(rope="sliding"),
    "minimax-m2": _SUMMED,
    "grok": Kind(normalised=True, embed_scaled=True, logits_scaled=True, never_flash=True),
    "dbrx": Kind(normalised=True, layer_norm=True),
    "arctic": _SUMMED,
    "olmoe": _PLAIN,
    "hunyuan-moe": Kind(normalised=True, rope_first=True, shared_first=True),
    "mimo2": _SUMMED,
    "step35": Kind(late_rows="before"),
    "afmoe": Kind(rope="sliding", embed_scaled=True),
    "smallthinker": Kind(normalised=True, rope="sliding", early_router=True),
    "grovemoe": _SUMMED,
    "laguna": Kind(),
    "cohere2moe": Kind(parallel=True, late_rows="after", rope="sliding", logits_scaled=True),
    "hy_v3": Kind(late_rows="after"),
    "phimoe": Kind(normalised=True, q_scaled=True, residual_first=True),
    "granitemoe": Kind(normalised=True, logits_scaled=True, residual_scaled=True),
}
"""By architecture."""


def mixtures(frame: Frame, kind: Kind) -> None:
    """The whole graph."""
    if kind.never_flash:
        frame.options = frame.options._replace(flash_attn=False)
    layer_norm = kind.layer_norm or (kind.parallel and not frame.has(_RMS))
    current = frame.embed(scaled=kind.embed_scaled or frame.scales("embedding_scale"))
    temperature = frame.input(F32, 1, 1, frame.tokens) if kind.temperature else None
    positions, caches, out_ids = frame.positions(), caches_of(frame), frame.output_ids()
    inputs = _Inputs(positions, caches, None if kind.late_rows else out_ids, temperature)
    for layer in frame.layers:
        build = _parallel if kind.parallel else _arctic if "ffn_norm_exps.weight" in layer.shapes else _block
        current = build(frame, layer, current, kind, inputs)
    if kind.late_rows == "before":
        current.is_output = True
        current = frame.graph.get_rows(current, out_ids)
    frame.output(
        current,
        layer_norm=layer_norm,
        scaled=kind.logits_scaled and frame.has("logit_scale"),
        capped=frame.has("final_logit_softcapping"),
        rows=out_ids if kind.late_rows == "after" else None,
    )


def _block(frame: Frame, layer: Layer, source: Tensor, kind: Kind, inputs: _Inputs) -> Tensor:
    graph = frame.graph
    scores = frame.linear(source, layer, "ffn_gate_inp") if kind.early_router else None
    mixed = _attention(frame, layer, source, kind, inputs)
    if layer.is_last and inputs.wanted is not None:
        mixed, source = graph.get_rows(mixed, inputs.wanted), graph.get_rows(source, inputs.wanted)
        scores = graph.get_rows(scores, inputs.wanted) if scores is not None else None
    scaled = kind.residual_scaled and frame.has("residual_scale")
    residual = graph.add(graph.scale(mixed) if scaled else mixed, source)
    fed = _fed(frame, layer, residual, kind, scores)
    for name in ("post_ffw_norm", "layer_output_norm"):
        if f"{name}.weight" in layer.shapes:
            fed = frame.norm(fed, layer, name, layer_norm=kind.layer_norm)
            break
    if kind.residual_first:
        return graph.add(residual, fed)
    return graph.add(graph.scale(fed) if scaled else fed, residual)


def _arctic(frame: Frame, layer: Layer, source: Tensor, kind: Kind, inputs: _Inputs) -> Tensor:
    """A dense network after attention, and experts that read what comes into the block."""
    graph = frame.graph
    mixed = _attention(frame, layer, source, kind, inputs)
    if layer.is_last and inputs.wanted is not None:
        mixed, source = graph.get_rows(mixed, inputs.wanted), graph.get_rows(source, inputs.wanted)
    residual = graph.add(mixed, source)
    fed = graph.add(dense(frame, layer, frame.norm(residual, layer, "ffn_norm")), residual)
    normed = frame.norm(source, layer, "ffn_norm_exps")
    return graph.add(experts(frame, layer, normed, routing_of(frame, layer)), fed)


def _parallel(frame: Frame, layer: Layer, source: Tensor, kind: Kind, inputs: _Inputs) -> Tensor:
    """Attention and experts beside each other, as in cohere2moe."""
    graph = frame.graph
    layer_norm = not frame.has(_RMS)
    normed = frame.norm(source, layer, "attn_norm", layer_norm=layer_norm)
    mixed = frame.linear(_attended(frame, layer, normed, kind, inputs), layer, "attn_output")
    fed = mixture(frame, layer, normed, frame.has("expert_weights_norm"))
    return graph.add(graph.add(fed, source), mixed)


def _attention(frame: Frame, layer: Layer, source: Tensor, kind: Kind, inputs: _Inputs) -> Tensor:
    """With its norms before and after, its gate and the output matrix."""
    normed = frame.norm(source, layer, "attn_norm", layer_norm=kind.layer_norm)
    mixed = _attended(frame, layer, normed, kind, inputs)
    mixed = frame.linear(mixed, layer, "attn_output")
    if kind.residual_scaled or "ffn_norm.weight" not in layer.shapes:
        return mixed
    for name in ("post_attention_norm", "attn_output_norm"):
        if f"{name}.weight" in layer.shapes:
            return frame.norm(mixed, layer, name, layer_norm=kind.layer_norm)
    return mixed


def _attended(frame: Frame, layer: Layer, source: Tensor, kind: Kind, inputs: _Inputs) -> Tensor:
    graph, heads = frame.graph, heads_of(layer)
    made = _made(frame, layer, source, heads)
    rotates = kind.rope == "all" or layer.slides or inputs.caches.sliding is None
    if kind.parallel and "ffn_gate_inp.weight" not in layer.shapes:
        rotates = True
    q = _turned(frame, layer, (made.q, "attn_q_norm"), kind, inputs.positions if rotates else None)
    k = made.k and _turned(frame, layer, (made.k, "attn_k_norm"), kind, inputs.positions if rotates else None)
    if inputs.temperature is not None and not rotates:
        q = graph.mul(q, inputs.temperature)
    q = graph.scale(q) if kind.q_scaled else q
    v_first = inputs.caches.sliding is None
    gate = frame.linear(source, layer, "attn_gate") if "attn_gate.weight" in layer.shapes else None
    mixed = attended(frame, layer, inputs.caches.of(layer), Qkv(q, k, made.v), v_first=v_first)
    if gate is None:
        return mixed
    gate = graph.unary(gate)
    if gate.ne[0] != heads.queries:
        return graph.mul(mixed, gate)
    split = graph.view(mixed, heads.v, heads.queries, frame.tokens)
    opened = graph.mul(split, graph.view(gate, 1, heads.queries, frame.tokens))
    return graph.view(opened, heads.v * heads.queries, frame.tokens)


def _made(frame: Frame, layer: Layer, source: Tensor, heads: Heads) -> Qkv:
    """Q, K and V; norms of whole rows, where a block has such, come before heads are told apart."""
    shape = layer.shapes.get("attn_q_norm.weight", ())
    if not shape or shape[0] in (heads.k, 0) or "attn_qkv.weight" in layer.shapes:
        return project(frame, layer, source, heads)
    graph, tokens = frame.graph, frame.tokens
    q = frame.norm(frame.linear(source, layer, "attn_q"), layer, "attn_q_norm")
    k = frame.norm(frame.linear(source, layer, "attn_k"), layer, "attn_k_norm")
    v = frame.linear(source, layer, "attn_v")
    return Qkv(
        graph.view(q, heads.k, heads.queries, tokens),
        graph.view(k, heads.k, heads.cached, tokens),
        graph.view(v, heads.v, heads.cached, tokens),
    )


def _turned(frame: Frame, layer: Layer, named: tuple[Tensor, str], kind: Kind, positions: Tensor | None) -> Tensor:
    """Q or K after its norm, where it is one of single heads, and its rotation."""
    source, name = named
    graph = frame.graph
    shape = layer.shapes.get(f"{name}.weight", ())
    has_norm = bool(shape) and shape[0] == source.ne[0]
    if kind.rope_first and positions is not None:
        source, positions = graph.rope(source, positions), None
    if has_norm:
        source = frame.norm(source, layer, name)
    return source if positions is None else graph.rope(source, positions)


def _fed(frame: Frame, layer: Layer, residual: Tensor, kind: Kind, scores: Tensor | None) -> Tensor:
    graph = frame.graph
    name = next(
        (name for name in ("ffn_norm", "post_attention_norm", "attn_output_norm") if f"{name}.weight" in layer.shapes),
        "ffn_norm",
    )
    normed = frame.norm(residual, layer, name, layer_norm=kind.layer_norm)
    normalised = frame.has("expert_weights_norm") if kind.normalised is None else kind.normalised
    routing = routing_of(frame, layer, normalised=normalised)
    if kind.temperature:
        routing = routing._replace(weight_first=True, raw_choice=True)
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, normed)
    if kind.shared_first and "ffn_up_shexp.weight" in layer.shapes:
        shared = dense(frame, layer, normed, "_shexp")
        return graph.add(experts(frame, layer, normed, routing), shared)
    if scores is not None:
        return experts(frame, layer, normed, routing, scores=scores)
    if "ffn_up_chexps.weight" in layer.shapes:
        return _with_adjugates(frame, layer, normed, routing)
    return mixture(frame, layer, normed, routing=routing)


def _with_adjugates(frame: Frame, layer: Layer, source: Tensor, routing: Routing) -> Tensor:
    """Experts, then those that each group of experts shares, picked by the same scores."""
    graph = frame.graph
    scores = frame.linear(source, layer, "ffn_gate_inp")
    routing = routing._replace(chosen_apart=True)
    mixed = experts(frame, layer, source, routing, scores=scores)
    n_shared = (layer.shapes["ffn_up_chexps.weight"] + (1, 1, 1))[2]
    routing = routing._replace(used=max(1, min(routing.used, n_shared)), grouped=True)
    shared = experts(frame, layer, mixed, routing, suffix="_chexps", scores=scores)
    return graph.add(mixed, graph.scale(shared))
