"""What one token costs in each block: bytes read, operations done, cells attended. Prepared once for a model."""

from __future__ import annotations

from itertools import accumulate
from operator import add, sub
from typing import Final, NamedTuple

from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, RecurrentShape, Role, TensorGroup
from magnitude_tune.throughput.repack import Repackable

__all__ = ["Cost", "ModelCosts", "model_costs"]

_READ: Final = frozenset(
    (Role.ATTENTION, Role.DENSE_FFN, Role.SHARED_EXPERT, Role.RECURRENT, Role.NORM, Role.OUTPUT, Role.OTHER)
)
"""Roles that every token reads whole. Embeddings are looked up, experts are read in part, unused tensors never."""


class Cost(NamedTuple):
    """Sums over a run of blocks (or the output layer), for one token.

    Args:
        blocks: blocks that run.
        dense_bytes, dense_flops: weights that every token reads, and two operations for each of them.
        repack_flops, repack_bytes: the part of the dense weights that extra buffers hold in a faster layout.
        expert_blocks: blocks with experts.
        expert_bytes, expert_read_bytes, expert_flops: all experts, the share a token uses, and its operations.
        expert_repack_flops, expert_repack_bytes: the part of the experts that extra buffers hold.
        state_bytes: recurrent state, read and written.
        attention_flops, heads, k, v: per attended cell: operations, rows of scores, cached elements.
        sliding_*: the same in blocks that attend at most the window.
    """

    blocks: float = 0.0
    dense_bytes: float = 0.0
    dense_flops: float = 0.0
    repack_flops: float = 0.0
    repack_bytes: float = 0.0
    expert_blocks: float = 0.0
    expert_bytes: float = 0.0
    expert_read_bytes: float = 0.0
    expert_flops: float = 0.0
    expert_repack_flops: float = 0.0
    expert_repack_bytes: float = 0.0
    state_bytes: float = 0.0
    attention_flops: float = 0.0
    heads: float = 0.0
    k: float = 0.0
    v: float = 0.0
    sliding_attention_flops: float = 0.0
    sliding_heads: float = 0.0
    sliding_k: float = 0.0
    sliding_v: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """All weights, used or not."""
        return self.dense_bytes + self.expert_bytes

    def without_experts(self) -> Cost:
        """The part that stays on a device when `n_cpu_moe` leaves these blocks' experts on the host."""
        return Cost(*(0.0 if name in _EXPERT_NAMES else getattr(self, name) for name in _NAMES))

    def experts(self) -> Cost:
        """The experts alone."""
        return Cost(*(getattr(self, name) if name in _EXPERT_NAMES else 0.0 for name in _NAMES))


_NAMES: Final = Cost._fields
_EXPERT_NAMES: Final = frozenset(name for name in _NAMES if name.startswith("expert_"))


class ModelCosts(NamedTuple):
    """Costs of a model: any run of blocks at once, and the output layer.

    `used_share` is used/total experts, 1 without experts; `window` is in tokens, 0 where no block slides.
    """

    prefixes: tuple[tuple[float, ...], ...]
    output: Cost
    block_count: int
    n_embd: int
    n_vocab: int
    window: int
    used_share: float

    def between(self, first: int, end: int) -> Cost:
        """The sum over blocks first .. end-1."""
        return Cost(*map(sub, self.prefixes[max(first, end)], self.prefixes[first]))


def model_costs(header: ModelHeader, repackable: Repackable) -> ModelCosts:
    """Add up a model's costs; `repackable` says which weights extra buffers hold in a faster layout.

    A token reads the dense weights of every block, the used share of its experts (field report B48), and the output
    matrix, which is the token embedding where the two are tied. The token embedding itself and per-layer embeddings
    are looked up: they cost nothing. The multi-token-prediction blocks at the end are not run.
    """
    share = _used_share(header)
    last = max(header.block_count - header.nextn_predict_layers, 0)
    blocks: list[dict[str, float]] = [dict.fromkeys(_NAMES, 0.0) for _ in range(header.block_count)]
    output = dict.fromkeys(_NAMES, 0.0)
    for group in header.groups:
        if group.block is None:
            if group.role in _READ or (header.tied_output and group.role is Role.TOKEN_EMBEDDING):
                _add_dense(output, group, repackable.output)
        elif 0 <= group.block < last:
            if group.role is Role.EXPERT_FFN:
                _add_experts(blocks[group.block], group, share, repackable.experts)
            elif group.role in _READ:
                _add_dense(blocks[group.block], group, repackable.dense)
    for layer, block in zip(header.layers[:last], blocks, strict=False):
        block["blocks"] = 1.0
        _add_attention(block, layer, header.sliding_window)
        _add_state(block, layer, header.recurrent)
    rows = accumulate(
        (tuple(block.values()) for block in blocks),
        lambda total, row: tuple(map(add, total, row)),
        initial=(0.0,) * len(_NAMES),
    )
    return ModelCosts(
        prefixes=tuple(rows),
        output=Cost(**output),
        block_count=header.block_count,
        n_embd=header.n_embd,
        n_vocab=header.n_vocab,
        window=header.sliding_window,
        used_share=share,
    )


def _used_share(header: ModelHeader) -> float:
    moe = header.moe
    if moe is None or moe.expert_count <= 0:
        return 1.0
    return min(1.0, max(moe.expert_used_count, 1) / moe.expert_count)


def _add_dense(cost: dict[str, float], group: TensorGroup, repacked: frozenset[str]) -> None:
    cost["dense_bytes"] += group.n_bytes
    cost["dense_flops"] += 2.0 * group.n_params
    part = _repacked_part(group, repacked)
    cost["repack_flops"] += 2.0 * group.n_params * part
    cost["repack_bytes"] += group.n_bytes * part


def _add_experts(cost: dict[str, float], group: TensorGroup, share: float, repacked: frozenset[str]) -> None:
    cost["expert_blocks"] = 1.0
    cost["expert_bytes"] += group.n_bytes
    cost["expert_read_bytes"] += group.n_bytes * share
    cost["expert_flops"] += 2.0 * group.n_params * share
    part = _repacked_part(group, repacked)
    cost["expert_repack_flops"] += 2.0 * group.n_params * share * part
    cost["expert_repack_bytes"] += group.n_bytes * part


def _repacked_part(group: TensorGroup, types: frozenset[str]) -> float:
    return min(1.0, group.repackable_bytes / group.n_bytes) if group.n_bytes and group.type_name in types else 0.0


def _add_attention(cost: dict[str, float], layer: LayerKv, window: int) -> None:
    """Scores and mix per attended cell: 2 * heads * (key length + value length); MLA's values are part of its keys."""
    prefix = "sliding_" if layer.attention is Attention.SLIDING and window > 0 else ""
    v = layer.v or (layer.k if layer.attention is Attention.MLA else 0)
    heads_per_kv_head = layer.head_count / layer.head_count_kv if layer.head_count_kv > 0 else 0.0
    cost[f"{prefix}attention_flops"] += 2.0 * heads_per_kv_head * (layer.k + v)
    cost[f"{prefix}heads"] += layer.head_count if layer.k else 0
    cost[f"{prefix}k"] += layer.k + layer.indexer
    cost[f"{prefix}v"] += layer.v


def _add_state(cost: dict[str, float], layer: LayerKv, shape: RecurrentShape | None) -> None:
    """Recurrent state is f32 whatever the cache's types are; each token reads and writes it."""
    if shape is not None and layer.attention in (Attention.RECURRENT, Attention.HYBRID):
        cost["state_bytes"] += 2.0 * 4.0 * (shape.r + shape.s)
