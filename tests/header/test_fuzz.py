"""Mutated, truncated and spliced files end in facts or in an error of ours, quickly."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.raw import read_raw
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import FileKind, ModelHeader

EXAMPLES = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Scratch = Callable[[bytes], ModelHeader | HeaderError]
NAMES = ("gemma3", "deepseek2", "qwen3next", "jamba", "bert", "rwkv7")
# Bytes that lengths, counts and types are made of.
ODD = st.sampled_from(
    [b"\xff" * 8, b"\0" * 8, b"\0\0\0\0\0\0\0\x80", b"\xff\xff\xff\x7f", b"\x09\0\0\0", b"\x08\0\0\0"]
)


@pytest.fixture(scope="module")
def seeds(tiny: Callable[[str], Path]) -> list[tuple[bytes, int]]:
    """Whole files, cut after the last tensor, with the length of their headers."""
    files = []
    for name in NAMES:
        header = read_raw(tiny(name))
        end = max(tensor.offset + tensor.n_bytes for tensor in header.tensors)
        files.append((tiny(name).read_bytes()[: header.data_start + end], header.data_start))
    return files


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory, two_seconds: float) -> Scratch:
    """Reads bytes as a file, written over by each example."""
    path = tmp_path_factory.mktemp("fuzz") / "model.gguf"
    return lambda content: outcome(path, content, two_seconds)


def outcome(path: Path, content: bytes, limit_seconds: float) -> ModelHeader | HeaderError:
    """What reading ends in; anything but facts and errors of ours fails the test."""
    path.write_bytes(content)
    started = time.process_time()
    try:
        found: ModelHeader | HeaderError = read_model(path)
    except HeaderError as error:
        found = error
    assert time.process_time() - started < limit_seconds
    if isinstance(found, ModelHeader):
        assert found.n_params >= 0
        assert len(found.layers) == (found.block_count if found.kind is FileKind.MODEL else 0)
        assert all(layer.k >= 0 and layer.v >= 0 for layer in found.layers)
        assert sum(group.n_bytes for group in found.groups) == found.tensor_bytes
    else:
        assert found.hint
        assert found.where
    return found


@EXAMPLES
@given(data=st.data())
def test_mutated_headers(data: st.DataObject, seeds: list[tuple[bytes, int]], scratch: Scratch) -> None:
    """Some places in the header overwritten, with random bytes or with lengths that are likely to hurt."""
    content, end = data.draw(st.sampled_from(seeds))
    broken = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(4, end - 1))
        patch = data.draw(st.one_of(ODD, st.binary(min_size=1, max_size=8)))
        broken[place : place + len(patch)] = patch
    scratch(bytes(broken))


@EXAMPLES
@given(data=st.data())
def test_truncated_files(data: st.DataObject, seeds: list[tuple[bytes, int]], scratch: Scratch) -> None:
    """A cut in the header is an error, a cut in the weights is a count of missing bytes."""
    content, end = data.draw(st.sampled_from(seeds))
    cut = data.draw(st.integers(0, len(content) - 1))
    found = scratch(content[:cut])
    if cut >= end:
        assert isinstance(found, ModelHeader)
        assert found.shards[0].missing_bytes == len(content) - cut
    elif cut < end - 32:
        assert isinstance(found, HeaderError)


@EXAMPLES
@given(data=st.data())
def test_spliced_files(data: st.DataObject, seeds: list[tuple[bytes, int]], scratch: Scratch) -> None:
    """The head of one file and the tail of another, with bytes between them lost or doubled."""
    first, first_end = data.draw(st.sampled_from(seeds))
    second, second_end = data.draw(st.sampled_from(seeds))
    head = data.draw(st.integers(4, first_end))
    tail = data.draw(st.integers(0, second_end))
    scratch(first[:head] + second[tail:])


@EXAMPLES
@given(content=st.binary(max_size=200), magic=st.sampled_from([b"", b"GGUF", b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03"]))
def test_arbitrary_bytes(content: bytes, magic: bytes, scratch: Scratch) -> None:
    """Anything at all, with and without a plausible start."""
    scratch(magic + content)
