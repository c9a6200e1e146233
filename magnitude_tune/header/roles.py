"""Which block a tensor belongs to, what it is for, and the sums over tensors alike.

Names and the operations that read them follow llama.cpp 0.5.0 (src/llama-arch.cpp, LLM_TENSOR_NAMES and _INFOS).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from magnitude_tune.header.values import RawTensor, Role, TensorGroup

__all__ = ["group_tensors", "place_of"]

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,4})\.(.+)", re.DOTALL)

# First match wins. `-ncmoe` moves what its own expression finds: ffn_(up|down|gate|gate_up)_(ch|)exps.
_BLOCK_ROLES: Final = (
    (re.compile(r"nextn\."), Role.UNUSED),
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
    (re.compile(r"output|cls|dense_[23]\.|enc\.output|dec\.output|altup_(unembd_)?proj"), Role.OUTPUT),
    (re.compile(r"nextn\.|mtp\."), Role.UNUSED),
    (re.compile(r".*norm"), Role.NORM),
)

# Matrices that no matmul reads: looked up by row, scanned, convolved, scaled or added.
_NO_MATMUL: Final = re.compile(
    r"position_embd|token_types|per_layer_token_embd|.*(norm|conv1d|shortconv\.conv|ssm_[ad]\.|attn_rel_b|_conv_base"
    r"|lerp_|time_mix_(first|decay|k_k|k_a|r_k|w0|a0|v0)\.|_ape\.|_scale)"
)


def place_of(name: str, n_blocks: int, first_unused: int) -> tuple[int | None, Role]:
    """The block and the role of a tensor, by its name.

    Blocks from `first_unused` on predict further tokens (MTP) and are not loaded for plain generation; neither are
    blocks that the header does not count.
    """
    match = _BLOCK.match(name)
    if not match:
        return None, _role(name, _OTHER_ROLES)
    block = int(match[1])
    if block >= n_blocks:
        return None, Role.UNUSED
    return block, Role.UNUSED if block >= first_unused else _role(match[2], _BLOCK_ROLES)


def group_tensors(
    tensors: Iterable[RawTensor], *, n_blocks: int, first_unused: int, tied_output: bool
) -> tuple[TensorGroup, ...]:
    """Sums over tensors of one block, role and type, in the order in which the file brings them.

    The token embedding is looked up by row; its matrix counts as repackable only where it is the output too.
    """
    sums: dict[tuple[int | None, Role, str], list[int]] = {}
    for tensor in tensors:
        block, role = place_of(tensor.name, n_blocks, first_unused)
        entry = sums.setdefault((block, role, tensor.type_name or f"unknown({tensor.type_id})"), [0, 0, 0, 0, 0])
        entry[0] += 1
        entry[1] += math.prod(tensor.shape)
        entry[2] += tensor.n_bytes
        entry[3] = max(entry[3], tensor.n_bytes)
        if _repackable(tensor, role, tied_output):
            entry[4] += tensor.n_bytes
    return tuple(
        TensorGroup(
            block=block,
            role=role,
            type_name=type_name,
            n_tensors=entry[0],
            n_params=entry[1],
            n_bytes=entry[2],
            largest_bytes=entry[3],
            repackable_bytes=entry[4],
        )
        for (block, role, type_name), entry in sums.items()
    )


def _role(name: str, roles: Iterable[tuple[re.Pattern[str], Role]]) -> Role:
    return next((role for pattern, role in roles if pattern.match(name)), Role.OTHER)


def _repackable(tensor: RawTensor, role: Role, tied_output: bool) -> bool:
    """2-D weights of a matmul, 3-D weights of expert matmuls, ne1 a multiple of 8 (ggml-cpu/repack.cpp)."""
    wanted = 3 if role is Role.EXPERT_FFN and "exps" in tensor.name else 2
    if len(tensor.shape) != wanted or tensor.shape[1] % 8 or tensor.type_name is None:
        return False
    if role is Role.UNUSED or not tensor.name.endswith(".weight"):
        return False
    if role is Role.TOKEN_EMBEDDING:
        return tied_output
    return not _NO_MATMUL.match(tensor.name)
