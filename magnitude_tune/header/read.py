"""From a path to the facts of a model, over all its shards."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.kinds import require_complete, require_runnable
from magnitude_tune.header.values import ModelHeader, RawHeader
from magnitude_tune.units import MIB

__all__ = ["read_model", "require_complete", "require_runnable"]

_CHUNK: Final = 1 * MIB


def read_model(path: str | os.PathLike[str]) -> ModelHeader:
    """Read a model: a file, any shard of a split one, or a folder that holds exactly one model.

    Files of other kinds (projector, adapter, importance matrix, vocabulary) and files whose weights are cut short
    are described too; `require_runnable` refuses them.

    Raises:
        HeaderError: no GGUF, damaged, incomplete in its header, a shard missing, or facts that cannot be.
    """
    # Imported here: `resolve` imports this module for `require_runnable`, and reads from the cache.
    from magnitude_tune.header.model import describe
    from magnitude_tune.header.shards import model_in, read_shards

    where = os.fspath(path)
    if os.path.isdir(where):  # noqa: PTH112 - too long a name is no folder, and no error
        where = model_in(where)
    shards = read_shards(where)
    return describe(shards, _content_hash(shards))


def _content_hash(shards: tuple[RawHeader, ...]) -> str:
    """SHA-256 over each shard's size and header; the weights are too many to read."""
    digest = hashlib.sha256()
    for shard in shards:
        digest.update(shard.file_bytes.to_bytes(8, "little"))
        left = shard.data_start
        try:
            with Path(shard.path).open("rb", buffering=0) as stream:
                while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
                    digest.update(chunk)
                    left -= len(chunk)
        except OSError as error:
            raise HeaderError(f"cannot be read: {error.strerror}", where=shard.path, hint="try again") from error
    return digest.hexdigest()
