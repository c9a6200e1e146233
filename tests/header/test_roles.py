"""Which block a tensor lies with, what buffers add to it, and where it lies in its file."""

from __future__ import annotations

import math

import pytest

from magnitude_tune.header.roles import group_tensors, place_of
from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import RawHeader, RawTensor, Role


def header(*tensors: tuple[str, tuple[int, ...], str], architecture: str = "llama") -> RawHeader:
    """A header with tensors one after another, data from byte 1000 on."""
    rows, offset = [], 0
    for name, shape, type_name in tensors:
        elements, size = TENSOR_TYPES[type_name]
        n_bytes = math.prod(shape) // elements * size
        rows.append(RawTensor(name, shape, 0, type_name, offset, n_bytes))
        offset += -(-n_bytes // 32) * 32
    return RawHeader(
        "m.gguf", 3, "little", 32, {"general.architecture": architecture}, tuple(rows), 1000, 1000 + offset
    )


@pytest.mark.parametrize(
    ("name", "block", "role"),
    [
        ("token_embd.weight", None, Role.TOKEN_EMBEDDING),
        ("token_embd_norm.weight", 0, Role.NORM),
        ("per_layer_token_embd.weight", None, Role.PER_LAYER_EMBEDDING),
        ("per_layer_model_proj.weight", 0, Role.OTHER),
        ("position_embd.weight", None, Role.INPUT_OTHER),
        ("rope_freqs.weight", None, Role.ROPE),
        ("rope_factors_long.weight", None, Role.ROPE),
        ("altup_unembd_proj.weight", None, Role.OUTPUT),
        ("convnext.2.dw.weight", 2, Role.OTHER),
        ("dec.blk.1.cross_attn_rel_b.weight", 1, Role.UNUSED),
        ("masked_embd_centroids.weight", None, Role.UNUSED),
        ("blk.2.nextn.eh_proj.weight", 2, Role.UNUSED),
        ("blk.3.attn_q.weight", 3, Role.UNUSED),
        ("blk.4.attn_q.weight", None, Role.UNUSED),
    ],
)
def test_tensors_lie_where_the_engine_creates_them(name: str, block: int | None, role: Role) -> None:
    """Of four blocks the last predicts further tokens; some tensors without a block's name lie with the first."""
    assert place_of(name, 4, 3) == (block, role)


def test_lfm2_names_its_output_norm_otherwise() -> None:
    """The norm of the embedding is the output's in LFM2 and the first block's elsewhere."""
    norm = ("token_embd_norm.weight", (32,), "f32")
    for architecture, block, role in (("lfm2", None, Role.OUTPUT), ("bert", 0, Role.NORM)):
        (group,) = group_tensors(
            [header(norm, architecture=architecture)], n_blocks=1, first_unused=1, tied_output=False
        )
        assert (group.block, group.role) == (block, role)


def test_a_group_has_one_answer_to_every_question_about_copies() -> None:
    """Matrices apart by the rows they have, from stacks of matrices, and from what no matmul reads."""
    shard = header(
        ("blk.0.attn_q.weight", (64, 96), "q8_0"),
        ("blk.0.attn_k.weight", (64, 24), "q8_0"),
        ("blk.0.attn_k_b.weight", (64, 32, 4), "q8_0"),
        ("blk.0.attn_v.weight", (64, 30), "q8_0"),
        ("blk.0.attn_output.weight", (64, 64, 1), "q8_0"),
    )
    groups = group_tensors([shard], n_blocks=1, first_unused=1, tied_output=False)
    found = {(group.row_multiple, group.slices, group.repackable_bytes > 0): group.n_tensors for group in groups}
    assert found == {(32, 1, True): 1, (8, 1, True): 1, (32, 4, False): 1, (64, 1, False): 1, (64, 1, True): 1}


def test_padding_is_that_of_each_backends_buffer() -> None:
    """32 bytes on the CPU; on CUDA 128, and quantised rows of 96 filled up to 512 elements."""
    (small,) = group_tensors(
        [header(("output_norm.weight", (3,), "f32"))], n_blocks=1, first_unused=1, tied_output=False
    )
    assert (small.n_bytes, small.padding_bytes, small.cuda_padding_bytes) == (12, 20, 116)
    (rows,) = group_tensors([header(("output.weight", (96, 8), "q8_0"))], n_blocks=1, first_unused=1, tied_output=False)
    filled = 816 + (512 - 96) // 32 * 34
    assert (rows.n_bytes, rows.padding_bytes, rows.cuda_padding_bytes) == (816, 16, -(-filled // 128) * 128 - 816)


def test_ranges_are_those_in_the_file_of_each_shard() -> None:
    """From the first tensor of a group to the end of its last, others between or not, and never over two files."""
    first = header(
        ("blk.0.attn_norm.weight", (8,), "f32"),
        ("blk.0.attn_q.weight", (32, 8), "f16"),
        ("blk.0.ffn_norm.weight", (8,), "f32"),
    )
    second = header(("blk.0.attn_sub_norm.weight", (8,), "f32"))
    groups = group_tensors([first, second], n_blocks=1, first_unused=1, tied_output=False)
    norms = [(group.shard, group.first_byte, group.end_byte) for group in groups if group.role is Role.NORM]
    assert norms == [(0, 1000, 1000 + 32 + 512 + 32), (1, 1000, 1032)]
