"""Blocks with a recurrent state, as pure and hybrid models share them."""

from __future__ import annotations

from typing import NamedTuple

from tiny_models.drafts import Draft

__all__ = ["Scan", "mamba2_block", "mamba_block"]


class Scan(NamedTuple):
    """Dimensions of a state-space block; `dt_rank` counts heads where there are groups."""

    n_embd: int
    d_inner: int
    d_state: int
    dt_rank: int
    n_group: int = 0
    d_conv: int = 4

    def keys(self, draft: Draft) -> None:
        """The keys that describe it."""
        draft.keys(
            ssm__conv_kernel=self.d_conv,
            ssm__inner_size=self.d_inner,
            ssm__state_size=self.d_state,
            ssm__time_step_rank=self.dt_rank,
        )
        if self.n_group:
            draft.keys(ssm__group_count=self.n_group)


def mamba_block(draft: Draft, block: str, scan: Scan, *, norms: bool = False) -> None:
    """The first kind: projections of time step, input and output; with norms of their own in jamba."""
    draft.matrix(f"{block}.ssm_in", scan.n_embd, 2 * scan.d_inner, type_name="Q4_0")
    draft.vector(f"{block}.ssm_conv1d", scan.d_conv, scan.d_inner)
    draft.bias(f"{block}.ssm_conv1d", scan.d_inner)
    draft.matrix(f"{block}.ssm_x", scan.d_inner, scan.dt_rank + 2 * scan.d_state)
    if norms:
        draft.vector(f"{block}.ssm_dt_norm", scan.dt_rank)
        draft.vector(f"{block}.ssm_b_norm", scan.d_state)
        draft.vector(f"{block}.ssm_c_norm", scan.d_state)
    draft.matrix(f"{block}.ssm_dt", scan.dt_rank, scan.d_inner)
    draft.bias(f"{block}.ssm_dt", scan.d_inner)
    draft.tensor(f"{block}.ssm_a", scan.d_state, scan.d_inner)
    draft.tensor(f"{block}.ssm_d", scan.d_inner)
    draft.matrix(f"{block}.ssm_out", scan.d_inner, scan.n_embd, type_name="Q4_0")


def mamba2_block(draft: Draft, block: str, scan: Scan) -> None:
    """The second kind: heads in groups, one projection for all."""
    conv = scan.d_inner + 2 * scan.n_group * scan.d_state
    draft.matrix(f"{block}.ssm_in", scan.n_embd, scan.d_inner + conv + scan.dt_rank)
    draft.vector(f"{block}.ssm_conv1d", scan.d_conv, conv)
    draft.bias(f"{block}.ssm_conv1d", conv)
    draft.bias(f"{block}.ssm_dt", scan.dt_rank)
    draft.tensor(f"{block}.ssm_a", 1, scan.dt_rank)
    draft.tensor(f"{block}.ssm_d", 1, scan.dt_rank)
    draft.vector(f"{block}.ssm_norm", scan.d_inner // scan.n_group, scan.n_group)
    draft.matrix(f"{block}.ssm_out", scan.d_inner, scan.n_embd)
