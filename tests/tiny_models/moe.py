"""Decoders with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size, attention, embedding, moe_ffn, output, start

__all__ = ["WRITERS"]


def _qwen3moe(shape: ShapeName) -> Draft:
    # The large one's buffer is made of 8 experts a token, 4096 wide.
    n_expert, n_used, n_ff_exp = (8, 2, 256) if shape == "small" else (16, 8, 4096)
    size = Size.of(shape, n_layer=5, n_ff=1024)
    draft = start("qwen3moe", size)
    draft.keys(expert_count=n_expert, expert_used_count=n_used, expert_feed_forward_length=n_ff_exp)
    embedding(draft, size)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        attention(draft, block, size, qk_norm=True)
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        moe_ffn(draft, block, size.n_embd, n_ff_exp, n_expert)
    output(draft, size)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "qwen3moe": _qwen3moe,
}
