"""Encoders that give embeddings: no cache, no generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size

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


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "bert": _bert,
}
