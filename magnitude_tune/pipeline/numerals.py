"""Raw values, and whole numbers among them: what was written, whether it is one, and what to write instead."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from magnitude_tune.errors import ConfigError, UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.request import Given

__all__ = ["Reading", "Unset", "absence", "integer", "numeral_hint", "refusal", "shown", "text_note", "word", "written"]

T = TypeVar("T")

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_DECIMAL = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_EXPONENT = re.compile(r"[-+]?[0-9]*\.?[0-9]+[eE][-+]?[0-9]+", re.ASCII)
_SHOWN = 60


class Unset(Enum):
    """Why there is no value: nothing was written, or it was written that the choice is free."""

    ABSENT = "absent"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A validated value, or why there is none, and what reading it had to say.

    An absent value leaves the word to the layers below; a free one does not.
    """

    value: T | Unset
    findings: tuple[Finding, ...] = ()


def absence(name: str, given: Given) -> Reading[T] | None:
    """The reading of null or of an empty value, None where something is written.

    An empty value in a file is stated; an empty variable just means unset.
    """
    if given.raw is None:
        return Reading(Unset.ABSENT)
    if not isinstance(given.raw, str) or given.raw.strip():
        return None
    if given.place.line is None:
        return Reading(Unset.ABSENT)
    finding = Finding(
        Rule.EMPTY_VALUE, f"{name} is empty; taken as not set", given.place, f"write a value or remove {name}", name
    )
    return Reading(Unset.ABSENT, (finding,))


def integer(name: str, given: Given, hint: str) -> tuple[int, tuple[Finding, ...]]:
    """A whole number, also as text, with a note where text stands in a file.

    Raises:
        ConfigError, UsageError: anything else.
    """
    raw = given.raw
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw, ()
    if isinstance(raw, str) and _INTEGER.fullmatch(raw.strip()):
        return int(raw), text_note(name, given)
    raise refusal(given, f"{name} must be a whole number, got {shown(raw)}", numeral_hint(raw, hint))


def text_note(name: str, given: Given) -> tuple[Finding, ...]:
    """The note that a value is quoted; on a command line and in a variable everything is text."""
    if given.place.line is None:
        return ()
    message = f"{name} {shown(given.raw)} is text; read as {written(given)}"
    return (Finding(Rule.VALUE_IS_TEXT, message, given.place, f"write {name}: {written(given)}", name),)


def word(given: Given) -> str | None:
    """The raw value as one lower-case word; None where it is no text."""
    return given.raw.strip().lower() if isinstance(given.raw, str) else None


def written(given: Given) -> str:
    """The raw value as it stood in the file, without quotes."""
    raw = given.raw
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, tuple):
        return ",".join(written(item) if isinstance(item, Given) else str(item) for item in raw)
    return str(raw).strip()


def shown(raw: object) -> str:
    """The raw value as a message shows it: text in quotes and cut where it is long."""
    if isinstance(raw, bool):
        return "true (a boolean)" if raw else "false (a boolean)"
    if isinstance(raw, tuple | list):
        return "a list"
    if isinstance(raw, Mapping):
        return "a mapping"
    if isinstance(raw, str):
        return repr(raw if len(raw) <= _SHOWN else raw[:_SHOWN] + "...")
    return "nothing" if raw is None else str(raw)[:_SHOWN]


def refusal(given: Given, what: str, hint: str) -> ConfigError | UsageError:
    """The error of the layer that the value came from."""
    kind = UsageError if given.place.line is None else ConfigError
    return kind(what, where=str(given.place), hint=hint)


def numeral_hint(raw: object, otherwise: str, *, most: float = math.inf) -> str:
    """What to write instead of a number in a form that others read differently; never more than `most`."""
    if not isinstance(raw, str) or len(raw) > _SHOWN:
        return otherwise
    text = raw.strip()
    plain = unicodedata.normalize("NFKC", text)
    repairs = (
        ("use ordinary digits", plain if plain != text else ""),
        ("use a point", text.replace(",", ".") if "," in text else ""),
        ("write it without underscores", text.replace("_", "") if "_" in text else ""),
        ("write it without a suffix", text[:-1] if text[-1:] in ("f", "F", "d", "L") else ""),
        ("write it without leading zeros", text.lstrip("0") if text.startswith("0") else ""),
    )
    for advice, repaired in repairs:
        if _DECIMAL.fullmatch(repaired) and float(repaired) <= most:
            return f"{advice}: {repaired}"
    if _EXPONENT.fullmatch(text):
        return "write the number out, without an exponent"
    return otherwise
