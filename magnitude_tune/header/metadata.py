"""Keys and values of a GGUF header: short values are kept, tokenizer tables are stepped over by length."""

from __future__ import annotations

from typing import Final

from magnitude_tune.header.cursor import MAX_ARRAY_STRINGS, Cursor
from magnitude_tune.header.types import VALUE_SIZES
from magnitude_tune.header.values import ArraySummary, Scalar
from magnitude_tune.units import KIB, MIB

__all__ = ["Value", "read_metadata"]

Value = Scalar | tuple[Scalar, ...] | ArraySummary

_STRING: Final = 8
_ARRAY: Final = 9
_TYPE_NAMES: Final = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool"),
    *("string", "array", "uint64", "int64", "float64"),
)
_MAX_KEY_BYTES: Final = 1024
# Per-layer arrays have at most 512 elements; longer arrays are tables of the tokenizer.
_KEPT_LENGTH: Final = 1024
_KEPT_STRINGS: Final = 64
_KEPT_TEXT_BYTES: Final = 64 * KIB
_MAX_DEPTH: Final = 4
_MAX_NESTED: Final = 65_536


class _Budget:
    """What one header may keep in memory, over all its values."""

    def __init__(self) -> None:
        self.text_bytes = 4 * MIB
        self.elements = 262_144
        self.nested = _MAX_NESTED


def read_metadata(cursor: Cursor, n_keys: int) -> dict[str, Value]:
    """Read `n_keys` keys with their values.

    Numbers, texts up to 64 KiB and short arrays are kept; of longer ones type and length are
    (a long text is an `ArraySummary` of type `char`).

    Raises:
        HeaderError: a key is empty, given twice or has an impossible value, or the file ends before.
    """
    metadata: dict[str, Value] = {}
    budget = _Budget()
    for index in range(n_keys):
        key = cursor.name(f"the name of key {index + 1} of {n_keys}", _MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.damaged(f"the key {key!r} is there twice")
        metadata[key] = _read_value(cursor, cursor.u32(f"the type of {key!r}"), f"the value of {key!r}", budget)
    return metadata


def _read_value(cursor: Cursor, type_id: int, what: str, budget: _Budget) -> Value:
    if type_id == _ARRAY:
        return _read_array(cursor, what, budget, depth=1)
    if type_id == _STRING:
        return _read_text(cursor, what, budget)
    return cursor.numbers(_code(cursor, type_id, what)[0], what)[0]


def _code(cursor: Cursor, type_id: int, what: str) -> tuple[str, int]:
    found = VALUE_SIZES.get(type_id)
    if found is None:
        raise cursor.damaged(f"{what} has the unknown type {type_id}")
    return found


def _read_text(cursor: Cursor, what: str, budget: _Budget) -> str | ArraySummary:
    length = cursor.u64(what)
    if length > _KEPT_TEXT_BYTES or length > budget.text_bytes:
        cursor.skip(length, what)
        return ArraySummary("char", length)
    budget.text_bytes -= length
    return cursor.take(length, what).decode("utf-8", "backslashreplace")


def _read_array(cursor: Cursor, what: str, budget: _Budget, depth: int) -> tuple[Scalar, ...] | ArraySummary:
    type_id = cursor.u32(what)
    length = cursor.u64(what)
    if type_id == _ARRAY:
        return _skip_nested(cursor, what, budget, depth, length)
    if type_id == _STRING:
        return _read_strings(cursor, what, budget, length)
    code, size = _code(cursor, type_id, what)
    if length > _KEPT_LENGTH or length > budget.elements:
        cursor.skip(length * size, what)
        return ArraySummary(_TYPE_NAMES[type_id], length)
    budget.elements -= length
    return cursor.numbers(code * length, what)


def _read_strings(cursor: Cursor, what: str, budget: _Budget, length: int) -> tuple[Scalar, ...] | ArraySummary:
    """Short lists of names are kept (tags, languages); a list with a very long text in it is an answer of its own."""
    if length > _KEPT_STRINGS or length > budget.elements:
        cursor.skip_strings(length, what)
        return ArraySummary("string", length)
    budget.elements -= length
    texts = [_read_text(cursor, what, budget) for _ in range(length)]
    kept = tuple(text for text in texts if isinstance(text, str))
    return kept if len(kept) == length else ArraySummary("string", length)


def _skip_nested(cursor: Cursor, what: str, budget: _Budget, depth: int, length: int) -> ArraySummary:
    """Arrays of arrays are legal in the format, though no engine reads them."""
    if depth >= _MAX_DEPTH:
        raise cursor.damaged(f"{what} nests arrays more than {_MAX_DEPTH} deep")
    budget.nested -= length
    if length > MAX_ARRAY_STRINGS or budget.nested < 0:
        raise cursor.damaged(f"{what} claims {length} nested arrays; more than {_MAX_NESTED} are not read")
    for _ in range(length):
        _read_array(cursor, what, budget, depth + 1)
    return ArraySummary("array", length)
