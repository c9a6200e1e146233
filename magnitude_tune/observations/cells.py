"""Single values of a stranger's row: numbers, switches, lists and names, whatever the file's format made of them."""

from __future__ import annotations

import json
import math
from typing import Final

from magnitude_tune.observations.llama_bench import INTEGERS, REALS, TEXTS

__all__ = ["column", "listed", "real", "whole"]

_MAX_TEXT: Final = 1_024
_MAX_LIST: Final = 65_536


def column(name: str, value: object) -> object:
    """The value for one of llama-bench's columns, in that column's type; None where it has none."""
    if name in TEXTS:
        return _printable(value) if isinstance(value, str) else None
    if name in REALS:
        return real(value)
    return whole(value) if name in INTEGERS else None


def _printable(text: str) -> str:
    """Text of a stranger that will be shown on a terminal: bounded, without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_TEXT])


def whole(value: object) -> int | None:
    """A whole number that SQLite can hold: a number, a switch, or digits; llama-bench's CSV writes all as text."""
    number = real(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**63 else None


def real(value: object) -> float | None:
    """A finite number: a number, a switch, or a number as text."""
    if isinstance(value, str):
        lowered = value.strip().lower()
        if lowered in ("true", "false"):
            return float(lowered == "true")
        if len(lowered) > 40:
            return None
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def listed(value: object) -> list[object]:
    """A list as it is, or as the JSON text that a database holds; empty where it is neither."""
    if isinstance(value, str) and value.startswith("[") and len(value) < _MAX_LIST:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []
