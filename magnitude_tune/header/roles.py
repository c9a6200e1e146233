"""Which block a tensor belongs to, what it is for, and the sums over tensors alike.

Names and the operations that read them follow llama.cpp 0.5.0 (src/llama-arch.cpp, LLM_TENSOR_NAMES and _INFOS).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import RawHeader, RawTensor, Role, TensorGroup

__all__ = ["group_tensors", "place_of"]

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,4})\.(.+)", re.DOTALL)

# First match wins. `-ncmoe` moves what its own expression finds: ffn_(up|down|gate|gate_up)_(ch|)exps.
_BLOCK_ROLES: Final = (
    # Loaded by no engine: blocks for multi-token prediction, and T5's second bias table.
    (re.compile(r"nextn\.|cross_attn_rel_b"), Role.UNUSED),
    (re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps|ffn_(up|down|gate)\.\d"), Role.EXPERT_FFN),
    (re.compile(r".*norm|layer_out_scale|layer_output_scale"), Role.NORM),
    (re.compile(r"ffn_(up|down|gate)_shexp|ffn_gate_inp_shexp"), Role.SHARED_EXPERT),
    (re.compile(r"ssm_|time_mix_|shortconv\.|kda_"), Role.RECURRENT),
    (re.compile(r"attn_|indexer|cross_attn_"), Role.ATTENTION),
    (re.compile(r"ffn_|channel_mix_|exp_probs_b"), Role.DENSE_FFN),
)
_OTHER_ROLES: Final = (
    (re.compile(r"token_embd\.weight"), Role.TOKEN_EMBEDDING),
    (re.compile(r"per_layer_token_embd\."), Role.PER_LAYER_EMBEDDING),
    (re.compile(r"position_embd\.|token_types\."), Role.INPUT_OTHER),
    (re.compile(r"rope_(freqs|factors_)"), Role.ROPE),
    (re.compile(r"output|cls|dense_[23]\.|enc\.output|dec\.output|altup_(unembd_)?proj"), Role.OUTPUT),
    (re.compile(r"nextn\.|mtp\.|masked_embd_"), Role.UNUSED),
    (re.compile(r".*norm"), Role.NORM),
)
# Tensors without a block's name that lie with one all the same: the first, or the one that they number.
_WITH_FIRST_BLOCK: Final = re.compile(
    r"token_embd_norm\.|per_layer_(model_proj|proj_norm)\.|hrm\.|conv1d\.|nextn\.pre_"
)
_WITH_NUMBERED_BLOCK: Final = re.compile(r"(?:convnext|posnet)\.(\d{1,4})\.")

# Matrices that no matmul reads: looked up by row, scanned, convolved, scaled or added.
_NO_MATMUL: Final = re.compile(
    r"position_embd|token_types|per_layer_token_embd|.*(norm|conv1d|shortconv\.conv|ssm_[ad]\.|attn_rel_b|_conv_base"
    r"|lerp_|time_mix_(first|decay|k_k|k_a|r_k|w0|a0|v0)\.|_ape\.|_scale|tid2eid)"
    r"|conv|posnet\.\d+\.conv|d2t|markov_w1|selector_(pre|next)"
)
_NAMES_OUTPUT_NORM_OTHERWISE: Final = frozenset({"lfm2", "lfm2moe"})
_MAX_ROW_MULTIPLE: Final = 64
_CPU_ALIGNMENT: Final = 32
_CUDA_ALIGNMENT: Final = 128
_CUDA_ROW: Final = 512


class _Key(NamedTuple):
    """What tensors of one group have in common; `row_multiple` is 0 where no copy of them is ever made."""

    block: int | None
    role: Role
    type_name: str
    shard: int
    row_multiple: int
    slices: int


def place_of(name: str, n_blocks: int, first_unused: int) -> tuple[int | None, Role]:
    """The block and the role of a tensor, by its name.

    Blocks from `first_unused` on predict further tokens (MTP) and are not loaded for plain generation; neither are
    blocks that the header does not count.
    """
    match = _BLOCK.match(name)
    if not match:
        numbered = _WITH_NUMBERED_BLOCK.match(name)
        with_block = int(numbered[1]) if numbered else 0 if _WITH_FIRST_BLOCK.match(name) else None
        role = _role(name, _OTHER_ROLES)
        if with_block is None or with_block >= first_unused:
            return None, role
        return with_block, Role.OTHER if role is Role.UNUSED else role
    block = int(match[1])
    if block >= n_blocks:
        return None, Role.UNUSED
    return block, Role.UNUSED if block >= first_unused else _role(match[2], _BLOCK_ROLES)


def group_tensors(
    shards: Sequence[RawHeader], *, n_blocks: int, first_unused: int, tied_output: bool
) -> tuple[TensorGroup, ...]:
    """Sums over tensors of one block, role, type and file, in the order in which the files bring them.

    The token embedding is looked up by row; its matrix counts as repackable only where it is the output too.
    """
    members: dict[_Key, list[tuple[RawTensor, int]]] = {}
    architecture = shards[0].metadata.get("general.architecture") if shards else None
    for index, shard in enumerate(shards):
        for tensor in shard.tensors:
            block, role = place_of(tensor.name, n_blocks, first_unused)
            if architecture in _NAMES_OUTPUT_NORM_OTHERWISE and tensor.name == "token_embd_norm.weight":
                block, role = None, Role.OUTPUT
            multiple, slices = _matmul(tensor, role, tied_output)
            key = _Key(block, role, tensor.type_name or f"unknown({tensor.type_id})", index, multiple, slices)
            members.setdefault(key, []).append((tensor, shard.data_start + tensor.offset))
    return tuple(_group(key, tensors) for key, tensors in members.items())


def _group(key: _Key, members: list[tuple[RawTensor, int]]) -> TensorGroup:
    sizes = [tensor.n_bytes for tensor, _ in members]
    return TensorGroup(
        block=key.block,
        role=key.role,
        type_name=key.type_name,
        n_tensors=len(members),
        n_params=sum(math.prod(tensor.shape) for tensor, _ in members),
        n_bytes=sum(sizes),
        largest_bytes=max(sizes),
        repackable_bytes=sum(sizes) if key.row_multiple and key.slices == 1 else 0,
        row_multiple=key.row_multiple or _MAX_ROW_MULTIPLE,
        padding_bytes=sum(-size % _CPU_ALIGNMENT for size in sizes),
        cuda_padding_bytes=sum(_cuda_padding(tensor) for tensor, _ in members),
        shard=key.shard,
        first_byte=min(first for _, first in members),
        end_byte=max(first + tensor.n_bytes for tensor, first in members),
        slices=key.slices,
    )


def _cuda_padding(tensor: RawTensor) -> int:
    """Quantised rows that are no multiple of 512 elements get the last row filled up; then 128 bytes alignment."""
    elements, size = TENSOR_TYPES.get(tensor.type_name or "", (1, 0))
    missing = -tensor.shape[0] % _CUDA_ROW if tensor.shape and elements > 1 else 0
    filling = missing // elements * size
    return filling + -(tensor.n_bytes + filling) % _CUDA_ALIGNMENT


def _role(name: str, roles: Iterable[tuple[re.Pattern[str], Role]]) -> Role:
    return next((role for pattern, role in roles if pattern.match(name)), Role.OTHER)


def _matmul(tensor: RawTensor, role: Role, tied_output: bool) -> tuple[int, int]:
    """The row multiple and the slices of weights of a matmul whose rows (ne1) are a multiple of 8; 0 and 1 of others.

    Plain ones have two dimensions or are stacks of matrices; those of experts have three (ggml-cpu/repack.cpp).
    """
    shape = _trimmed(tensor.shape)
    is_expert = role is Role.EXPERT_FFN and "exps" in tensor.name
    if len(shape) < (3 if is_expert else 2) or shape[1] % 8 or tensor.type_name is None:
        return 0, 1
    if role is Role.UNUSED or not tensor.name.endswith(".weight") or not shape[1]:
        return 0, 1
    if (role is Role.TOKEN_EMBEDDING and not tied_output) or _NO_MATMUL.match(tensor.name):
        return 0, 1
    return math.gcd(shape[1], _MAX_ROW_MULTIPLE), 1 if is_expert else math.prod(shape[2:])


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without dimensions of 1 at the end, as ggml counts them."""
    n = len(shape)
    while n > 1 and shape[n - 1] == 1:
        n -= 1
    return shape[:n]
