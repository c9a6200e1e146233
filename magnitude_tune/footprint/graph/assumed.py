"""Shapes of tensors where only a header's sums and widths are known: those of an ordinary transformer."""

from __future__ import annotations

from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, Role

__all__ = ["assumed_block", "assumed_outer"]

Shapes = dict[str, tuple[int, ...]]


def assumed_outer(header: ModelHeader) -> Shapes:
    """Tensors outside the blocks."""
    n_embd, n_vocab = max(0, header.n_embd), max(0, header.n_vocab)
    shapes: Shapes = {"token_embd.weight": (n_embd, n_vocab), "output_norm.weight": (n_embd,)}
    if not header.tied_output:
        shapes["output.weight"] = (n_embd, n_vocab)
    return shapes


def assumed_block(header: ModelHeader, block: int) -> Shapes:
    """Tensors of one block."""
    n_embd = max(0, header.n_embd)
    shapes: Shapes = {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)}
    layer = header.layers[block] if block < len(header.layers) else None
    if layer is not None and layer.attention is not Attention.RECURRENT:
        shapes |= _attention(layer, n_embd)
    moe = header.moe
    if moe is not None and any(group.block == block and group.role is Role.EXPERT_FFN for group in header.groups):
        shapes["ffn_gate_inp.weight"] = (n_embd, max(0, moe.expert_count))
        shapes |= _network(n_embd, moe.n_ff_expert, "_exps", max(0, moe.expert_count))
        return shapes | (_network(n_embd, moe.n_ff_shared, "_shexp") if moe.n_ff_shared else {})
    return shapes | _network(n_embd, header.n_ff[block] if block < len(header.n_ff) else 0, "")


def _attention(layer: LayerKv, n_embd: int) -> Shapes:
    heads, cached, k = max(0, layer.head_count), max(1, layer.head_count_kv), max(0, layer.k)
    q = heads * (k // cached) if k else n_embd
    v = max(0, layer.v) or k
    return {
        "attn_q.weight": (n_embd, q),
        "attn_k.weight": (n_embd, k),
        "attn_v.weight": (n_embd, v),
        "attn_output.weight": (heads * (v // cached) or q, n_embd),
    }


def _network(n_embd: int, n_ff: int, suffix: str, *experts: int) -> Shapes:
    n_ff = max(0, n_ff)
    return {
        f"ffn_gate{suffix}.weight": (n_embd, n_ff, *experts),
        f"ffn_up{suffix}.weight": (n_embd, n_ff, *experts),
        f"ffn_down{suffix}.weight": (n_ff, n_embd, *experts),
    }
