"""Header facts kept between runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude_tune import storage
from magnitude_tune.header import read
from magnitude_tune.header.cached import read_model_cached
from magnitude_tune.header.read import read_model


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were read in truth, not from the cache."""
    paths: list[str] = []

    def reading(path: str) -> object:
        paths.append(path)
        return read_model(path)

    monkeypatch.setattr(read, "read_model", reading)
    return paths


def test_stored_facts_are_the_facts(tiny: Callable[[str], Path], architecture: str, reads: list[str]) -> None:
    """The second call gives an equal header of every architecture without reading the file."""
    path = tiny(architecture)
    assert read_model_cached(path) == read_model(path)
    assert read_model_cached(path) == read_model(path)
    assert len(reads) == 1


def test_a_changed_file_is_read_again(tmp_path: Path, model_writer: Callable[..., Path], reads: list[str]) -> None:
    """Another size, time or inode makes the stored facts stale."""
    path = model_writer(tmp_path / "model.gguf", "llama")
    read_model_cached(path)
    content = path.read_bytes()
    os.utime(path, ns=(1, 1))
    read_model_cached(path)
    (tmp_path / "other").write_bytes(content)
    os.utime(tmp_path / "other", ns=(1, 1))
    (tmp_path / "other").replace(path)
    read_model_cached(path)
    path.write_bytes(content[:-32])
    assert not read_model_cached(path).complete
    assert len(reads) == 4


def test_paths_are_those_of_the_caller(
    tmp_path: Path, model_writer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    """The same file named from another folder hits the cache and carries the name it was given now."""
    path = model_writer(tmp_path / "model.gguf", "llama")
    assert read_model_cached(path).path == str(path)
    monkeypatch.chdir(tmp_path)
    header = read_model_cached("model.gguf")
    assert (header.path, header.shards[0].path) == ("model.gguf", "model.gguf")
    assert read_model_cached(tmp_path).path == str(path)
    assert len(reads) == 1


def test_doubtful_entries_are_read_again(tiny: Callable[[str], Path], reads: list[str]) -> None:
    """A cache entry of another shape is dropped without an error."""
    path = tiny("llama")
    read_model_cached(path)
    (entry,) = storage.cache_dir().glob("header-*.json")
    for broken in (
        '"groups":7',
        '"groups":[[]]',
        '"groups":[[0,"no such role"]]',
        '"groups":[[1,2,3]]',
        '"grooups":[]',
    ):
        text = entry.read_text()
        start, end = text.index('"groups"'), text.index(',"content_hash"')
        entry.write_text(text[:start] + broken + text[end:])
        assert read_model_cached(path) == read_model(path)
    assert len(reads) == 6


def test_a_home_that_cannot_be_written_costs_only_time(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a cache the facts are read each time."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path / "file"))
    assert read_model_cached(tiny("llama")) == read_model(tiny("llama"))


def test_the_hash_follows_the_content(tmp_path: Path, model_writer: Callable[..., Path]) -> None:
    """The content hash is the same for a copy and another for another header or size."""
    first = model_writer(tmp_path / "first.gguf", "llama")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(first.read_bytes())
    assert read_model(first).content_hash == read_model(copy).content_hash
    copy.write_bytes(first.read_bytes() + b"\0")
    other = model_writer(tmp_path / "other.gguf", "llama", {"context_length": 8192})
    assert len({read_model(path).content_hash for path in (first, copy, other)}) == 3
