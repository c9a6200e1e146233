"""RWKV in the place of attention: models converted from transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, dense_ffn, embedding, output

__all__ = ["WRITERS"]

_HEAD: Final = 64


def _start(architecture: str, size: Size) -> Draft:
    draft = Draft(architecture, n_vocab=size.n_vocab)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        attention__head_count=0,
        attention__layer_norm_rms_epsilon=1e-5,
        token_shift_count=1,
        wkv__head_size=_HEAD,
    )
    return draft


def _rwkv6qwen2(shape: ShapeName) -> Draft:
    """Fewer heads of keys and values than of the rest."""
    size = Size.of(shape)
    mix, decay, narrow = 32, 64, size.n_head_kv * _HEAD
    draft = Draft("rwkv6qwen2", n_vocab=size.n_vocab)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        attention__head_count=size.n_embd // _HEAD,
        attention__head_count_kv=size.n_head_kv,
        attention__layer_norm_rms_epsilon=1e-5,
        token_shift_count=1,
        wkv__head_size=_HEAD,
        time_mix_extra_dim=mix,
        time_decay_extra_dim=decay,
    )
    embedding(draft, size)
    n_embd = size.n_embd
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", n_embd)
        draft.matrix(f"{block}.time_mix_w1", n_embd, mix * 5, type_name="F16")
        draft.matrix(f"{block}.time_mix_w2", mix, n_embd, 5, type_name="F16")
        draft.vector(f"{block}.time_mix_lerp_x", n_embd, 1, 1)
        draft.vector(f"{block}.time_mix_lerp_fused", n_embd, 1, 1, 5)
        draft.vector(f"{block}.time_mix_decay", n_embd)
        draft.matrix(f"{block}.time_mix_decay_w1", n_embd, decay, type_name="F16")
        draft.matrix(f"{block}.time_mix_decay_w2", decay, n_embd, type_name="F16")
        for name in ("key", "value"):
            draft.matrix(f"{block}.time_mix_{name}", n_embd, narrow)
            draft.bias(f"{block}.time_mix_{name}", narrow)
        for name in ("receptance", "gate", "output"):
            draft.matrix(f"{block}.time_mix_{name}", n_embd, n_embd)
        draft.bias(f"{block}.time_mix_receptance", n_embd)
        draft.vector(f"{block}.ffn_norm", n_embd)
        dense_ffn(draft, block, n_embd, size.n_ff)
    output(draft, size)
    return draft


def _arwkv7(shape: ShapeName) -> Draft:
    size = Size.of(shape)
    n_embd = size.n_embd
    ranks = {"decay": 64, "iclr": 64, "value_residual_mix": 32, "gate": 128}
    draft = _start("arwkv7", size)
    draft.keys(**{f"attention__{name}_lora_rank": rank for name, rank in ranks.items()})
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", n_embd)
        values = ranks["value_residual_mix"] if index else ranks["iclr"]
        for name, rank in (("w", ranks["decay"]), ("a", ranks["iclr"]), ("v", values), ("g", ranks["gate"])):
            draft.matrix(f"{block}.time_mix_{name}1", n_embd, rank, type_name="F16")
            draft.matrix(f"{block}.time_mix_{name}2", rank, n_embd, type_name="F16")
            if name != "g":
                draft.vector(f"{block}.time_mix_{name}0", n_embd)
        draft.vector(f"{block}.time_mix_lerp_fused", n_embd, 1, 1, 6)
        for name in ("k_k", "k_a", "r_k"):
            draft.vector(f"{block}.time_mix_{name}", n_embd)
        for name in ("key", "value", "receptance", "output"):
            draft.matrix(f"{block}.time_mix_{name}", n_embd, n_embd)
        draft.vector(f"{block}.ffn_norm", n_embd)
        dense_ffn(draft, block, n_embd, size.n_ff)
    output(draft, size)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "rwkv6qwen2": _rwkv6qwen2,
    "arwkv7": _arwkv7,
}
