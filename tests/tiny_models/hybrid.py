"""Models that mix attention with a recurrent state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, moe_ffn, output, shared_ffn, start
from tiny_models.state_space import Scan, mamba2_block, mamba_block

__all__ = ["WRITERS"]


def _heads(size: Size, attends: Callable[[int], bool]) -> list[int]:
    """Heads of keys and values of each block: none where it has a state instead."""
    return [size.n_head_kv if attends(index) else 0 for index in range(size.n_layer)]


def _lfm2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=6)
    heads = _heads(size, lambda index: index % 3 == 2)
    draft = start("lfm2", size, heads_kv=heads)
    draft.keys(shortconv__l_cache=3)
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
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    draft.vector("token_embd_norm", size.n_embd)
    return draft


def _jamba(shape: ShapeName) -> Draft:
    """One block of four attends; every other block has experts."""
    size = Size.of(shape, n_layer=6)
    n_expert = 4
    if shape == "large":
        size = size._replace(n_ff=12288, n_head_kv=1)
    scan = Scan(size.n_embd, 2 * size.n_embd, 16, 32)
    heads = _heads(size, lambda index: index % 4 == 2)
    draft = start("jamba", size, heads_kv=heads)
    draft.keys(expert_count=n_expert, expert_used_count=2)
    scan.keys(draft)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if heads[index]:
            attention(draft, block, size)
        else:
            mamba_block(draft, block, scan, norms=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        if index % 2:
            moe_ffn(draft, block, size.n_embd, size.n_ff, n_expert)
        else:
            dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size)
    return draft


def _granite_hybrid(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=6)
    scan = Scan(size.n_embd, 2 * size.n_embd, 64, 8 if shape == "small" else 16, 1)
    heads = _heads(size, lambda index: index % 4 == 2)
    draft = start("granitehybrid", size, heads_kv=heads)
    draft.keys(
        attention__scale=0.015625,
        embedding_scale=12.0,
        residual_scale=0.22,
        logit_scale=8.0,
    )
    scan.keys(draft)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        if heads[index]:
            attention(draft, block, size)
        else:
            mamba2_block(draft, block, scan)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size, tied=True)
    return draft


def _falcon_h1(shape: ShapeName) -> Draft:
    """Every block has both attention and a state."""
    size = Size.of(shape, n_layer=4)
    scan = Scan(size.n_embd, 512, 64, 8, 1)
    draft = start("falcon-h1", size)
    scan.keys(draft)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        mamba2_block(draft, block, scan)
        attention(draft, block, size)
        draft.vector(f"{block}.attn_norm", size.n_embd)
        draft.tensor(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size)
    return draft


def _qwen3next(shape: ShapeName) -> Draft:
    """Three blocks of four have a gated delta net; all have experts and a shared one."""
    n_expert, n_used, n_ff_exp, n_ff_shared = (8, 2, 256, 256) if shape == "small" else (16, 4, 1024, 20480)
    size = Size.of(shape, n_layer=6, n_ff=1024)
    n_k, n_v, head = 2, 4, 64
    keys, values = n_k * head, n_v * head
    draft = start("qwen3next", size)
    draft.keys(
        expert_count=n_expert,
        expert_used_count=n_used,
        expert_feed_forward_length=n_ff_exp,
        expert_shared_feed_forward_length=n_ff_shared,
    )
    Scan(size.n_embd, values, head, n_v, n_k).keys(draft)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        draft.vector(f"{block}.post_attention_norm", size.n_embd)
        if index % 4 == 3:
            _gated_attention(draft, block, size)
        else:
            draft.matrix(f"{block}.attn_qkv", size.n_embd, 2 * keys + values)
            draft.matrix(f"{block}.attn_gate", size.n_embd, values)
            draft.vector(f"{block}.ssm_conv1d", 4, 2 * keys + values)
            draft.bias(f"{block}.ssm_dt", n_v)
            draft.tensor(f"{block}.ssm_a", n_v)
            draft.matrix(f"{block}.ssm_ba", size.n_embd, 2 * n_v)
            draft.vector(f"{block}.ssm_norm", head)
            draft.matrix(f"{block}.ssm_out", values, size.n_embd)
        moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
        shared_ffn(draft, block, size.n_embd, n_ff_shared, gated=True)
    output(draft, size)
    return draft


def _gated_attention(draft: Draft, block: str, size: Size) -> None:
    """Attention whose query matrix also makes a gate."""
    draft.matrix(f"{block}.attn_q", size.n_embd, 2 * size.n_head * size.head)
    draft.matrix(f"{block}.attn_k", size.n_embd, size.n_head_kv * size.head)
    draft.matrix(f"{block}.attn_v", size.n_embd, size.n_head_kv * size.head)
    draft.matrix(f"{block}.attn_output", size.n_head * size.head, size.n_embd)
    draft.vector(f"{block}.attn_q_norm", size.head)
    draft.vector(f"{block}.attn_k_norm", size.head)


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "lfm2": _lfm2,
    "jamba": _jamba,
    "granitehybrid": _granite_hybrid,
    "falcon-h1": _falcon_h1,
    "qwen3next": _qwen3next,
}
