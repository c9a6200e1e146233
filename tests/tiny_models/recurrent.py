"""Models without attention: a state of fixed size a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_models.drafts import Draft, ShapeName
from tiny_models.parts import Size

__all__ = ["WRITERS"]


def _mamba2(shape: ShapeName) -> Draft:
    n_embd, d_inner, d_state, n_group, n_heads = (256, 512, 64, 1, 8) if shape == "small" else (1024, 8192, 128, 8, 128)
    n_layer, d_conv = 4, 4
    draft = Draft("mamba2", n_vocab=1024)
    draft.keys(
        embedding_length=n_embd,
        block_count=n_layer,
        feed_forward_length=0,
        attention__head_count=0,
        attention__layer_norm_rms_epsilon=1e-5,
        ssm__conv_kernel=d_conv,
        ssm__inner_size=d_inner,
        ssm__state_size=d_state,
        ssm__time_step_rank=n_heads,
        ssm__group_count=n_group,
    )
    conv = d_inner + 2 * n_group * d_state
    draft.matrix("token_embd", n_embd, Size().n_vocab)
    draft.vector("output_norm", n_embd)
    for index in range(n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", n_embd)
        draft.matrix(f"{block}.ssm_in", n_embd, d_inner + conv + n_heads)
        draft.vector(f"{block}.ssm_conv1d", d_conv, conv)
        draft.bias(f"{block}.ssm_conv1d", conv)
        draft.bias(f"{block}.ssm_dt", n_heads)
        draft.tensor(f"{block}.ssm_a", 1, n_heads)
        draft.tensor(f"{block}.ssm_d", 1, n_heads)
        draft.vector(f"{block}.ssm_norm", d_inner // n_group, n_group)
        draft.matrix(f"{block}.ssm_out", d_inner, n_embd)
    return draft


WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    "mamba2": _mamba2,
}
