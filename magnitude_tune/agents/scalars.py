"""Scalars judged by what was written: only plain decimals are numbers, only true and false are booleans.

YAML's other forms of a number (`1e1`, `4_0`, `0o10`, `012`, `.nan`) mean different things to different readers.
They stay text here, so that the readers of the settings can refuse them by name.
"""

from __future__ import annotations

import json
import re
from typing import Final

from magnitude_tune.agents.nodes import ScalarNode

__all__ = ["BOOLEAN_WORDS", "Value", "is_core_tag", "is_plain_number", "plain_value", "scalar_text", "scalar_value"]

Value = int | float | bool | str | None

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_DECIMAL = re.compile(r"[-+]?((0|[1-9][0-9]{0,17})\.[0-9]{0,18}|\.[0-9]{1,18})", re.ASCII)
_NULLS = frozenset({"~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Words that YAML 1.1 readers take for booleans: text that holds one is always quoted.
BOOLEAN_WORDS: Final = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
_SAFE_PLAIN = re.compile(r"[A-Za-z/._][A-Za-z0-9/._+=>-]*", re.ASCII)
_CORE_TAG = "tag:yaml.org,2002:"


def plain_value(text: str) -> Value:
    """A scalar without quotes: None, a boolean, an integer, a plain decimal, or the text itself."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def is_plain_number(text: str) -> bool:
    """Whether the text is an integer or a plain decimal."""
    return bool(_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text))


def scalar_value(node: ScalarNode) -> Value:
    """The value of a scalar; quoted ones are text unless a core tag (`!!int`) says otherwise."""
    if node.tag == f"{_CORE_TAG}str":
        return node.value
    return plain_value(node.value) if node.style is None or node.tag is not None else node.value


def is_core_tag(tag: str | None) -> bool:
    """Whether the tag is absent or one that every YAML reader knows."""
    return tag is None or tag in {f"{_CORE_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null")}


def scalar_text(value: Value, *, like: ScalarNode | None, quoted: bool = False) -> str:
    """The value as YAML, in the quotes or with the on/off words of the scalar `like` that it replaces.

    Args:
        value: what to write.
        like: the scalar that stood there, if one did.
        quoted: whether text is always quoted, as in a block that is JSON.
    """
    text, is_text = _unquoted(value, like)
    style = like.style if like is not None else None
    if style == '"' or (quoted and is_text):
        return _double_quoted(text)
    if style == "'":
        return "'" + text.replace("'", "''") + "'" if text.isprintable() else _double_quoted(text)
    if is_text and (not _SAFE_PLAIN.fullmatch(text) or _reads_otherwise(text)):
        return _double_quoted(text)
    return text


def _unquoted(value: Value, like: ScalarNode | None) -> tuple[str, bool]:
    """The bare text, and whether it must be read as text."""
    if isinstance(value, str):
        return value, True
    if isinstance(value, bool):
        return _boolean_word(value, like), False
    return ("null" if value is None else str(value)), False


def _boolean_word(value: bool, like: ScalarNode | None) -> str:
    pairs = (("off", "on"), ("no", "yes"), ("false", "true"))
    before = "" if like is None else like.value.lower()
    pair = next((pair for pair in pairs if before in pair), pairs[-1])
    return pair[value]


def _reads_otherwise(text: str) -> bool:
    return not isinstance(plain_value(text), str) or text.lower() in {*BOOLEAN_WORDS, "y", "n", ".nan", ".inf"}


def _double_quoted(text: str) -> str:
    plain = text.isprintable()
    return json.dumps(text, ensure_ascii=not plain)
