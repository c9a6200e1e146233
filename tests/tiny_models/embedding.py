"""Encoders that give embeddings, and encoders with a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, dense_ffn, start

__all__ = ["WRITERS"]


def _bert(shape: ShapeName) -> Draft:
    size = Size.of(shape)
    if shape == "large":
        size = size._replace(n_ff=53248)
    n_ctx = 512 if shape == "small" else 4096
    draft = Draft("bert", n_vocab=size.n_vocab, n_ctx=n_ctx)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        attention__head_count=size.n_head,
        attention__layer_norm_epsilon=1e-12,
        attention__causal=False,
        pooling_type=2,
    )
    draft.key("tokenizer.ggml.token_type_count", 2)
    draft.matrix("token_embd", size.n_embd, size.n_vocab)
    draft.vector("token_types", size.n_embd, 2)
    draft.vector("position_embd", size.n_embd, n_ctx)
    draft.vector("token_embd_norm", size.n_embd)
    draft.bias("token_embd_norm", size.n_embd)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            draft.matrix(f"{block}.{name}", size.n_embd, size.n_embd)
            draft.bias(f"{block}.{name}", size.n_embd)
        draft.matrix(f"{block}.ffn_up", size.n_embd, size.n_ff)
        draft.bias(f"{block}.ffn_up", size.n_ff)
        draft.matrix(f"{block}.ffn_down", size.n_ff, size.n_embd)
        draft.bias(f"{block}.ffn_down", size.n_embd)
        for norm in ("attn_output_norm", "layer_output_norm"):
            draft.vector(f"{block}.{norm}", size.n_embd)
            draft.bias(f"{block}.{norm}", size.n_embd)
    return draft


def _t5(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_head_kv=4 if shape == "small" else 8)
    if shape == "large":
        size = size._replace(n_ff=36864)
    draft = start("t5", size)
    draft.keys(attention__relative_buckets_count=32, decoder_start_token_id=0, decoder_block_count=size.n_layer)
    draft.matrix("token_embd", size.n_embd, size.n_vocab)
    width = size.n_head * size.head
    for side, parts in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        for index in range(size.n_layer):
            block = f"{side}.blk.{index}"
            for part in parts:
                draft.vector(f"{block}.{part}_norm", size.n_embd)
                for name in "qkv":
                    draft.matrix(f"{block}.{part}_{name}", size.n_embd, width)
                draft.matrix(f"{block}.{part}_o", width, size.n_embd)
            if index == 0:
                draft.vector(f"{block}.attn_rel_b", size.n_head, 32)
            draft.vector(f"{block}.ffn_norm", size.n_embd)
            dense_ffn(draft, block, size.n_embd, size.n_ff)
        draft.vector(f"{side}.output_norm", size.n_embd)
    draft.matrix("output", size.n_embd, size.n_vocab)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "bert": _bert,
    "t5": _t5,
}
