"""Parts that many architectures share: sizes, outer tensors, attention and feed-forward matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiny_models.drafts import Draft, ShapeName

__all__ = ["Size", "attention", "dense_ffn", "embedding", "moe_ffn", "outer", "output", "shared_ffn", "start"]


class Size(NamedTuple):
    """Dimensions of a decoder; `head` is the size of one head."""

    n_embd: int = 256
    n_layer: int = 4
    n_ff: int = 512
    n_head: int = 4
    n_head_kv: int = 2
    head: int = 64
    n_vocab: int = 1024

    @staticmethod
    def of(shape: ShapeName, **changes: int) -> Size:
        """The usual small or large size with some dimensions changed."""
        size = (
            Size()
            if shape == "small"
            else Size(n_embd=512, n_layer=4, n_ff=24576, n_head=8, n_head_kv=2, n_vocab=16384)
        )
        return size._replace(**changes)


def start(
    architecture: str, size: Size, *, rms: bool = True, eps: float = 1e-6, heads_kv: Sequence[int] | None = None
) -> Draft:
    """A draft with the keys that every transformer has; `heads_kv` where they differ from block to block."""
    draft = Draft(architecture, n_vocab=size.n_vocab)
    draft.keys(
        embedding_length=size.n_embd,
        block_count=size.n_layer,
        feed_forward_length=size.n_ff,
        attention__head_count=size.n_head,
        attention__head_count_kv=size.n_head_kv if heads_kv is None else heads_kv,
        attention__key_length=size.head,
        attention__value_length=size.head,
        rope__dimension_count=size.head,
    )
    draft.keys(**{"attention__layer_norm_rms_epsilon" if rms else "attention__layer_norm_epsilon": eps})
    return draft


def outer(draft: Draft, size: Size, *, tied: bool = False, norm_bias: bool = False) -> None:
    """Embedding, output norm and, unless tied, the output matrix: all before the blocks, as in some files."""
    embedding(draft, size)
    output(draft, size, tied=tied, norm_bias=norm_bias)


def embedding(draft: Draft, size: Size) -> None:
    """The token embedding."""
    draft.matrix("token_embd", size.n_embd, size.n_vocab)


def output(draft: Draft, size: Size, *, tied: bool = False, norm_bias: bool = False) -> None:
    """Output norm and, unless tied, the output matrix; most files have them after the blocks."""
    draft.vector("output_norm", size.n_embd)
    if norm_bias:
        draft.bias("output_norm", size.n_embd)
    if not tied:
        draft.matrix("output", size.n_embd, size.n_vocab)


def attention(draft: Draft, block: str, size: Size, *, bias: bool = False, qk_norm: bool = False) -> None:
    """Query, key, value and output matrices of one block, with biases or norms of query and key where wished."""
    n_q, n_kv = size.n_head * size.head, size.n_head_kv * size.head
    for name, rows in (("q", n_q), ("k", n_kv), ("v", n_kv)):
        draft.matrix(f"{block}.attn_{name}", size.n_embd, rows)
        if bias:
            draft.bias(f"{block}.attn_{name}", rows)
    draft.matrix(f"{block}.attn_output", n_q, size.n_embd)
    if qk_norm:
        draft.vector(f"{block}.attn_q_norm", size.head)
        draft.vector(f"{block}.attn_k_norm", size.head)


def dense_ffn(draft: Draft, block: str, n_embd: int, n_ff: int, *, gate: bool = True, bias: bool = False) -> None:
    """Feed-forward matrices of one block."""
    if gate:
        draft.matrix(f"{block}.ffn_gate", n_embd, n_ff)
    draft.matrix(f"{block}.ffn_up", n_embd, n_ff)
    draft.matrix(f"{block}.ffn_down", n_ff, n_embd)
    if bias:
        draft.bias(f"{block}.ffn_up", n_ff)
        draft.bias(f"{block}.ffn_down", n_embd)


def moe_ffn(draft: Draft, block: str, n_embd: int, n_ff: int, n_expert: int, *, type_name: str | None = None) -> None:
    """Router and expert matrices of one block."""
    draft.matrix(f"{block}.ffn_gate_inp", n_embd, n_expert)
    draft.matrix(f"{block}.ffn_gate_exps", n_embd, n_ff, n_expert, type_name=type_name)
    draft.matrix(f"{block}.ffn_down_exps", n_ff, n_embd, n_expert, type_name=type_name)
    draft.matrix(f"{block}.ffn_up_exps", n_embd, n_ff, n_expert, type_name=type_name)


def shared_ffn(draft: Draft, block: str, n_embd: int, n_ff: int, *, gated: bool = False) -> None:
    """Matrices of the expert that every token uses, with the vector that weighs it where `gated`."""
    if gated:
        draft.vector(f"{block}.ffn_gate_inp_shexp", n_embd)
    draft.matrix(f"{block}.ffn_gate_shexp", n_embd, n_ff)
    draft.matrix(f"{block}.ffn_down_shexp", n_ff, n_embd)
    draft.matrix(f"{block}.ffn_up_shexp", n_embd, n_ff)
