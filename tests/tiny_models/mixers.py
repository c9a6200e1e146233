"""More models with a recurrent state: kinds of blocks that the first ones lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, moe_ffn, output, shared_ffn, start
from tiny_models.state_space import Scan, mamba2_block

__all__ = ["WRITERS"]


def _nemotron_h(shape: ShapeName, *, mixture: bool = False) -> Draft:
    """Each block is a state, attention or a network, in turn."""
    size = Size.of(shape, n_layer=6)
    if shape == "large":
        # Without gates the network is one matrix wide.
        size = size._replace(n_ff=2 * size.n_ff)
    kinds = ["state", "network", "attention", "state", "network", "state"]
    n_ff = [size.n_ff if kind == "network" else 0 for kind in kinds]
    heads = [size.n_head_kv if kind == "attention" else 0 for kind in kinds]
    draft = Draft("nemotron_h_moe" if mixture else "nemotron_h", n_vocab=size.n_vocab)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=n_ff,
        attention__head_count=size.n_head,
        attention__head_count_kv=heads,
        attention__key_length=size.head,
        attention__value_length=size.head,
        attention__layer_norm_epsilon=1e-5,
        attention__layer_norm_rms_epsilon=1e-5,
    )
    n_expert, n_ff_exp = 8, 256 if shape == "small" else 2048
    if mixture:
        draft.keys(
            expert_count=n_expert,
            expert_used_count=2,
            expert_feed_forward_length=n_ff_exp,
            expert_shared_feed_forward_length=size.n_ff,
            expert_shared_count=1,
            expert_weights_norm=True,
            expert_weights_scale=2.5,
        )
    scan = Scan(size.n_embd, 2 * size.n_embd, 64, 8 if shape == "small" else 16, 1)
    scan.keys(draft)
    embedding(draft, size)
    for index, kind in enumerate(kinds):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if kind == "state":
            mamba2_block(draft, block, scan)
        elif kind == "attention":
            attention(draft, block, size)
        elif not mixture:
            dense_ffn(draft, block, size.n_embd, size.n_ff, gate=False)
        else:
            _ungated_experts(draft, block, size, n_ff_exp, n_expert)
    output(draft, size)
    return draft


def _ungated_experts(draft: Draft, block: str, size: Size, n_ff_exp: int, n_expert: int) -> None:
    draft.matrix(f"{block}.ffn_gate_inp", size.n_embd, n_expert)
    draft.bias(f"{block}.exp_probs_b", n_expert)
    draft.matrix(f"{block}.ffn_down_exps", n_ff_exp, size.n_embd, n_expert)
    draft.matrix(f"{block}.ffn_up_exps", size.n_embd, n_ff_exp, n_expert)
    draft.matrix(f"{block}.ffn_down_shexp", size.n_ff, size.n_embd)
    draft.matrix(f"{block}.ffn_up_shexp", size.n_embd, size.n_ff)


def _qwen35(shape: ShapeName, *, mixture: bool = False) -> Draft:
    """Three blocks of four have a gated delta net whose own operation repeats keys."""
    size = Size.of(shape, n_layer=6)
    n_k, n_v, head = 2, 4, 64
    keys, values = n_k * head, n_v * head
    draft = start("qwen35moe" if mixture else "qwen35", size)
    draft.keys(rope__dimension_sections=[11, 11, 10, 0])
    n_expert, n_ff_exp = 8, 256 if shape == "small" else 1024
    if mixture:
        draft.keys(
            expert_count=n_expert,
            expert_used_count=2,
            expert_feed_forward_length=n_ff_exp,
            expert_shared_feed_forward_length=size.n_ff,
        )
    Scan(size.n_embd, values, head, n_v, n_k).keys(draft)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        draft.vector(f"{block}.post_attention_norm", size.n_embd)
        if index % 4 == 3:
            draft.matrix(f"{block}.attn_q", size.n_embd, 2 * size.n_head * size.head)
            draft.matrix(f"{block}.attn_k", size.n_embd, size.n_head_kv * size.head)
            draft.matrix(f"{block}.attn_v", size.n_embd, size.n_head_kv * size.head)
            draft.matrix(f"{block}.attn_output", size.n_head * size.head, size.n_embd)
            draft.vector(f"{block}.attn_q_norm", size.head)
            draft.vector(f"{block}.attn_k_norm", size.head)
        else:
            draft.matrix(f"{block}.attn_qkv", size.n_embd, 2 * keys + values)
            draft.matrix(f"{block}.attn_gate", size.n_embd, values)
            draft.vector(f"{block}.ssm_conv1d", 4, 2 * keys + values)
            draft.bias(f"{block}.ssm_dt", n_v)
            draft.tensor(f"{block}.ssm_a", n_v)
            draft.matrix(f"{block}.ssm_beta", size.n_embd, n_v)
            draft.matrix(f"{block}.ssm_alpha", size.n_embd, n_v)
            draft.vector(f"{block}.ssm_norm", head)
            draft.matrix(f"{block}.ssm_out", values, size.n_embd)
        if mixture:
            moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
            shared_ffn(draft, block, size.n_embd, size.n_ff, gated=True)
        else:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size)
    return draft


def _lfm2moe(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=6)
    heads = [size.n_head_kv if index % 3 == 2 else 0 for index in range(size.n_layer)]
    n_expert, n_ff_exp = 8, 256 if shape == "small" else 2048
    draft = start("lfm2moe", size, heads_kv=heads)
    draft.keys(
        shortconv__l_cache=3,
        leading_dense_block_count=2,
        expert_count=n_expert,
        expert_used_count=2,
        expert_feed_forward_length=n_ff_exp,
        expert_gating_func=2,
    )
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if heads[index]:
            attention(draft, block, size, qk_norm=True)
        else:
            draft.vector(f"{block}.shortconv.conv", 3, size.n_embd)
            draft.matrix(f"{block}.shortconv.in_proj", size.n_embd, 3 * size.n_embd)
            draft.matrix(f"{block}.shortconv.out_proj", size.n_embd, size.n_embd)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        if index < 2:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
        else:
            moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
            draft.bias(f"{block}.exp_probs_b", n_expert)
    draft.vector("token_embd_norm", size.n_embd)
    return draft


def _plamo2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=6)
    heads = [size.n_head_kv if index % 2 else 0 for index in range(size.n_layer)]
    inner, state, n_heads, rank = 2 * size.n_embd, 16, 8, 64
    draft = start("plamo2", size, heads_kv=heads)
    Scan(size.n_embd, inner, state, n_heads).keys(draft)
    draft.keys(ssm__group_count=0)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if heads[index]:
            draft.matrix(f"{block}.attn_qkv", size.n_embd, (size.n_head + 2 * size.n_head_kv) * size.head)
            draft.vector(f"{block}.attn_q_norm", size.head, size.n_head)
            draft.vector(f"{block}.attn_k_norm", size.head, size.n_head_kv)
            draft.matrix(f"{block}.attn_output", size.n_head * size.head, size.n_embd)
        else:
            draft.matrix(f"{block}.ssm_in", size.n_embd, 2 * inner)
            draft.vector(f"{block}.ssm_conv1d", 4, inner)
            draft.matrix(f"{block}.ssm_x", inner, rank + 2 * state)
            draft.matrix(f"{block}.ssm_dt", rank, n_heads)
            draft.bias(f"{block}.ssm_dt", n_heads)
            draft.tensor(f"{block}.ssm_a", n_heads)
            draft.tensor(f"{block}.ssm_d", n_heads)
            draft.matrix(f"{block}.ssm_out", inner, size.n_embd)
            draft.tensor(f"{block}.ssm_dt_norm", rank)
            draft.tensor(f"{block}.ssm_b_norm", state)
            draft.tensor(f"{block}.ssm_c_norm", state)
        draft.tensor(f"{block}.post_attention_norm", size.n_embd)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        draft.matrix(f"{block}.ffn_down", size.n_ff, size.n_embd)
        draft.matrix(f"{block}.ffn_up", size.n_embd, 2 * size.n_ff)
        draft.tensor(f"{block}.post_ffw_norm", size.n_embd)
    output(draft, size)
    return draft


def _kimi_linear(shape: ShapeName, *, bailing: bool = False) -> Draft:
    """Three blocks of four have delta attention, the others latent attention."""
    size = Size.of(shape, n_layer=6)
    heads, head, plain, rotated, v_size, rank = size.n_head, 64, 64, 32, 64, 256
    kinds = [1 if index % 4 == 3 else 0 for index in range(size.n_layer)]
    n_expert, n_ff_exp = 8, 256 if shape == "small" else 2048
    draft = Draft("bailingmoe3" if bailing else "kimi-linear", n_vocab=size.n_vocab)
    if bailing:
        draft.keys(kda__safe_gate=True, kda__gate_lower_bound=-5.0, expert_weights_norm=True)
        draft.keys(expert_shared_feed_forward_length=n_ff_exp)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        leading_dense_block_count=1,
        attention__head_count=heads,
        attention__head_count_kv=kinds,
        attention__key_length=rank + rotated,
        attention__value_length=rank,
        attention__key_length_mla=plain + rotated,
        attention__value_length_mla=v_size,
        attention__kv_lora_rank=rank,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=rotated,
        ssm__conv_kernel=4,
        kda__head_dim=head,
        expert_count=n_expert,
        expert_used_count=2,
        expert_shared_count=1,
        expert_feed_forward_length=n_ff_exp,
        expert_weights_scale=2.5,
        expert_gating_func=2,
    )
    embedding(draft, size)
    for index, attends in enumerate(kinds):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if attends:
            draft.matrix(f"{block}.attn_q", size.n_embd, heads * (plain + rotated))
            draft.matrix(f"{block}.attn_kv_a_mqa", size.n_embd, rank + rotated)
            draft.vector(f"{block}.attn_kv_a_norm", rank)
            draft.matrix(f"{block}.attn_k_b", plain, rank, heads)
            draft.matrix(f"{block}.attn_v_b", rank, v_size, heads)
            draft.matrix(f"{block}.attn_output", heads * v_size, size.n_embd)
            if bailing:
                draft.matrix(f"{block}.attn_gate", size.n_embd, heads)
        else:
            _delta_attention(draft, block, size, head, low_rank=not bailing)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        if index < 1:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
        else:
            moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
            draft.bias(f"{block}.exp_probs_b", n_expert)
            shared_ffn(draft, block, size.n_embd, n_ff_exp)
    output(draft, size)
    return draft


def _delta_attention(draft: Draft, block: str, size: Size, head: int, *, low_rank: bool) -> None:
    inner = size.n_head * head
    for name in "qkv":
        draft.vector(f"{block}.ssm_conv1d_{name}", 4, 1, inner)
        draft.matrix(f"{block}.attn_{name}", size.n_embd, inner)
    for name in "fg":
        draft.matrix(f"{block}.ssm_{name}_a", size.n_embd, head if low_rank else inner)
        if low_rank:
            draft.matrix(f"{block}.ssm_{name}_b", head, inner)
    draft.matrix(f"{block}.ssm_beta", size.n_embd, size.n_head)
    draft.tensor(f"{block}.ssm_a", 1, size.n_head)
    draft.bias(f"{block}.ssm_dt", inner)
    draft.vector(f"{block}.ssm_norm", head)
    draft.matrix(f"{block}.attn_output", inner, size.n_embd)


def _minimax_01(shape: ShapeName) -> Draft:
    """Linear attention in two blocks of three; experts in all."""
    size = Size.of(shape, n_layer=6, n_ff=256 if shape == "small" else 8192)
    n_expert, inner = 8, size.n_head * size.head
    draft = start("minimax-01", size)
    draft.keys(residual_scale=3.5, full_attention_interval=3, expert_count=n_expert, expert_used_count=2)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if index % 3 == 2:
            attention(draft, block, size)
        else:
            draft.vector(f"{block}.attn_norm_2", inner)
            draft.matrix(f"{block}.attn_qkv", size.n_embd, 3 * inner)
            draft.matrix(f"{block}.attn_gate", size.n_embd, inner)
            draft.matrix(f"{block}.attn_output", inner, size.n_embd)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, size.n_ff, n_expert)
    output(draft, size)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": lambda shape: _nemotron_h(shape, mixture=True),
    "qwen35": _qwen35,
    "qwen35moe": lambda shape: _qwen35(shape, mixture=True),
    "lfm2moe": _lfm2moe,
    "plamo2": _plamo2,
    "kimi-linear": _kimi_linear,
    "minimax-01": _minimax_01,
    "bailingmoe3": lambda shape: _kimi_linear(shape, bailing=True),
}
