"""Dense decoders that differ from llama in a few places each, written from one table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, embedding, output, start

__all__ = ["WRITERS"]


class _Look(NamedTuple):
    """What one architecture has; names of norms, and of matrices with a bias."""

    rms: bool = True
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    norm_bias: bool = False
    head_norms: bool = False
    flat_head_norms: bool = False
    fused: bool = False
    biases: tuple[str, ...] = ()
    gate: bool = True
    up_holds_gate: bool = False
    embedding_norm: bool = False
    positions: bool = False
    output_bias: bool = False
    tied: bool = False
    full_heads: bool = False
    n_layer: int = 4
    keys: tuple[tuple[str, Any], ...] = ()


_SPLIT: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
_FUSED: Final = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
_LOOKS: Final = {
    "mistral3": _Look(keys=(("attention__temperature_scale", 0.1), ("rope__scaling__original_context_length", 4096))),
    "phi2": _Look(
        rms=False, norms=("attn_norm",), norm_bias=True, biases=_SPLIT, gate=False, output_bias=True, full_heads=True
    ),
    "falcon": _Look(rms=False, norms=("attn_norm",), norm_bias=True, fused=True, gate=False),
    "gptneox": _Look(
        rms=False,
        norm_bias=True,
        fused=True,
        biases=_FUSED,
        gate=False,
        full_heads=True,
        keys=(("use_parallel_residual", True),),
    ),
    "gpt2": _Look(
        rms=False, norm_bias=True, fused=True, biases=_FUSED, gate=False, full_heads=True, positions=True, tied=True
    ),
    "bloom": _Look(
        rms=False, norm_bias=True, fused=True, biases=_FUSED, gate=False, full_heads=True, embedding_norm=True
    ),
    "stablelm": _Look(rms=False, norms=("attn_norm",), norm_bias=True, keys=(("use_parallel_residual", True),)),
    "command-r": _Look(rms=False, norms=("attn_norm",), tied=True, keys=(("logit_scale", 0.25),)),
    "olmo": _Look(rms=False, norms=()),
    "olmo2": _Look(norms=("post_attention_norm", "post_ffw_norm"), flat_head_norms=True),
    "exaone4": _Look(
        norms=("post_attention_norm", "post_ffw_norm"),
        head_norms=True,
        n_layer=8,
        keys=(("attention__sliding_window", 512),),
    ),
    "glm4": _Look(
        norms=("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), gate=False, up_holds_gate=True
    ),
    "chatglm": _Look(fused=True, gate=False, up_holds_gate=True),
    "qwen2vl": _Look(biases=("attn_q", "attn_k", "attn_v"), keys=(("rope__dimension_sections", [16, 24, 24, 0]),)),
    "qwen3vl": _Look(head_norms=True, keys=(("rope__dimension_sections", [24, 20, 20, 0]), ("n_deepstack_layers", 3))),
    "granite": _Look(
        keys=(("logit_scale", 8.0), ("residual_scale", 0.22), ("embedding_scale", 12.0), ("attention__scale", 0.0156))
    ),
    "nemotron": _Look(rms=False, norm_bias=True, gate=False),
    "smollm3": _Look(),
    "seed_oss": _Look(norms=("attn_norm", "post_attention_norm"), biases=("attn_q", "attn_k", "attn_v")),
    "bitnet": _Look(norms=("attn_norm", "ffn_norm", "attn_sub_norm", "ffn_sub_norm"), tied=True),
    "hunyuan-dense": _Look(head_norms=True),
    "dream": _Look(biases=("attn_q", "attn_k", "attn_v")),
}


def _write(name: str, shape: ShapeName) -> Draft:
    look = _LOOKS[name]
    size = Size.of(shape, n_layer=look.n_layer)
    if look.full_heads:
        size = size._replace(n_head_kv=size.n_head)
    if not look.gate and shape == "large":
        size = size._replace(n_ff=36864)
    draft = start(name, size, rms=look.rms)
    draft.keys(**dict(look.keys))
    embedding(draft, size)
    if look.embedding_norm:
        _norm(draft, "token_embd_norm", size.n_embd, bias=True)
    if look.positions:
        draft.vector("position_embd", size.n_embd, 32768)
    for index in range(size.n_layer):
        _block(draft, f"blk.{index}", size, look)
    if look.norms:
        output(draft, size, tied=look.tied, norm_bias=look.norm_bias)
    else:
        draft.matrix("output", size.n_embd, size.n_vocab)
    if look.output_bias:
        draft.bias("output", size.n_vocab)
    return draft


def _block(draft: Draft, block: str, size: Size, look: _Look) -> None:
    n_q, n_kv = size.n_head * size.head, size.n_head_kv * size.head
    for name in look.norms:
        _norm(draft, f"{block}.{name}", size.n_ff if name == "ffn_sub_norm" else size.n_embd, bias=look.norm_bias)
    shapes = {"attn_output": (n_q, size.n_embd)}
    if look.fused:
        shapes["attn_qkv"] = (size.n_embd, n_q + 2 * n_kv)
    else:
        shapes |= {"attn_q": (size.n_embd, n_q), "attn_k": (size.n_embd, n_kv), "attn_v": (size.n_embd, n_kv)}
    shapes |= {
        "ffn_up": (size.n_embd, size.n_ff * (2 if look.up_holds_gate else 1)),
        "ffn_down": (size.n_ff, size.n_embd),
    }
    if look.gate:
        shapes["ffn_gate"] = (size.n_embd, size.n_ff)
    for name, (n_in, n_out) in shapes.items():
        draft.matrix(f"{block}.{name}", n_in, n_out)
        if name in look.biases:
            draft.bias(f"{block}.{name}", n_out)
    if look.head_norms or look.flat_head_norms:
        draft.vector(f"{block}.attn_q_norm", *_head_norm_shape(look, size.head, size.n_head))
        draft.vector(f"{block}.attn_k_norm", *_head_norm_shape(look, size.head, size.n_head_kv))


def _head_norm_shape(look: _Look, head: int, n_heads: int) -> tuple[int, ...]:
    """One norm for each head, or for all of them together."""
    return (head * n_heads,) if look.flat_head_norms else (head,)


def _norm(draft: Draft, name: str, width: int, *, bias: bool) -> None:
    draft.vector(name, width)
    if bias:
        draft.bias(name, width)


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {name: partial(_write, name) for name in _LOOKS}
