"""Dense decoders with full attention in every block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, outer, output, start

__all__ = ["WRITERS"]


def _llama(shape: ShapeName) -> Draft:
    size = Size.of(shape)
    draft = start("llama", size)
    outer(draft, size)
    draft.vector("rope_freqs", size.head // 2)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    return draft


def _qwen2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_vocab=1003)
    draft = start("qwen2", size)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, bias=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size, tied=True)
    return draft


def _qwen3(shape: ShapeName) -> Draft:
    size = Size.of(shape, head=128, n_layer=5)
    draft = start("qwen3", size)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, qk_norm=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    output(draft, size, tied=True)
    return draft


def _starcoder2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=5)
    if shape == "large":
        size = size._replace(n_ff=53248)
    draft = start("starcoder2", size, rms=False, eps=1e-5)
    outer(draft, size, norm_bias=True)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        for norm in ("attn_norm", "ffn_norm"):
            draft.vector(f"{block}.{norm}", size.n_embd)
            draft.bias(f"{block}.{norm}", size.n_embd)
        attention(draft, block, size, bias=True)
        draft.bias(f"{block}.attn_output", size.n_embd)
        dense_ffn(draft, block, size.n_embd, size.n_ff, gate=False, bias=True)
    return draft


def _phi3(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_head_kv=4)
    draft = start("phi3", size)
    draft.keys(rope__scaling__original_context_length=4096)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        draft.matrix(f"{block}.attn_qkv", size.n_embd, size.n_embd + 2 * size.n_head_kv * size.head)
        draft.matrix(f"{block}.attn_output", size.n_embd, size.n_embd)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        draft.matrix(f"{block}.ffn_up", size.n_embd, 2 * size.n_ff)
        draft.matrix(f"{block}.ffn_down", size.n_ff, size.n_embd)
    output(draft, size)
    draft.vector("rope_factors_long", size.head // 2)
    draft.vector("rope_factors_short", size.head // 2)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
}
