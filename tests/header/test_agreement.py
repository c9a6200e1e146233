"""Our walk and gguf.GGUFReader say the same, field by field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.header.raw import missing_bytes, read_raw
from magnitude_tune.header.read import read_model
from magnitude_tune.header.types import TENSOR_TYPES, TYPE_NAMES, row_bytes
from magnitude_tune.header.values import ArraySummary, Attention, RawHeader

gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle")


def assert_same(ours: RawHeader, theirs: Any, path: Path) -> None:
    """Every key, value and tensor row."""
    own_fields = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert set(ours.metadata) == set(theirs.fields) - own_fields
    for key, value in ours.metadata.items():
        field = theirs.fields[key]
        if isinstance(value, ArraySummary):
            assert value.length == len(field.data), key
            assert value.element_type == field.types[-1].name.lower(), key
        else:
            expected = field.contents()
            assert list(value) == expected if isinstance(value, tuple) else value == expected, key
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert tensor.name == other.name
        assert list(tensor.shape) == other.shape.tolist()
        assert tensor.type_id == other.tensor_type
        assert tensor.type_name == other.tensor_type.name.lower()
        assert tensor.n_bytes == other.n_bytes
        assert ours.data_start + tensor.offset == other.data_offset
    assert ours.alignment == theirs.alignment
    assert ours.data_start == theirs.data_offset
    assert ours.file_bytes == path.stat().st_size
    assert missing_bytes(ours) == 0


def test_the_reader_agrees_on_every_architecture(tiny: Callable[[str], Path], architecture: str) -> None:
    """Keys, values, shapes, types, sizes and places are those that gguf.GGUFReader finds."""
    path = tiny(architecture)
    assert_same(read_raw(path), gguf.GGUFReader(path), path)


def test_the_reader_agrees_on_a_big_endian_file(tmp_path: Path, model_writer: Callable[..., Path]) -> None:
    """A file of the other byte order reads the same, with a note that engines refuse it."""
    path = model_writer(tmp_path / "big.gguf", "gemma3", big_endian=True)
    ours = read_raw(path)
    assert ours.byte_order == "big"
    assert_same(ours, gguf.GGUFReader(path), path)
    assert any("endian" in note for note in read_model(path).notes)


def test_the_reader_agrees_on_the_real_model(real_model: Path) -> None:
    """The real 270M model: every key and tensor, and the facts that plans rest on."""
    assert_same(read_raw(real_model), gguf.GGUFReader(real_model), real_model)
    header = read_model(real_model)
    assert (header.block_count, header.n_embd, header.n_vocab) == (18, 640, 262144)
    assert (header.sliding_window, header.context_length) == (512, 32768)
    assert [block for block, layer in enumerate(header.layers) if layer.attention is Attention.FULL] == [5, 11, 17]
    assert {(layer.k, layer.v, layer.head_count, layer.head_count_kv) for layer in header.layers} == {(256, 256, 4, 1)}
    assert header.n_params == 268_098_176
    assert header.tied_output


def test_our_types_are_theirs() -> None:
    """Every type that the gguf package knows has the same number, block and size here."""
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        assert TYPE_NAMES[int(kind)] == kind.name.lower()
        assert TENSOR_TYPES[kind.name.lower()] == sizes
        assert row_bytes(kind.name.lower(), 512 * sizes[0]) == 512 * sizes[1]
