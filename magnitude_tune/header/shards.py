"""From a path to the files of one model: a single file, any shard of a split one, or a folder with one model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.cursor import MAX_HEADER_BYTES
from magnitude_tune.header.facts import Facts
from magnitude_tune.header.kinds import kind_of
from magnitude_tune.header.names import shard_paths
from magnitude_tune.header.raw import MAX_ENTRIES, read_raw
from magnitude_tune.header.values import FileKind, RawHeader

__all__ = ["model_in", "read_shards"]

_MAX_CANDIDATES: Final = 32
_SHOWN: Final = 8


def read_shards(path: str) -> tuple[RawHeader, ...]:
    """The raw header of every shard, the first one first, whichever of them `path` names.

    Raises:
        HeaderError: a shard is missing, cannot be read, or does not belong to the others.
    """
    paths = shard_paths(path)
    # `os.path` says no where `Path` raises, for too long a name.
    missing = [shard for shard in paths if not os.path.isfile(shard)]  # noqa: PTH113
    if missing and len(paths) > 1 and Path(path).exists():
        names = _list_of(Path(shard).name for shard in missing)
        raise HeaderError(
            f"{len(missing)} of its {len(paths)} parts are missing: {names}",
            where=path,
            hint="download the missing parts into the same folder",
        )
    shards = _read_all(paths)
    _check_split(shards, path)
    return shards


def _read_all(paths: tuple[str, ...]) -> tuple[RawHeader, ...]:
    """All headers together stay within what one may take: hundreds of shards must not add up."""
    shards: list[RawHeader] = []
    for path in paths:
        shards.append(read_raw(path))
        header_bytes = sum(shard.data_start for shard in shards)
        n_tensors = sum(len(shard.tensors) for shard in shards)
        if header_bytes > MAX_HEADER_BYTES or n_tensors > MAX_ENTRIES:
            raise HeaderError(
                f"its parts have {n_tensors} tensors and {header_bytes} bytes of headers so far; no model has so many",
                where=path,
                hint="the file is damaged; download it again",
            )
    return tuple(shards)


def _check_split(shards: tuple[RawHeader, ...], path: str) -> None:
    """Numbers in the headers count from 0, those in the names from 1 (llama.cpp's gguf-split)."""
    told = Facts(shards[0].metadata, shards[0].path).whole("split.count") or 1
    if told != len(shards):
        raise HeaderError(
            f"it is one of {told} parts, but its name does not say so"
            if len(shards) == 1
            else f"its name says {len(shards)} parts, its header {told}",
            where=path,
            hint="give the parts the names they were published under (name-00001-of-00003.gguf)",
        )
    if len(shards) == 1:
        return
    for index, shard in enumerate(shards):
        if Facts(shard.metadata, shard.path).whole("split.no") != index:
            raise HeaderError(
                f"this file is not part {index + 1} of {told}, though its name says so",
                where=shard.path,
                hint="it was renamed or overwritten; download this part again",
            )
    _check_tensors(shards, path)


def _check_tensors(shards: tuple[RawHeader, ...], path: str) -> None:
    names: set[str] = set()
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in names:
                raise HeaderError(
                    f"the tensor {tensor.name!r} is in two parts",
                    where=shard.path,
                    hint="parts of different models lie together; download the parts again",
                )
            names.add(tensor.name)
    told = Facts(shards[0].metadata, shards[0].path).whole("split.tensors.count")
    if told is not None and told != len(names):
        raise HeaderError(
            f"its parts hold {len(names)} tensors together, the header says {told}",
            where=path,
            hint="parts of different models lie together; download the parts again",
        )


def model_in(folder: str) -> str:
    """The one model in a folder (its first shard); projectors, adapters and importance matrices are passed over.

    Raises:
        HeaderError: there is none, or more than one.
    """
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(".gguf")]
    except OSError as error:
        raise HeaderError(f"cannot be listed: {error.strerror}", where=folder, hint="name the file itself") from error
    # Hidden ones are a file system's or a downloader's own.
    names = [name for name in found if not name.startswith(".")]
    firsts = sorted({shard_paths(str(Path(folder) / name))[0] for name in names})
    if len(firsts) > _MAX_CANDIDATES:
        raise HeaderError(f"{len(firsts)} GGUF files are in this folder", where=folder, hint="name one of them")
    models = _models_of(firsts, folder)
    if not models:
        raise HeaderError("no GGUF model is in this folder", where=folder, hint="name the .gguf file itself")
    if len(models) > 1:
        listed = _list_of(Path(first).name for first in models)
        raise HeaderError(f"{len(models)} models are in this folder: {listed}", where=folder, hint="name one of them")
    return models[0]


def _models_of(paths: list[str], folder: str) -> list[str]:
    """Those that are models; a file that cannot be read counts as one, and reading it again says what is wrong."""
    models, header_bytes = [], 0
    for path in paths:
        try:
            raw = read_raw(path)
        except HeaderError:
            models.append(path)
            continue
        header_bytes += raw.data_start
        if header_bytes > MAX_HEADER_BYTES:
            raise HeaderError(
                "too much to look through is in this folder", where=folder, hint="name the .gguf file itself"
            )
        if kind_of(raw.metadata, has_tensors=True) is FileKind.MODEL:
            models.append(path)
    return models


def _list_of(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
