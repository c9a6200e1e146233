"""The files of a split model, by their names alone."""

from __future__ import annotations

import os
import re
from typing import Final

from magnitude_tune.errors import HeaderError

__all__ = ["shard_paths"]

_SPLIT_NAME: Final = re.compile(
    r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.IGNORECASE
)
_MAX_SHARDS: Final = 999


def shard_paths(path: str) -> tuple[str, ...]:
    """All files of the model that `path` is a file of, by its name; links keep their names.

    Raises:
        HeaderError: the name cannot be one of a split model (`name-00001-of-00003.gguf`).
    """
    folder, name = os.path.split(path)
    match = _SPLIT_NAME.fullmatch(name)
    if not match:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MAX_SHARDS:
        raise HeaderError(
            f"the name says part {number} of {count}",
            where=path,
            hint="parts are numbered from 00001 on; give the file the name it was published under",
        )
    names = (f"{match['prefix']}-{index:05d}-of-{count:05d}{name[-5:]}" for index in range(1, count + 1))
    return tuple(os.path.join(folder, name) for name in names)  # noqa: PTH118 - Path would drop a leading `./`
