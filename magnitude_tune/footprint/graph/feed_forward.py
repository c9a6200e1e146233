"""Feed-forward networks: dense ones and mixtures of experts.

Source: `build_ffn` and `build_moe_ffn` in src/llama-graph.cpp.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.tensors import F32, I32, Tensor

__all__ = ["Routing", "dense", "experts", "limited", "mixture", "routing_of", "used_experts"]

_MAX_EXPERTS: Final = 1024
_SUMMED: Final = 4
"""Experts that are added up one by one: further sums are written over the one before and take nothing."""
_SOFTMAX_LATE: Final = 3
"""The value of `expert_gating_func` for a softmax over the chosen experts only."""


class Routing(NamedTuple):
    """How a mixture picks its experts.

    Args:
        used: experts a token uses.
        softmax_late: the weights of the chosen experts go through softmax, instead of all scores before.
        normalised: weights are divided by their sum.
        scaled: weights are multiplied by a number.
        groups: of experts, of which only some are looked at; 0 or 1: none.
        weight_first: the input is weighted, not the output.
        raw_choice: experts are chosen by the router's scores as they are.
        clamped: activations are limited by single operations instead of a fused one.
        grouped: ids of the chosen experts are brought to those of their groups.
        chosen_apart: experts are chosen by an activation of their own of the same scores.
    """

    used: int
    softmax_late: bool = False
    normalised: bool = True
    scaled: bool = False
    groups: int = 0
    groups_used: int = 0
    weight_first: bool = False
    raw_choice: bool = False
    clamped: bool = False
    grouped: bool = False
    chosen_apart: bool = False


def dense(frame: Frame, layer: Layer, source: Tensor, suffix: str = "", *, squared: bool = False) -> Tensor:
    """`ffn_up`, `ffn_gate` and `ffn_down`, with whatever of them and of their biases the block has.

    An `ffn_up` twice as wide as `ffn_down` reads holds the gate too. `squared`: relu, squared.
    """
    graph = frame.graph
    up = frame.linear(source, layer, f"ffn_up{suffix}")
    down = layer.shapes.get(f"ffn_down{suffix}.weight") or (up.ne[0], 1)
    if f"ffn_gate{suffix}.weight" in layer.shapes:
        inner = graph.gated(frame.linear(source, layer, f"ffn_gate{suffix}"), up)
    elif up.ne[0] == 2 * down[0]:
        inner = graph.gated_halves(up)
    else:
        inner = graph.unary(up)
        if squared:
            inner = graph.like("sqr", inner)
    return frame.linear(inner, layer, f"ffn_down{suffix}")


def experts(
    frame: Frame, layer: Layer, source: Tensor, routing: Routing, *, suffix: str = "_exps", scores: Tensor | None = None
) -> Tensor:
    """The experts' part of one block.

    Args:
        frame: the graph.
        layer: its tensors are `ffn_{gate,up,gate_up,down}{suffix}`.
        source: [n_embd, tokens].
        routing: how experts are picked.
        suffix: of the tensors' names.
        scores: of the router, where it read something else than `source`.
    """
    graph, used = frame.graph, routing.used
    n_embd, n_tokens = source.ne[0], source.ne[1]
    chosen, weights = _route(frame, layer, source, routing, scores)
    graph.expand(weights)
    spread = graph.view(source, n_embd, 1, n_tokens)
    if routing.weight_first:
        spread = graph.mul(graph.op("repeat", (n_embd, used, n_tokens), spread), weights)
    inner = _inner(frame, layer, (spread, chosen), routing, suffix)
    outputs = _expert(frame, layer, inner, chosen, f"ffn_down{suffix}")
    if not routing.weight_first:
        outputs = graph.mul(outputs, weights)
    graph.expand(outputs)
    row = outputs.strides[2]
    parts = [graph.view(outputs, n_embd, n_tokens, nb=(4, row, row * n_tokens, -1)) for _ in range(min(used, _SUMMED))]
    for part in parts:
        graph.expand(part)
    total = parts[0]
    for part in parts[1:]:
        total = graph.add(total, part)
        graph.expand(total)
    return graph.cont(total) if used == 1 else total


def used_experts(frame: Frame, layer: Layer) -> int:
    """Experts that a token uses in a block: one at least, and no more than engines know."""
    return min(max(1, frame.number_at("expert_used_count", layer.block, 1)), _MAX_EXPERTS)


def routing_of(frame: Frame, layer: Layer, *, normalised: bool = True) -> Routing:
    """What the header's keys say of a block's router."""
    return Routing(
        used=used_experts(frame, layer),
        softmax_late=frame.number("expert_gating_func") == _SOFTMAX_LATE,
        normalised=normalised,
        scaled=frame.scales("expert_weights_scale"),
        groups=frame.number("expert_group_count"),
        groups_used=frame.number("expert_group_used_count"),
        clamped=bool(frame.real_at("swiglu_clamp_exp", layer.block)),
    )


def mixture(
    frame: Frame, layer: Layer, source: Tensor, normalised: bool = True, *, routing: Routing | None = None
) -> Tensor:
    """A mixture and its shared expert, or a dense network where the block has no router."""
    if "ffn_gate_inp.weight" not in layer.shapes:
        return dense(frame, layer, source)
    mixed = experts(frame, layer, source, routing or routing_of(frame, layer, normalised=normalised))
    if "ffn_up_shexp.weight" not in layer.shapes:
        return mixed
    return frame.graph.add(mixed, dense(frame, layer, source, "_shexp"))


def _route(
    frame: Frame, layer: Layer, source: Tensor, routing: Routing, scores: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Ids of the chosen experts [used, tokens] and their weights [1, used, tokens]."""
    graph, used = frame.graph, routing.used
    if scores is None:
        scores = frame.linear(source, layer, "ffn_gate_inp")
    n_experts, n_tokens = scores.ne[0], scores.ne[1]
    probabilities = scores if routing.softmax_late else graph.like("soft_max", scores)
    selection = scores if routing.raw_choice else probabilities
    if bias := frame.weight(layer, "exp_probs_b.bias"):
        selection = graph.add(probabilities, bias)
    if routing.chosen_apart:
        selection = graph.unary(scores)
    if routing.groups > 1:
        selection = _in_groups(frame, selection, routing)
    chosen = graph.top_k(selection, used)
    if routing.grouped:
        chosen = graph.cast(graph.scale(graph.cast(chosen, F32)), I32)
    weights = graph.get_rows(graph.view(probabilities, 1, n_experts, n_tokens), chosen)
    if routing.softmax_late:
        weights = graph.like("soft_max", graph.view(weights, used, n_tokens))
        weights = graph.view(weights, 1, used, n_tokens)
    if routing.normalised:
        flat = graph.view(weights, used, n_tokens)
        total = graph.like("clamp", graph.op("sum_rows", (1, n_tokens), flat))
        weights = graph.view(graph.like("div", flat, total), 1, used, n_tokens)
    return chosen, graph.scale(weights) if routing.scaled else weights


def _in_groups(frame: Frame, selection: Tensor, routing: Routing) -> Tensor:
    """Scores with the groups left out that hold no good expert."""
    graph = frame.graph
    n_experts, n_tokens = selection.ne[0], selection.ne[1]
    per_group, groups, used = n_experts // routing.groups, routing.groups, max(1, routing.groups_used)
    grouped = graph.view(selection, per_group, groups, n_tokens)
    best = graph.top_k(grouped, 2)
    best_scores = graph.op(
        "get_rows", (1, 2, groups, n_tokens), graph.view(grouped, 1, per_group, groups, n_tokens), best
    )
    sums = graph.op("sum_rows", (1, groups, n_tokens), graph.view(best_scores, 2, groups, n_tokens))
    chosen = graph.top_k(graph.view(sums, groups, n_tokens), used)
    kept = graph.op("get_rows", (per_group, used, n_tokens), grouped, chosen)
    masked = graph.set_rows(graph.like("fill", grouped), kept, chosen)
    return graph.view(masked, n_experts, n_tokens)


def _inner(frame: Frame, layer: Layer, operands: tuple[Tensor, Tensor], routing: Routing, suffix: str) -> Tensor:
    graph = frame.graph
    source, chosen = operands
    if f"ffn_gate_up{suffix}.weight" in layer.shapes:
        both = _expert(frame, layer, source, chosen, f"ffn_gate_up{suffix}")
        half = (both.ne[0] // 2, *both.ne[1:])
        return graph.gated(graph.part(both, *half), graph.part(both, *half))
    up = _expert(frame, layer, source, chosen, f"ffn_up{suffix}")
    if f"ffn_gate{suffix}.weight" not in layer.shapes:
        return graph.unary(up)
    gate = _expert(frame, layer, source, chosen, f"ffn_gate{suffix}")
    return limited(frame, gate, up) if routing.clamped else graph.gated(gate, up)


def limited(frame: Frame, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) x up with limits, by single operations that write over their operands."""
    graph = frame.graph
    return graph.mul(graph.like("clamp", graph.unary(gate)), graph.like("clamp", up))


def _expert(frame: Frame, layer: Layer, source: Tensor, chosen: Tensor, name: str) -> Tensor:
    graph = frame.graph
    weight = frame.weight(layer, f"{name}.weight") or graph.weight(layer.place_of(name), source.ne[0], source.ne[0], 1)
    result = graph.mul_mat_id(weight, source, chosen)
    if scale := frame.weight(layer, f"{name}.scale"):
        # A scale for each expert is spread over the tokens first.
        spread = graph.op("repeat", (1, weight.ne[2], source.ne[2]), scale)
        result = graph.mul(result, graph.get_rows(spread, chosen))
    bias = frame.weight(layer, f"{name}.bias")
    return graph.like("add_id", result, bias, chosen) if bias else result
