"""What one token costs in each block: bytes read, operations done, cells attended. Prepared once for a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import accumulate
from operator import add, sub
from typing import Final

from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, Role, TensorGroup

__all__ = ["Cost", "ModelCosts", "kv_bytes_per_element", "model_costs", "repacked_types"]

_DENSE: Final = frozenset(
    (Role.ATTENTION, Role.DENSE_FFN, Role.SHARED_EXPERT, Role.RECURRENT, Role.NORM, Role.OUTPUT, Role.OTHER)
)
_KV_BYTES: Final = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
_X86_TYPES: Final = frozenset(("q4_0", "q4_k", "iq4_nl", "mxfp4"))
_ARM_TYPES: Final = _X86_TYPES | {"q5_k", "q6_k", "q8_0"}
_AMX_TYPES: Final = frozenset(("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs"))


def kv_bytes_per_element(type_name: str) -> float:
    """Bytes of one cached element; a type we do not know counts as f16."""
    return _KV_BYTES.get(type_name, 2.0)


def repacked_types(layouts: Iterable[str], *, arm: bool) -> frozenset[str]:
    """Weight types that these extra buffers hold in a faster layout (llama.cpp rules, section 4, CPU_REPACK)."""
    types: frozenset[str] = frozenset()
    for layout in layouts:
        types |= _AMX_TYPES if layout == "amx" else _ARM_TYPES if arm else _X86_TYPES
    return types


@dataclass(frozen=True, slots=True)
class Cost:
    """Sums over a run of blocks (or the output layer), for one token.

    Bytes are weights as stored: `expert_read_bytes` is the used share of `expert_bytes`. Operations are floating-point
    ones, two a weight. `*_repack_flops` are the part of them in weights that extra buffers can repack; `repack_bytes`
    the bytes of those. `attention_flops` are per attended cell, `heads` count rows of attention scores, and
    `k`, `v` cached elements per cell; the `sliding_` ones reach at most the window. `blocks` are blocks that run.
    """

    blocks: float = 0.0
    dense_bytes: float = 0.0
    dense_flops: float = 0.0
    dense_repack_flops: float = 0.0
    dense_repack_bytes: float = 0.0
    expert_bytes: float = 0.0
    expert_read_bytes: float = 0.0
    expert_flops: float = 0.0
    expert_repack_flops: float = 0.0
    expert_repack_bytes: float = 0.0
    attention_flops: float = 0.0
    heads: float = 0.0
    k: float = 0.0
    v: float = 0.0
    sliding_attention_flops: float = 0.0
    sliding_heads: float = 0.0
    sliding_k: float = 0.0
    sliding_v: float = 0.0

    def without(self, part: Cost) -> Cost:
        """What is left when a part of it goes elsewhere."""
        return Cost(*(getattr(self, name) - getattr(part, name) for name in _NAMES))


_NAMES: Final = tuple(field.name for field in fields(Cost))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
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

    def experts_between(self, first: int, end: int) -> Cost:
        """The experts alone of blocks first .. end-1: what `n_cpu_moe` moves to the host."""
        cost = self.between(first, end)
        return Cost(
            expert_bytes=cost.expert_bytes,
            expert_read_bytes=cost.expert_read_bytes,
            expert_flops=cost.expert_flops,
            expert_repack_flops=cost.expert_repack_flops,
            expert_repack_bytes=cost.expert_repack_bytes,
        )


def model_costs(header: ModelHeader, repackable: frozenset[str]) -> ModelCosts:
    """Add up a model's costs; `repackable` are the weight types that extra buffers hold.

    A token reads the dense weights of every block, the used share of its experts, and the output matrix (the token
    embedding where the two are tied). Embeddings are looked up, not read: they cost nothing. The
    multi-token-prediction blocks at the end are not run.
    """
    share = _used_share(header)
    blocks: list[dict[str, float]] = [dict.fromkeys(_NAMES, 0.0) for _ in range(header.block_count)]
    output = dict.fromkeys(_NAMES, 0.0)
    last = header.block_count - header.nextn_predict_layers
    for group in header.groups:
        if group.block is None:
            if group.role in _DENSE or (header.tied_output and group.role is Role.TOKEN_EMBEDDING):
                _add_dense(output, group, repackable)
        elif 0 <= group.block < last:
            if group.role is Role.EXPERT_FFN:
                _add_experts(blocks[group.block], group, share, repackable)
            elif group.role in _DENSE:
                _add_dense(blocks[group.block], group, repackable)
    for layer, block in zip(header.layers[: max(last, 0)], blocks, strict=False):
        block["blocks"] = 1.0
        _add_attention(block, layer, window=header.sliding_window)
    rows = accumulate(
        (tuple(block[name] for name in _NAMES) for block in blocks),
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


def _add_dense(cost: dict[str, float], group: TensorGroup, repackable: frozenset[str]) -> None:
    cost["dense_bytes"] += group.n_bytes
    cost["dense_flops"] += 2.0 * group.n_params
    if group.type_name in repackable and group.n_bytes:
        part = group.repackable_bytes / group.n_bytes
        cost["dense_repack_flops"] += 2.0 * group.n_params * part
        cost["dense_repack_bytes"] += group.repackable_bytes


def _add_experts(cost: dict[str, float], group: TensorGroup, share: float, repackable: frozenset[str]) -> None:
    cost["expert_bytes"] += group.n_bytes
    cost["expert_read_bytes"] += group.n_bytes * share
    cost["expert_flops"] += 2.0 * group.n_params * share
    if group.type_name in repackable and group.n_bytes:
        part = group.repackable_bytes / group.n_bytes
        cost["expert_repack_flops"] += 2.0 * group.n_params * share * part
        cost["expert_repack_bytes"] += group.repackable_bytes


def _add_attention(cost: dict[str, float], layer: LayerKv, *, window: int) -> None:
    """Scores and mix per attended cell: 2 * heads * (key length + value length); MLA's values are part of its keys."""
    prefix = "sliding_" if layer.attention is Attention.SLIDING and window > 0 else ""
    v = layer.v or (layer.k if layer.attention is Attention.MLA else 0)
    groups = layer.head_count / layer.head_count_kv if layer.head_count_kv > 0 else 0.0
    cost[f"{prefix}attention_flops"] += 2.0 * groups * (layer.k + v)
    cost[f"{prefix}heads"] += layer.head_count if layer.k else 0
    cost[f"{prefix}k"] += layer.k + layer.indexer
    cost[f"{prefix}v"] += layer.v
