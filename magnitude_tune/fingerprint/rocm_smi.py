"""`rocm-smi`, whose answer changes shape: JSON behind warnings, CSV, or lines that start with `GPU[0]`.

Figures are found by their labels, never by their position. What cannot be read is unknown, never zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.runner import CommandRunner

__all__ = ["SmiCard", "ask_rocm_smi", "parse_rocm_smi"]

_SECONDS: Final = 10.0
_MOST_CARDS: Final = 64
_MOST_BYTES: Final = 1 << 44
_LEAST_BYTES: Final = 1 << 20
_UNITS: Final = {"b": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30, "gib": 1 << 30}
_LINE: Final = re.compile(r"(?:GPU|card) ?\[?([0-9]{1,3})\]?\s*:\s*([^:]{1,80}?)\s*:\s*(.{1,120})", re.ASCII)
_CARD: Final = re.compile(r"(?:GPU|card) ?\[?([0-9]{1,3})\]?", re.ASCII)


class SmiCard(NamedTuple):
    """What `rocm-smi` says of one AMD card; None for what it does not say."""

    number: int
    name: str | None
    device_id: str | None
    gfx: str | None
    total_bytes: int | None
    used_bytes: int | None


def ask_rocm_smi(run: CommandRunner) -> tuple[SmiCard, ...]:
    """The AMD cards that `rocm-smi` lists; none where it is not there, fails, or cannot be understood."""
    completed = run(("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"), _SECONDS)
    return parse_rocm_smi(completed.stdout) if completed.returncode is not None else ()


def parse_rocm_smi(text: str) -> tuple[SmiCard, ...]:
    """The AMD cards of an answer in any of the shapes that versions give it, in the order of their numbers."""
    labelled = _from_json(text) or _from_lines(text) or _from_csv(text)
    cards = (_card(number, labels) for number, labels in sorted(labelled.items())[:_MOST_CARDS])
    return tuple(card for card in cards if card is not None)


def _from_json(text: str) -> dict[int, dict[str, str]]:
    """The object from the first `{` to the last `}`: warnings stand before it, and hints may follow it."""
    first, last = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[first : last + 1]) if 0 <= first < last else {}
    except (ValueError, RecursionError):
        return {}
    found = {}
    for key, value in answer.items() if isinstance(answer, dict) else ():
        if isinstance(value, dict) and (match := _CARD.fullmatch(key)):
            found[int(match[1])] = {str(label): str(figure) for label, figure in value.items()}
    return found


def _from_lines(text: str) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        if match := _LINE.match(line.strip()):
            found.setdefault(int(match[1]), {})[match[2]] = match[3]
    return found


def _from_csv(text: str) -> dict[int, dict[str, str]]:
    """Rows under a header; a row without a header has figures without labels, which say nothing."""
    header: list[str] = []
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0].lower() == "device":
            header = cells
        elif header and (match := _CARD.fullmatch(cells[0])) and len(cells) == len(header):
            found[int(match[1])] = dict(zip(header[1:], cells[1:], strict=True))
    return found


def _card(number: int, labels: dict[str, str]) -> SmiCard | None:
    """The card that labels describe; None for another vendor's, such as a server's display chip."""
    vendor = _labelled(labels.items(), ("card vendor",))
    if vendor is not None and not re.search(r"amd|ati\b|advanced micro", vendor.lower()):
        return None
    total = _size(labels, words=("vram", "total"), without=("used", "free"))
    used = _size(labels, words=("vram", "used"), without=("free",))
    free = _size(labels, words=("vram", "free"), without=("used",))
    if used is None and free is not None and total is not None:
        used = max(0, total - free)
    return SmiCard(
        number=number,
        name=_name(labels),
        device_id=_matching(_labelled(labels.items(), ("card model",)), r"0x[0-9a-f]{4}"),
        gfx=_matching(_labelled(labels.items(), ("gfx version",)), r"gfx[0-9a-f]{3,5}"),
        total_bytes=total or None,
        used_bytes=used if total and used is not None and used <= total else None,
    )


def _name(labels: dict[str, str]) -> str | None:
    for label in (("card series",), ("card model",), ("marketing name",)):
        name = _labelled(labels.items(), label)
        if name and name.lower() not in ("n/a", "unknown") and not name.startswith("0x"):
            inner = re.search(r"\[([^\[\]]{1,100})\]", name)
            return (inner[1] if inner else name).strip()[:120]
    return None


def _labelled(labels: Iterable[tuple[str, str]], words: tuple[str, ...], without: tuple[str, ...] = ()) -> str | None:
    for label, value in labels:
        lower = label.lower()
        if all(word in lower for word in words) and not any(word in lower for word in without):
            return value.strip()
    return None


def _matching(value: str | None, pattern: str) -> str | None:
    return value.lower() if value is not None and re.fullmatch(pattern, value.lower(), re.ASCII) else None


def _size(labels: dict[str, str], *, words: tuple[str, ...], without: tuple[str, ...]) -> int | None:
    """Bytes under a label that holds these words and not those, by the unit that the label or the figure names."""
    for label, value in labels.items():
        figure = re.fullmatch(r"([0-9]{1,15})(?:\s*([KMG]?i?B))?", value.strip(), re.ASCII)
        lower = label.lower()
        if not figure or not all(w in lower for w in words) or any(w in lower for w in without) or "%" in lower:
            continue
        named = re.search(r"\(([kmg]?i?b)\)", lower)
        unit = (figure[2] or (named[1] if named else "")).lower()
        size = int(figure[1]) * _UNITS.get(unit, 1)
        return size if size < _MOST_BYTES and (unit or size == 0 or size >= _LEAST_BYTES) else None
    return None
