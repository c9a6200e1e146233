"""Header facts, kept between runs: noticed as stale when a file's size, time or identity changes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final, cast

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.names import shard_paths
from magnitude_tune.header.values import (
    Attention,
    FileKind,
    LayerKv,
    ModelHeader,
    ModelShapes,
    MoeFacts,
    RecurrentShape,
    Role,
    ShardFile,
    TensorGroup,
)
from magnitude_tune.storage import read_cached, write_cached

__all__ = ["header_document", "header_of_document", "read_model_cached"]

_WHOLE_NUMBERS: Final = (
    *("version", "block_count", "nextn_predict_layers", "n_embd", "n_vocab", "sliding_window"),
    *("n_tensors", "n_params", "n_merges", "tensor_bytes", "file_bytes"),
)

# Raised by one whenever the rules that derive facts change: stored facts are then read again.
_RULES = 5


def read_model_cached(path: str | os.PathLike[str]) -> ModelHeader:
    """As `read_model`, from the cache where no shard has changed (size, modification time, inode).

    Raises:
        HeaderError: as `read_model`.
    """
    where = os.fspath(path)
    if os.path.isdir(where):  # noqa: PTH112 - too long a name is no folder, and no error
        from magnitude_tune.header.shards import model_in

        where = model_in(where)
    key = _key(where)
    if key is None:
        return _read(where)
    name = f"header-{hashlib.sha256(os.path.abspath(where).encode(errors='surrogateescape')).hexdigest()[:24]}"  # noqa: PTH100 - links keep their names
    stored = read_cached(name, key)
    if stored is not None:
        try:
            return header_of_document(cast("dict[str, Any]", stored), where)
        except (LookupError, TypeError, ValueError):
            pass
    header = _read(where)
    write_cached(name, key, header_document(header))
    return header


def _read(path: str) -> ModelHeader:
    # Imported here: from a warm cache, `resolve` needs none of the reader.
    from magnitude_tune.header.read import read_model

    return read_model(path)


def _key(path: str) -> str | None:
    """What the stored facts must have been read from; None where a shard cannot be looked at."""
    parts = [str(_RULES)]
    try:
        for shard in shard_paths(path):
            facts = Path(shard).stat()
            parts.append(f"{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ino}")
    except (OSError, ValueError, HeaderError):
        return None
    return "/".join(parts)


def header_document(header: ModelHeader) -> dict[str, object]:
    """A header as JSON-able values, in flat rows: a few milliseconds to load for a model of 80 blocks."""
    values: dict[str, object] = {name: getattr(header, name) for name in header.__slots__}
    values["shards"] = [[shard.n_bytes, shard.missing_bytes] for shard in header.shards]
    values["layers"] = [_row(layer) for layer in header.layers]
    values["groups"] = [_row(group) for group in header.groups]
    values["moe"] = _row(header.moe) if header.moe else None
    values["recurrent"] = _row(header.recurrent) if header.recurrent else None
    values["shapes"] = [list(header.shapes.block_kinds), header.shapes.kind_of_block, *map(dict, header.shapes[2:])]
    del values["path"]
    return values


def _row(value: LayerKv | TensorGroup | MoeFacts | RecurrentShape) -> list[object]:
    return list(value)


def header_of_document(stored: dict[str, Any], path: str) -> ModelHeader:
    """The header again; paths are not stored: the same file may be named from another folder.

    Raises:
        LookupError, TypeError, ValueError: this is not what was stored.
    """
    paths = shard_paths(path)
    values = dict(stored)
    values["path"] = paths[0]
    values["kind"] = FileKind(stored["kind"])
    values["shards"] = tuple(ShardFile(path, *sizes) for path, sizes in zip(paths, stored["shards"], strict=True))
    values["layers"] = tuple(LayerKv(Attention(row[0]), *row[1:]) for row in stored["layers"])
    values["groups"] = tuple(TensorGroup(row[0], Role(row[1]), *row[2:]) for row in stored["groups"])
    values["moe"] = MoeFacts(*stored["moe"]) if stored["moe"] else None
    values["recurrent"] = RecurrentShape(*stored["recurrent"]) if stored["recurrent"] else None
    values["shapes"] = _shapes(*stored["shapes"])
    for name in ("n_ff", "notes", "unknown_types"):
        values[name] = tuple(stored[name])
    trained = stored["context_length"]
    if trained is not None and type(trained) is not int:
        raise ValueError("not what was stored")
    if any(type(values[name]) is not int or values[name] < 0 for name in _WHOLE_NUMBERS):
        raise ValueError("not what was stored")
    return ModelHeader(**values)


def _shapes(kinds: list[Any], of_blocks: list[int], outer: dict[str, Any], hparams: dict[str, Any]) -> ModelShapes:
    return ModelShapes(
        tuple({name: tuple(shape) for name, shape in kind.items()} for kind in kinds),
        tuple(of_blocks),
        {name: tuple(shape) for name, shape in outer.items()},
        {name: tuple(value) if isinstance(value, list) else value for name, value in hparams.items()},
    )
