"""The tensor table of a GGUF header: names, shapes, types, and where each tensor lies."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.cursor import Cursor
from magnitude_tune.header.types import TENSOR_TYPES, TYPE_NAMES
from magnitude_tune.header.values import RawTensor

__all__ = ["TensorTable", "read_tensors"]

_MAX_NAME_BYTES: Final = 63
_MAX_DIMENSIONS: Final = 4
_INT64_MAX: Final = 2**63 - 1


class TensorTable(NamedTuple):
    """The table as written: sizes are None where the type is unknown."""

    cursor: Cursor
    rows: tuple[tuple[str, tuple[int, ...], int, int, int | None], ...]

    def placed(self, alignment: int, data_bytes: int) -> tuple[RawTensor, ...]:
        """Tensors with their sizes in bytes; one of unknown type takes all up to the next (the last, up to the end).

        The engine accepts tensors in one order only: each begins where the one before ends, padded (gguf.cpp).

        Args:
            alignment: bytes that each tensor's start is a multiple of.
            data_bytes: bytes in the file after the header; negative where the file ends before.

        Raises:
            HeaderError: a tensor begins somewhere else.
        """
        tensors: list[RawTensor] = []
        expected, exact = 0, True
        starts = [row[3] for row in self.rows]
        for (name, shape, type_id, offset, size), following in zip(self.rows, [*starts[1:], data_bytes], strict=False):
            self._check_offset(name, offset, alignment)
            if offset < expected or (exact and offset != expected):
                raise self._misplaced(name, offset, expected, data_bytes)
            n_bytes = max(0, following - offset) if size is None else size
            expected, exact = -(-(offset + (size or 0)) // alignment) * alignment, size is not None
            if offset + n_bytes > _INT64_MAX:
                raise self.cursor.damaged(f"the sizes of its tensors add up to more than 2^63 bytes at {name!r}")
            tensors.append(RawTensor(name, shape, type_id, TYPE_NAMES.get(type_id), offset, n_bytes))
        return tuple(tensors)

    def _check_offset(self, name: str, offset: int, alignment: int) -> None:
        if offset > _INT64_MAX:
            raise self.cursor.damaged(f"the tensor {name!r} begins past any file's end, at {offset}")
        if offset % alignment:
            raise self.cursor.damaged(f"the tensor {name!r} begins at {offset}, not at a multiple of {alignment}")

    def _misplaced(self, name: str, offset: int, expected: int, data_bytes: int) -> HeaderError:
        past = ", past the end of the file" if offset > data_bytes else ""
        return self.cursor.damaged(f"the tensor {name!r} begins at {offset} of the data instead of {expected}{past}")


def read_tensors(cursor: Cursor, n_tensors: int) -> TensorTable:
    """Read the rows of the table.

    Raises:
        HeaderError: a name comes twice, a shape cannot be, or the file ends before.
    """
    rows = []
    seen: set[str] = set()
    for index in range(n_tensors):
        name = cursor.name(f"the name of tensor {index + 1} of {n_tensors}", _MAX_NAME_BYTES)
        if name in seen:
            raise cursor.damaged(f"the tensor {name!r} is there twice")
        seen.add(name)
        shape = _read_shape(cursor, name)
        type_id = cursor.u32(f"the type of tensor {name!r}")
        offset = cursor.u64(f"the offset of tensor {name!r}")
        rows.append((name, shape, type_id, offset, _n_bytes(cursor, name, shape, type_id)))
    return TensorTable(cursor, tuple(rows))


def _read_shape(cursor: Cursor, name: str) -> tuple[int, ...]:
    what = f"the shape of tensor {name!r}"
    n_dimensions = cursor.u32(what)
    if n_dimensions > _MAX_DIMENSIONS:
        raise cursor.damaged(f"the tensor {name!r} has {n_dimensions} dimensions; {_MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.u64(what) for _ in range(n_dimensions))
    if max(shape, default=0) > _INT64_MAX or math.prod(shape) > _INT64_MAX:
        raise cursor.damaged(f"the tensor {name!r} claims more than 2^63 elements: {shape}")
    return shape


def _n_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], type_id: int) -> int | None:
    type_name = TYPE_NAMES.get(type_id)
    if type_name is None:
        return None
    elements, size = TENSOR_TYPES[type_name]
    row = shape[0] if shape else 1
    if row % elements:
        raise cursor.damaged(f"the tensor {name!r} has rows of {row}, but {type_name} packs {elements} at a time")
    n_bytes = math.prod(shape) // elements * size
    if n_bytes > _INT64_MAX:
        raise cursor.damaged(f"the tensor {name!r} claims more than 2^63 bytes")
    return n_bytes
