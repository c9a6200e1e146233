"""Decoders of which some blocks attend to a sliding window only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, dense_ffn, embedding, outer, output, start

__all__ = ["WRITERS"]


def _gemma2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=5, head=128)
    draft = start("gemma2", size)
    draft.keys(
        attention__sliding_window=512,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    embedding(draft, size)
    for index in range(size.n_layer):
        _gemma_block(draft, f"blk.{index}", size, qk_norm=False)
    output(draft, size, tied=True)
    return draft


def _gemma3(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=7, head=128, n_head_kv=1)
    draft = start("gemma3", size)
    draft.keys(attention__sliding_window=512)
    embedding(draft, size)
    for index in range(size.n_layer):
        _gemma_block(draft, f"blk.{index}", size, qk_norm=True)
    output(draft, size, tied=True)
    return draft


def _gemma_block(draft: Draft, block: str, size: Size, *, qk_norm: bool) -> None:
    draft.vector(f"{block}.attn_norm", size.n_embd)
    attention(draft, block, size, qk_norm=qk_norm)
    draft.vector(f"{block}.post_attention_norm", size.n_embd)
    draft.vector(f"{block}.ffn_norm", size.n_embd)
    dense_ffn(draft, block, size.n_embd, size.n_ff)
    draft.vector(f"{block}.post_ffw_norm", size.n_embd)


def _gemma3n(shape: ShapeName) -> Draft:
    """Blocks from the twentieth on use the cache of earlier ones; four streams of activations."""
    size = Size.of(shape, n_layer=22, n_head_kv=1)
    if shape == "large":
        size = size._replace(n_ff=18432)
    streams, per_layer, rank = 4, 256, 64
    draft = start("gemma3n", size)
    draft.keys(attention__sliding_window=512, embedding_length_per_layer_input=per_layer)
    embedding(draft, size)
    draft.matrix("altup_proj", size.n_embd, size.n_embd, streams - 1, type_name="F16")
    draft.matrix("altup_unembd_proj", size.n_embd, size.n_embd, streams - 1, type_name="F16")
    draft.matrix("per_layer_token_embd", per_layer * size.n_layer, size.n_vocab)
    draft.matrix("per_layer_model_proj", size.n_embd, per_layer * size.n_layer, type_name="F16")
    draft.vector("per_layer_proj_norm", per_layer)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        _gemma_block(draft, block, size, qk_norm=True)
        draft.matrix(f"{block}.inp_gate", size.n_embd, per_layer)
        draft.matrix(f"{block}.proj", per_layer, size.n_embd)
        draft.vector(f"{block}.post_norm", size.n_embd)
        draft.vector(f"{block}.altup_correct_coef", streams, streams)
        draft.vector(f"{block}.altup_correct_scale", size.n_embd)
        draft.vector(f"{block}.altup_predict_coef", streams, streams * streams)
        draft.vector(f"{block}.altup_router", size.n_embd, streams)
        draft.vector(f"{block}.altup_router_norm", size.n_embd)
        draft.matrix(f"{block}.laurel_l", size.n_embd, rank)
        draft.matrix(f"{block}.laurel_r", rank, size.n_embd)
        draft.vector(f"{block}.laurel_post_norm", size.n_embd)
    output(draft, size, tied=True)
    return draft


def _cohere2(shape: ShapeName) -> Draft:
    size = Size.of(shape, n_layer=5)
    draft = start("cohere2", size, rms=False, eps=1e-5)
    draft.keys(attention__sliding_window=1024, logit_scale=0.25)
    outer(draft, size, tied=True)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size)
        dense_ffn(draft, block, size.n_embd, size.n_ff)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "cohere2": _cohere2,
}
