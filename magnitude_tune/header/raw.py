"""The walk over one GGUF file: everything its header says, nothing of the weights.

Layout (ggml/docs/gguf.md): magic, version, tensor count, key count, keys with values, tensor table, padding, data.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Literal

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.cursor import Cursor
from magnitude_tune.header.identify import HEAD_BYTES, MAGIC, require_gguf
from magnitude_tune.header.metadata import Value, read_metadata
from magnitude_tune.header.tensors import read_tensors
from magnitude_tune.header.values import RawHeader
from magnitude_tune.units import MIB

__all__ = ["MAX_ENTRIES", "missing_bytes", "read_raw"]

_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 * MIB
MAX_ENTRIES: Final = 65_536
_UPDATE = "use a newer magnitude-tune, or a file of GGUF version 2 or 3"


def read_raw(path: str | os.PathLike[str]) -> RawHeader:
    """Read the header of one GGUF file; a file whose weights are cut short is read all the same.

    Raises:
        HeaderError: it is not a GGUF file, or its header is damaged or incomplete.
    """
    where = os.fspath(path)
    file_bytes = _size_of_file(where)
    try:
        with Path(where).open("rb", buffering=0) as stream:
            head = stream.read(HEAD_BYTES)
            require_gguf(head, where, file_bytes)
            return _walk(Cursor(stream, where, file_bytes))
    except OSError as error:
        raise _unreadable(where, error) from error


def missing_bytes(raw: RawHeader) -> int:
    """Bytes that the tensor table announces and the file lacks."""
    data_end = max((tensor.offset + tensor.n_bytes for tensor in raw.tensors), default=0)
    return max(0, raw.data_start + data_end - raw.file_bytes) if raw.tensors else 0


def _size_of_file(path: str) -> int:
    try:
        facts = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(facts.st_mode):
        raise HeaderError("this is a folder, not a model file", where=path, hint="name the .gguf file in it")
    if not stat.S_ISREG(facts.st_mode):
        raise HeaderError("this is not a regular file", where=path, hint="name a .gguf file on disk")
    return facts.st_size


def _unreadable(path: str, error: Exception) -> HeaderError:
    if isinstance(error, FileNotFoundError):
        return HeaderError(
            "no such file", where=path, hint="check the path; relative paths start at the current folder"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return HeaderError(f"cannot be read: {reason}", where=path, hint="check the path and its permissions")


def _walk(cursor: Cursor) -> RawHeader:
    cursor.skip(len(MAGIC), "the magic")
    version, byte_order = _read_version(cursor)
    n_tensors = cursor.u64("the tensor count")
    n_keys = cursor.u64("the key count")
    # The least tensor row has 1 byte of name and no dimension, the least key 1 byte of name and 1 of value.
    _check_count(cursor, "tensors", n_tensors, least_bytes=25)
    _check_count(cursor, "keys", n_keys, least_bytes=14)
    metadata = read_metadata(cursor, n_keys)
    alignment = _alignment(cursor, metadata)
    table = read_tensors(cursor, n_tensors)
    data_start = cursor.position
    if n_tensors:
        data_start = -(-data_start // alignment) * alignment
    return RawHeader(
        path=cursor.path,
        version=version,
        byte_order=byte_order,
        alignment=alignment,
        metadata=metadata,
        tensors=table.placed(alignment, cursor.file_bytes - data_start),
        data_start=data_start,
        file_bytes=cursor.file_bytes,
    )


def _read_version(cursor: Cursor) -> tuple[int, Literal["little", "big"]]:
    """The version tells the byte order: read the wrong way round, a small number is a large one."""
    version = cursor.u32("the version")
    order: Literal["little", "big"] = "little"
    if version and version & 0xFFFF == 0:
        cursor.use_big_endian()
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
        order = "big"
    if version == 1:
        hint = "convert the model again, or download a newer GGUF of it"
        raise HeaderError("GGUF version 1 is no longer read by any engine", where=cursor.path, hint=hint)
    if version not in _VERSIONS:
        raise HeaderError(f"GGUF version {version} is unknown", where=cursor.path, hint=_UPDATE)
    return version, order


def _check_count(cursor: Cursor, what: str, count: int, least_bytes: int) -> None:
    if count > MAX_ENTRIES:
        raise cursor.damaged(f"the header claims {count} {what}; more than {MAX_ENTRIES} are not read")
    if count * least_bytes > cursor.remaining:
        raise HeaderError(
            f"incomplete header: it claims {count} {what}, but only {cursor.remaining} bytes are left",
            where=cursor.path,
            hint="the download stopped early; download the whole file again",
        )


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    key = "general.alignment"
    alignment = metadata.get(key, _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise cursor.damaged(f"{key} is not a whole number")
    if not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.damaged(f"{key} is {alignment}; powers of two up to {_MAX_ALIGNMENT} are possible")
    return alignment
