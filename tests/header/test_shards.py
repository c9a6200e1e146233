"""Split models: any part given, all of them read, links kept (field report B18)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.names import shard_paths
from magnitude_tune.header.read import read_model, require_runnable

TENSOR_BYTES = 32 * 64 * 4


def u16(value: int) -> tuple[int, bytes]:
    """A value of the type that gguf-split writes for split.no and split.count."""
    return 2, struct.pack("<H", value)


@pytest.fixture
def split(tmp_path: Path, raw: Any) -> Callable[..., list[Path]]:
    """Writes a model of four parts: the first without tensors, the others with one each."""

    def write(told_count: int = 4, told_tensors: int = 3, numbers: tuple[int, ...] = (0, 1, 2, 3)) -> list[Path]:
        paths = []
        names = ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"]
        for index, number in enumerate(numbers):
            keys = [raw.key("split.no", u16(number)), raw.key("split.count", u16(told_count))]
            keys.append(raw.key("split.tensors.count", (5, struct.pack("<i", told_tensors))))
            rows, data = [], b""
            if index:
                rows, data = [raw.tensor(names[index - 1], (32, 64), 0, 0)], bytes(TENSOR_BYTES)
            path = tmp_path / f"tiny-{index + 1:05d}-of-00004.gguf"
            path.write_bytes(raw.file([*(raw.least_keys if not index else []), *keys], rows, data))
            paths.append(path)
        return paths

    return write


def test_any_part_stands_for_the_whole(split: Callable[..., list[Path]]) -> None:
    """Whichever part is given, weights and sizes are summed over all, and the first is passed on."""
    paths = split()
    headers = [read_model(path) for path in paths]
    assert all(header == headers[0] for header in headers)
    header = headers[2]
    assert header.path == str(paths[0])
    assert (header.n_tensors, header.tensor_bytes) == (3, 3 * TENSOR_BYTES)
    assert header.file_bytes == sum(path.stat().st_size for path in paths)
    assert [shard.path for shard in header.shards] == [str(path) for path in paths]
    require_runnable(header)


def test_sizes_are_those_of_all_parts(tmp_path: Path, raw: Any) -> None:
    """Four parts of a 0.876 GB model, the first of 0.232 GB: the whole is 0.876 GB, whichever part is given."""
    sizes = (232_000_000, 232_000_000, 232_000_000, 180_000_000)
    for index, size in enumerate(sizes):
        keys = [raw.key("split.no", u16(index)), raw.key("split.count", u16(4))]
        row = raw.tensor(f"blk.0.part{index}.weight", (size // 2000, 1000), 1, 0)
        path = tmp_path / f"big-{index + 1:05d}-of-00004.gguf"
        head = raw.file([*(raw.least_keys if not index else []), *keys], [row])
        path.write_bytes(head)
        # The weights are a hole in the file: it takes no room.
        os.truncate(path, len(head) + size)
    header = read_model(tmp_path / "big-00002-of-00004.gguf")
    assert (header.tensor_bytes, header.n_params) == (876_000_000, 438_000_000)
    assert header.complete


def test_missing_parts_are_named(split: Callable[..., list[Path]]) -> None:
    """Part 3 is absent and part 2 is given: the error names the absent file."""
    paths = split()
    paths[2].unlink()
    with pytest.raises(HeaderError, match=r"1 of its 4 parts are missing: tiny-00003-of-00004\.gguf"):
        read_model(paths[1])


def test_a_truncated_part_is_named(split: Callable[..., list[Path]]) -> None:
    """The bytes that lack are counted in the part that lacks them."""
    paths = split()
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    header = read_model(paths[0])
    assert [shard.missing_bytes for shard in header.shards] == [0, 100, 0, 0]
    with pytest.raises(HeaderError, match="100 bytes are missing") as caught:
        require_runnable(header)
    assert caught.value.where == str(paths[1])


def test_links_keep_their_names(split: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Parts that are links into a cache of blobs are found by the links' names, and not resolved."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for index, path in enumerate(split()):
        blob = path.rename(tmp_path / f"blob{index}")
        (folder / path.name).symlink_to(blob)
    header = read_model(folder / "tiny-00002-of-00004.gguf")
    assert header.path == str(folder / "tiny-00001-of-00004.gguf")
    assert header.n_tensors == 3
    assert read_model(folder) == header


def test_headers_and_names_must_agree(split: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Wrong counts, wrong numbers and renamed parts are refused."""
    with pytest.raises(HeaderError, match="its name says 4 parts, its header 5"):
        read_model(split(told_count=5)[0])
    with pytest.raises(HeaderError, match="hold 3 tensors together, the header says 4"):
        read_model(split(told_tensors=4)[0])
    with pytest.raises(HeaderError, match="not part 2 of 4"):
        read_model(split(numbers=(0, 2, 1, 3))[0])
    lonely = split()[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(HeaderError, match="one of 4 parts, but its name does not say so"):
        read_model(lonely)


def test_a_tensor_in_two_parts_is_refused(split: Callable[..., list[Path]], raw: Any) -> None:
    """Parts of different models that lie together are noticed."""
    paths = split()
    paths[3].write_bytes(
        paths[3].read_bytes().replace(b"\x0d\0\0\0\0\0\0\0output.weight", b"\x0d\0\0\0\0\0\0\0xutput.weight")
    )
    paths[2].write_bytes(
        paths[2]
        .read_bytes()
        .replace(b"\x13\0\0\0\0\0\0\0blk.0.attn_q.weight", b"\x13\0\0\0\0\0\0\0blk.0.attn_k.weight")
    )
    assert read_model(paths[0]).n_tensors == 3
    keys = [raw.key("split.no", u16(3)), raw.key("split.count", u16(4))]
    paths[3].write_bytes(raw.file(keys, [raw.tensor("token_embd.weight", (32, 64), 0, 0)], bytes(TENSOR_BYTES)))
    with pytest.raises(HeaderError, match=r"'token_embd.weight' is in two parts"):
        read_model(paths[0])


def test_part_numbers_that_cannot_be_are_refused() -> None:
    """Part 0 and part 5 of 4 have no place; other names stand for themselves."""
    for name in ("x-00000-of-00004.gguf", "x-00005-of-00004.gguf"):
        with pytest.raises(HeaderError, match="the name says part"):
            shard_paths(name)
    assert shard_paths("./x-1-of-4.gguf") == ("./x-1-of-4.gguf",)
    assert shard_paths("./x-00002-of-00002.gguf") == ("./x-00001-of-00002.gguf", "./x-00002-of-00002.gguf")
