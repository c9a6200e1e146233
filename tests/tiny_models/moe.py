"""Decoders with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, moe_ffn, outer, output, shared_ffn, start

__all__ = ["WRITERS"]


def _qwen3moe(shape: ShapeName) -> Draft:
    # The large one's buffer is made of 8 experts a token, 4096 wide.
    n_expert, n_used, n_ff_exp = (8, 2, 256) if shape == "small" else (16, 8, 4096)
    size = Size.of(shape, n_layer=5, n_ff=1024)
    draft = start("qwen3moe", size)
    draft.keys(expert_count=n_expert, expert_used_count=n_used, expert_feed_forward_length=n_ff_exp)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, qk_norm=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
    output(draft, size)
    return draft


def _qwen2moe(shape: ShapeName) -> Draft:
    n_expert, n_used, n_ff_exp, n_ff_shared = (8, 2, 256, 512) if shape == "small" else (16, 4, 1024, 24576)
    size = Size.of(shape, n_layer=5, n_ff=1024)
    draft = start("qwen2moe", size)
    draft.keys(
        expert_count=n_expert,
        expert_used_count=n_used,
        expert_feed_forward_length=n_ff_exp,
        expert_shared_feed_forward_length=n_ff_shared,
    )
    outer(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, bias=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
        shared_ffn(draft, block, size.n_embd, n_ff_shared, gated=True)
    return draft


def _gpt_oss(shape: ShapeName) -> Draft:
    n_expert, n_used, n_ff = (8, 4, 256) if shape == "small" else (16, 4, 8192)
    size = Size.of(shape, n_layer=5, n_ff=n_ff)
    draft = start("gpt-oss", size)
    draft.keys(
        attention__sliding_window=128,
        expert_count=n_expert,
        expert_used_count=n_used,
        expert_feed_forward_length=n_ff,
    )
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, bias=True)
        draft.bias(f"{block}.attn_output", size.n_embd)
        draft.vector(f"{block}.attn_sinks", size.n_head)
        draft.vector(f"{block}.post_attention_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, n_ff, n_expert, type_name="MXFP4")
        draft.bias(f"{block}.ffn_gate_inp", n_expert)
        draft.bias(f"{block}.ffn_gate_exps", n_ff, n_expert)
        draft.bias(f"{block}.ffn_down_exps", size.n_embd, n_expert)
        draft.bias(f"{block}.ffn_up_exps", n_ff, n_expert)
    output(draft, size)
    return draft


def _deepseek2(shape: ShapeName) -> Draft:
    """With the keys of multi-head latent attention: the cache holds one latent row a token."""
    return _deepseek(shape, latent=True)


def _deepseek2_mha(shape: ShapeName) -> Draft:
    """As older files have it: keys and values are unpacked before they are cached."""
    return _deepseek(shape, latent=False)


def _deepseek2_lite(shape: ShapeName) -> Draft:
    """Queries straight from the hidden state, and experts in groups."""
    return _deepseek(shape, latent=True, is_lite=True, expert_group_count=4, expert_group_used_count=2)


def _mistral4(shape: ShapeName) -> Draft:
    """Queries multiplied by a factor of their position."""
    return _deepseek(shape, latent=True, name="mistral4", attention__temperature_scale=0.1, expert_weights_norm=True)


def _deepseek32(shape: ShapeName, name: str = "deepseek32") -> Draft:
    """An indexer chooses the cells that are attended to."""
    keys = {"head_count": 4, "key_length": 128, "top_k": 1024}
    return _deepseek(
        shape, latent=True, name=name, **{f"attention__indexer__{key}": value for key, value in keys.items()}
    )


def _glm_dsa(shape: ShapeName) -> Draft:
    return _deepseek32(shape, "glm-dsa")


def _deepseek(
    shape: ShapeName, *, latent: bool, name: str = "deepseek2", is_lite: bool = False, **keys: object
) -> Draft:
    n_expert, n_used, n_ff_exp = (8, 2, 256) if shape == "small" else (16, 4, 2048)
    nope, rope, v_size, q_rank, kv_rank = 64, 32, 64, 128, 256
    size = Size.of(shape, n_layer=5)
    draft = Draft(name, n_vocab=size.n_vocab)
    heads = size.n_head
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        leading_dense_block_count=1,
        attention__head_count=heads,
        attention__head_count_kv=1 if latent else heads,
        attention__key_length=kv_rank + rope if latent else nope + rope,
        attention__value_length=kv_rank if latent else v_size,
        attention__q_lora_rank=0 if is_lite else q_rank,
        attention__kv_lora_rank=kv_rank,
        attention__layer_norm_rms_epsilon=1e-6,
        rope__dimension_count=rope,
        expert_count=n_expert,
        expert_used_count=n_used,
        expert_shared_count=1,
        expert_feed_forward_length=n_ff_exp,
        expert_weights_scale=1.0,
        expert_gating_func=2,
    )
    draft.keys(**keys)
    if latent:
        draft.keys(attention__key_length_mla=nope + rope, attention__value_length_mla=v_size)
    outer(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if is_lite:
            draft.matrix(f"{block}.attn_q", size.n_embd, heads * (nope + rope))
        else:
            draft.matrix(f"{block}.attn_q_a", size.n_embd, q_rank)
            draft.vector(f"{block}.attn_q_a_norm", q_rank)
            draft.matrix(f"{block}.attn_q_b", q_rank, heads * (nope + rope))
        if "attention__indexer__top_k" in keys:
            draft.vector(f"{block}.indexer.k_norm", 128)
            draft.bias(f"{block}.indexer.k_norm", 128)
            draft.matrix(f"{block}.indexer.proj", size.n_embd, 4)
            draft.matrix(f"{block}.indexer.attn_k", size.n_embd, 128)
            draft.matrix(f"{block}.indexer.attn_q_b", q_rank, 4 * 128)
        draft.matrix(f"{block}.attn_kv_a_mqa", size.n_embd, kv_rank + rope)
        draft.vector(f"{block}.attn_kv_a_norm", kv_rank)
        if latent:
            draft.matrix(f"{block}.attn_k_b", nope, kv_rank, heads)
            draft.matrix(f"{block}.attn_v_b", kv_rank, v_size, heads)
        else:
            draft.matrix(f"{block}.attn_kv_b", kv_rank, heads * (nope + v_size))
        draft.matrix(f"{block}.attn_output", heads * v_size, size.n_embd)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        if index < 1:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
        else:
            moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
            draft.bias(f"{block}.exp_probs_b", n_expert)
            shared_ffn(draft, block, size.n_embd, n_ff_exp)
    return draft


def _llama4(shape: ShapeName) -> Draft:
    """Chunked attention in three blocks of four, experts in every other block."""
    n_expert, n_ff_exp = (8, 256) if shape == "small" else (16, 2048)
    size = Size.of(shape, n_layer=6)
    draft = start("llama4", size)
    draft.keys(
        expert_count=n_expert,
        expert_used_count=1,
        expert_feed_forward_length=n_ff_exp,
        interleave_moe_layer_step=2,
    )
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        if index % 2:
            moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
            shared_ffn(draft, block, size.n_embd, n_ff_exp)
        else:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "deepseek2-mha": _deepseek2_mha,
    "deepseek2-lite": _deepseek2_lite,
    "mistral4": _mistral4,
    "deepseek32": _deepseek32,
    "glm-dsa": _glm_dsa,
    "llama4": _llama4,
}
