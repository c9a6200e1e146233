"""Row sizes of ggml's types."""

from __future__ import annotations

import pytest

from magnitude_tune.errors import UsageError
from magnitude_tune.header.types import TENSOR_TYPES, TYPE_NAMES, row_bytes


@pytest.mark.parametrize(
    ("type_name", "per_32"),
    [("f32", 128), ("f16", 64), ("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18), ("iq4_nl", 18)],
)
def test_cache_types_take_bytes_per_block_of_32(type_name: str, per_32: int) -> None:
    """The types that a KV cache may have cost the engine's bytes per 32 elements."""
    assert row_bytes(type_name, 1024) == 32 * per_32


def test_a_row_that_cannot_be_cut_into_blocks_counts_its_share() -> None:
    """40 elements of q8_0 are a block and a quarter, fewer than none are none; an unknown type is an error."""
    assert row_bytes("q8_0", 40) == 43
    assert row_bytes("q8_0", -40) == 0
    with pytest.raises(UsageError, match="unknown ggml type") as caught:
        row_bytes("q8_9", 32)
    assert "q8_0" in str(caught.value.hint)


def test_every_number_has_a_name_and_every_name_one_number() -> None:
    """Numbers and names match one to one; withdrawn numbers have none."""
    assert sorted(TYPE_NAMES.values()) == sorted(TENSOR_TYPES)
    assert not {4, 5, 31, 32, 33, 36, 37, 38} & set(TYPE_NAMES)
