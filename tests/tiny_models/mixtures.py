"""More decoders with a mixture of experts: one table, as they differ in a few tensors and keys only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, moe_ffn, output, shared_ffn, start

__all__ = ["WRITERS"]

_N_EXPERT: Final = 8


class _Plan(NamedTuple):
    """What a model has besides attention and experts.

    Args:
        dense: leading blocks without experts.
        shared: every token uses one more expert.
        probabilities: the bias of the router's choice.
        qk_norm: of each head, or of the whole row.
        fused: Q, K and V are one matrix.
        gate: rows of the matrix that gates attention: one for each head, or each element.
        after: norms after attention and the experts by name, and the one before the experts.
        equal_heads: as many heads of K as of Q.
        merged: gate and up of the experts are one tensor.
        biases: of norms, attention's output and the output matrix.
        keys: further ones of the architecture.
    """

    dense: int = 0
    shared: bool = False
    probabilities: bool = False
    qk_norm: str = ""
    fused: bool = False
    gate: str = ""
    after: tuple[str, ...] = ("ffn_norm",)
    equal_heads: bool = False
    merged: bool = False
    biases: bool = False
    rms: bool = True
    keys: dict[str, Any] = {}  # noqa: RUF012 - never changed


_SIGMOID: Final = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
_SLIDING: Final = {"attention__sliding_window": 128}
_ONE_SHARED: Final = {"expert_shared_count": 1}

_PLANS: Final[dict[str, _Plan]] = {
    "llama-moe": _Plan(),
    "glm4moe": _Plan(
        dense=1,
        shared=True,
        probabilities=True,
        qk_norm="head",
        after=("post_attention_norm",),
        keys={**_SIGMOID, **_ONE_SHARED},
    ),
    "dots1": _Plan(
        dense=1, shared=True, probabilities=True, qk_norm="head", equal_heads=True, keys={**_SIGMOID, **_ONE_SHARED}
    ),
    "deepseek": _Plan(dense=1, shared=True, keys={**_ONE_SHARED, "expert_weights_scale": 1.0}),
    "bailingmoe": _Plan(shared=True, keys={**_ONE_SHARED, "expert_weights_norm": True}),
    "bailingmoe2": _Plan(
        dense=1,
        shared=True,
        probabilities=True,
        qk_norm="head",
        fused=True,
        keys={**_SIGMOID, **_ONE_SHARED, "expert_group_count": 4, "expert_group_used_count": 2},
    ),
    "ernie4_5-moe": _Plan(dense=1, shared=True, probabilities=True, keys={"interleave_moe_layer_step": 1}),
    "exaone-moe": _Plan(
        dense=1, shared=True, probabilities=True, qk_norm="head", keys={**_SIGMOID, **_SLIDING, **_ONE_SHARED}
    ),
    "minimax-m2": _Plan(probabilities=True, qk_norm="row", keys={"expert_gating_func": 2}),
    "grok": _Plan(after=("attn_output_norm", "ffn_norm", "layer_output_norm"), keys={"logit_scale": 0.5}),
    "dbrx": _Plan(fused=True, after=("attn_output_norm",), rms=False, keys={"attention__clamp_kqv": 8.0}),
    "arctic": _Plan(dense=-1, after=("ffn_norm", "ffn_norm_exps")),
    "olmoe": _Plan(qk_norm="row", equal_heads=True),
    "hunyuan-moe": _Plan(shared=True, qk_norm="head"),
    "afmoe": _Plan(
        dense=1,
        shared=True,
        probabilities=True,
        qk_norm="head",
        gate="element",
        after=("post_attention_norm", "ffn_norm", "post_ffw_norm"),
        keys={**_SIGMOID, **_SLIDING, **_ONE_SHARED},
    ),
    "smallthinker": _Plan(keys={**_SLIDING, "expert_gating_func": 2}),
    "laguna": _Plan(
        dense=1,
        shared=True,
        probabilities=True,
        qk_norm="head",
        gate="head",
        keys={**_SIGMOID, **_SLIDING, **_ONE_SHARED},
    ),
    "cohere2moe": _Plan(
        dense=1,
        shared=True,
        after=(),
        merged=True,
        rms=False,
        keys={**_SLIDING, **_ONE_SHARED, "expert_gating_func": 2, "logit_scale": 0.5},
    ),
    "hy_v3": _Plan(dense=1, shared=True, qk_norm="head", keys={**_SIGMOID, **_ONE_SHARED}),
    "phimoe": _Plan(biases=True),
    "granitemoe": _Plan(shared=True, keys={"logit_scale": 4.0, "residual_scale": 0.2, "embedding_scale": 12.0}),
    "grovemoe": _Plan(
        qk_norm="head",
        keys={"expert_group_scale": 0.05, "experts_per_group": 2, "expert_chunk_feed_forward_length": 128},
    ),
    "mimo2": _Plan(probabilities=True, keys={**_SLIDING, "expert_gating_func": 2}),
    "qwen3vlmoe": _Plan(qk_norm="head", keys={"rope__dimension_sections": [24, 20, 20, 0], "n_deepstack_layers": 3}),
    "rnd1": _Plan(qk_norm="head"),
    "llada-moe": _Plan(qk_norm="head"),
    "step35": _Plan(
        dense=1, shared=True, probabilities=True, qk_norm="head", gate="head", keys={**_SIGMOID, **_SLIDING}
    ),
}


def _draft(name: str, shape: ShapeName) -> Draft:
    plan = _PLANS[name]
    n_used, n_ff_exp = (2, 256) if shape == "small" else (4, 4096)
    size = Size.of(shape, n_layer=5, n_ff=1024)
    size = size._replace(n_head_kv=size.n_head if plan.equal_heads else size.n_head_kv)
    if name in ("minimax-m2", "olmoe", "dbrx", "arctic", "phimoe", "hunyuan-moe", "granitemoe", "llama-moe"):
        # Their experts are as wide as the plain key says.
        size = size._replace(n_ff=n_ff_exp)
    draft = start(name.removesuffix("-moe") if name == "llama-moe" else name, size, rms=plan.rms, eps=1e-5)
    draft.keys(expert_count=_N_EXPERT, expert_used_count=n_used, expert_feed_forward_length=n_ff_exp)
    draft.keys(expert_shared_feed_forward_length=n_ff_exp, leading_dense_block_count=max(0, plan.dense))
    draft.keys(**plan.keys)
    if name in ("mimo2", "step35"):
        draft.keys(attention__sliding_window_pattern=[index % 2 == 1 for index in range(size.n_layer)])
    embedding(draft, size)
    for index in range(size.n_layer):
        _block(draft, f"blk.{index}", index, (name, plan, size, n_ff_exp))
    output(draft, size, norm_bias=plan.biases)
    if plan.biases:
        draft.bias("output", size.n_vocab)
    return draft


def _block(draft: Draft, block: str, index: int, made: tuple[str, _Plan, Size, int]) -> None:
    name, plan, size, n_ff_exp = made
    _attention(draft, block, plan, size)
    for norm in plan.after:
        draft.vector(f"{block}.{norm}", size.n_embd)
        if plan.biases:
            draft.bias(f"{block}.{norm}", size.n_embd)
    if plan.dense < 0:
        dense_ffn(draft, block, size.n_embd, size.n_embd)
    if 0 <= index < plan.dense:
        dense_ffn(draft, block, size.n_embd, size.n_ff)
        return
    if plan.merged:
        draft.matrix(f"{block}.ffn_gate_inp", size.n_embd, _N_EXPERT)
        draft.matrix(f"{block}.ffn_gate_up_exps", size.n_embd, 2 * n_ff_exp, _N_EXPERT)
        draft.matrix(f"{block}.ffn_down_exps", n_ff_exp, size.n_embd, _N_EXPERT)
    else:
        moe_ffn(draft, block, size.n_embd, n_ff_exp, _N_EXPERT)
    if plan.probabilities:
        draft.bias(f"{block}.exp_probs_b", _N_EXPERT)
    if plan.shared:
        shared_ffn(draft, block, size.n_embd, n_ff_exp)
    if name == "grovemoe":
        draft.matrix(f"{block}.ffn_gate_chexps", size.n_embd, 128, _N_EXPERT // 2)
        draft.matrix(f"{block}.ffn_down_chexps", 128, size.n_embd, _N_EXPERT // 2)
        draft.matrix(f"{block}.ffn_up_chexps", size.n_embd, 128, _N_EXPERT // 2)


def _attention(draft: Draft, block: str, plan: _Plan, size: Size) -> None:
    n_q, n_kv = size.n_head * size.head, size.n_head_kv * size.head
    draft.vector(f"{block}.attn_norm", size.n_embd)
    if plan.biases:
        draft.bias(f"{block}.attn_norm", size.n_embd)
    if plan.fused:
        draft.matrix(f"{block}.attn_qkv", size.n_embd, n_q + 2 * n_kv)
        draft.matrix(f"{block}.attn_output", n_q, size.n_embd)
    else:
        attention(draft, block, size, bias=plan.biases)
    if plan.biases:
        draft.bias(f"{block}.attn_output", size.n_embd)
    if plan.qk_norm:
        whole = plan.qk_norm == "row"
        draft.vector(f"{block}.attn_q_norm", n_q if whole else size.head)
        draft.vector(f"{block}.attn_k_norm", n_kv if whole else size.head)
    if plan.gate:
        draft.matrix(f"{block}.attn_gate", size.n_embd, size.n_head if plan.gate == "head" else n_q)


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {name: partial(_draft, name) for name in _PLANS}
