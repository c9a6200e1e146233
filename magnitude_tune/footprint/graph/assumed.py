"""Shapes of tensors where only a header's sums and widths are known: those of an ordinary transformer."""

from __future__ import annotations

from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, Role

__all__ = ["assumed_block", "assumed_outer"]

Shapes = dict[str, tuple[int, ...]]


def assumed_outer(header: ModelHeader) -> Shapes:
    """Tensors outside the blocks."""
    shapes: Shapes = {"token_embd.weight": (header.n_embd, header.n_vocab), "output_norm.weight": (header.n_embd,)}
    if not header.tied_output:
        shapes["output.weight"] = (header.n_embd, header.n_vocab)
    return shapes


def assumed_block(header: ModelHeader, block: int) -> Shapes:
    """Tensors of one block."""
    n_embd = header.n_embd
    shapes: Shapes = {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)}
    layer = header.layers[block] if block < len(header.layers) else None
    if layer is not None and layer.attention is not Attention.RECURRENT:
        shapes |= _attention(layer, n_embd)
    moe = header.moe
    if moe is not None and any(group.block == block and group.role is Role.EXPERT_FFN for group in header.groups):
        shapes["ffn_gate_inp.weight"] = (n_embd, moe.expert_count)
        shapes |= _network(n_embd, moe.n_ff_expert, "_exps", moe.expert_count)
        return shapes | (_network(n_embd, moe.n_ff_shared, "_shexp") if moe.n_ff_shared else {})
    return shapes | _network(n_embd, header.n_ff[block] if block < len(header.n_ff) else 0, "")


def _attention(layer: LayerKv, n_embd: int) -> Shapes:
    q = layer.head_count * (layer.k // layer.head_count_kv) if layer.head_count_kv and layer.k else n_embd
    v = layer.v or layer.k
    return {
        "attn_q.weight": (n_embd, q),
        "attn_k.weight": (n_embd, layer.k),
        "attn_v.weight": (n_embd, v),
        "attn_output.weight": (layer.head_count * (v // max(1, layer.head_count_kv)) or q, n_embd),
    }


def _network(n_embd: int, n_ff: int, suffix: str, *experts: int) -> Shapes:
    return {
        f"ffn_gate{suffix}.weight": (n_embd, n_ff, *experts),
        f"ffn_up{suffix}.weight": (n_embd, n_ff, *experts),
        f"ffn_down{suffix}.weight": (n_ff, n_embd, *experts),
    }
