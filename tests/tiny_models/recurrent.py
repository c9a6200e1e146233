"""Models without attention: a state of fixed size a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size
from tiny_models.state_space import Scan, mamba2_block, mamba_block

__all__ = ["WRITERS"]

_N_VOCAB: Final = Size().n_vocab
_N_LAYER: Final = 4


def _recurrent(architecture: str, n_embd: int, n_ff: int = 0) -> Draft:
    draft = Draft(architecture, n_vocab=_N_VOCAB)
    draft.keys(embedding_length=n_embd, block_count=_N_LAYER, feed_forward_length=n_ff, attention__head_count=0)
    draft.matrix("token_embd", n_embd, _N_VOCAB)
    return draft


def _mamba(shape: ShapeName) -> Draft:
    n_embd = 256 if shape == "small" else 4096
    scan = Scan(n_embd, 2 * n_embd, 16, 32 if shape == "small" else 256)
    draft = _recurrent("mamba", n_embd)
    draft.keys(attention__layer_norm_rms_epsilon=1e-5)
    scan.keys(draft)
    draft.vector("output_norm", n_embd)
    for index in range(_N_LAYER):
        draft.vector(f"blk.{index}.attn_norm", n_embd)
        mamba_block(draft, f"blk.{index}", scan)
    return draft


def _mamba2(shape: ShapeName) -> Draft:
    scan = Scan(256, 512, 64, 8, 1) if shape == "small" else Scan(1024, 8192, 128, 128, 8)
    draft = _recurrent("mamba2", scan.n_embd)
    draft.keys(attention__layer_norm_rms_epsilon=1e-5)
    scan.keys(draft)
    draft.vector("output_norm", scan.n_embd)
    for index in range(_N_LAYER):
        draft.vector(f"blk.{index}.attn_norm", scan.n_embd)
        mamba2_block(draft, f"blk.{index}", scan)
    return draft


def _rwkv_norms(draft: Draft, index: int, n_embd: int) -> None:
    for norm in ("attn_norm", "attn_norm_2", "time_mix_ln"):
        draft.vector(f"blk.{index}.{norm}", n_embd)
        draft.bias(f"blk.{index}.{norm}", n_embd)


def _rwkv_outer(draft: Draft, n_embd: int) -> None:
    for norm in ("token_embd_norm", "output_norm"):
        draft.vector(norm, n_embd)
        draft.bias(norm, n_embd)
    draft.matrix("output", n_embd, _N_VOCAB)


def _rwkv6(shape: ShapeName) -> Draft:
    n_embd, n_ff, head, mix, decay = (256, 1024, 64, 32, 64) if shape == "small" else (2048, 26624, 64, 32, 64)
    draft = _recurrent("rwkv6", n_embd, n_ff)
    draft.keys(
        attention__layer_norm_epsilon=1e-5,
        wkv__head_size=head,
        time_mix_extra_dim=mix,
        time_decay_extra_dim=decay,
        rescale_every_n_layers=6,
    )
    _rwkv_outer(draft, n_embd)
    for index in range(_N_LAYER):
        block = f"blk.{index}"
        _rwkv_norms(draft, index, n_embd)
        draft.matrix(f"{block}.time_mix_w1", n_embd, mix * 5, type_name="F16")
        draft.matrix(f"{block}.time_mix_w2", mix, n_embd, 5, type_name="F16")
        draft.vector(f"{block}.time_mix_lerp_x", n_embd, 1, 1)
        draft.vector(f"{block}.time_mix_lerp_fused", n_embd, 1, 1, 5)
        draft.vector(f"{block}.time_mix_first", head, n_embd // head)
        draft.vector(f"{block}.time_mix_decay", n_embd)
        draft.matrix(f"{block}.time_mix_decay_w1", n_embd, decay, type_name="F16")
        draft.matrix(f"{block}.time_mix_decay_w2", decay, n_embd, type_name="F16")
        for name in ("key", "value", "receptance", "gate", "output"):
            draft.matrix(f"{block}.time_mix_{name}", n_embd, n_embd)
        draft.vector(f"{block}.channel_mix_lerp_k", n_embd, 1, 1)
        draft.vector(f"{block}.channel_mix_lerp_r", n_embd, 1, 1)
        draft.matrix(f"{block}.channel_mix_key", n_embd, n_ff, type_name="Q4_0")
        draft.matrix(f"{block}.channel_mix_value", n_ff, n_embd, type_name="Q4_0")
        draft.matrix(f"{block}.channel_mix_receptance", n_embd, n_embd)
    return draft


def _rwkv7(shape: ShapeName) -> Draft:
    n_embd, n_ff = (256, 1024) if shape == "small" else (2048, 24576)
    ranks = {"decay": 64, "iclr": 64, "value_residual_mix": 32, "gate": 128}
    draft = _recurrent("rwkv7", n_embd, n_ff)
    draft.keys(attention__layer_norm_epsilon=1e-5, wkv__head_size=64)
    draft.keys(**{f"attention__{name}_lora_rank": rank for name, rank in ranks.items()})
    _rwkv_outer(draft, n_embd)
    for index in range(_N_LAYER):
        block = f"blk.{index}"
        _rwkv_norms(draft, index, n_embd)
        mixes = {"w": "decay", "a": "iclr", "v": "value_residual_mix" if index else "iclr"}
        for letter, kind in mixes.items():
            draft.vector(f"{block}.time_mix_{letter}0", n_embd)
            draft.matrix(f"{block}.time_mix_{letter}1", n_embd, ranks[kind], type_name="F16")
            draft.matrix(f"{block}.time_mix_{letter}2", ranks[kind], n_embd, type_name="F16")
        draft.matrix(f"{block}.time_mix_g1", n_embd, ranks["gate"], type_name="F16")
        draft.matrix(f"{block}.time_mix_g2", ranks["gate"], n_embd, type_name="F16")
        draft.vector(f"{block}.time_mix_lerp_fused", n_embd, 1, 1, 6)
        for name in ("k_k", "k_a", "r_k"):
            draft.vector(f"{block}.time_mix_{name}", n_embd)
        for name in ("key", "value", "receptance", "output"):
            draft.matrix(f"{block}.time_mix_{name}", n_embd, n_embd)
        draft.vector(f"{block}.channel_mix_lerp_k", n_embd, 1, 1)
        draft.matrix(f"{block}.channel_mix_key", n_embd, n_ff, type_name="Q4_0")
        draft.matrix(f"{block}.channel_mix_value", n_ff, n_embd, type_name="Q4_0")
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "rwkv6": _rwkv6,
    "rwkv7": _rwkv7,
}
