"""The terms of a footprint: a table by device and pool with sums, and rows for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from magnitude_tune.footprint.values import Term
from magnitude_tune.report.rows import rows_text
from magnitude_tune.units import GIB, MIB

__all__ = ["pool_documents", "term_document", "terms_text"]

_HEAD: Final = ("term", "reserved", "resident", "between", "", "certainty", "rule")
_FIGURES: Final = (1, 2, 3)
_WIDTH: Final = 80


def terms_text(terms: Sequence[Term]) -> str:
    """The terms of each device with their sum; of each pool with several devices, and of everything, one sum more.

    A line names device and pool. Rules are numbered and stand below.
    """
    numbers = {rule: number for number, rule in enumerate(dict.fromkeys(term.rule for term in terms), start=1)}
    groups = [
        (f"{device}, pool {pool}", [*(_row(term, numbers[term.rule]) for term in group), _sum(group)])
        for (device, pool), group in _grouped(terms, lambda term: (term.device, term.pool)).items()
    ]
    for (pool,), group in _grouped(terms, lambda term: (term.pool,)).items():
        if len({term.device for term in group}) > 1:
            groups.append((f"all of pool {pool}", [_sum(group)]))
    if len({term.pool for term in terms}) > 1:
        groups.append(("all pools", [_sum(terms)]))
    head, *lines = rows_text((_HEAD, *(row for _, rows in groups for row in rows)), right=_FIGURES).splitlines()
    shown = ["Terms", head]
    for title, rows in groups:
        shown += [" ".join(title.splitlines()), *lines[: len(rows)]]
        del lines[: len(rows)]
    return "\n".join((*shown, *(_rule(*each) for each in numbers.items())))


def term_document(term: Term) -> dict[str, object]:
    """One term, in bytes."""
    return term._asdict()


def pool_documents(terms: Iterable[Term]) -> list[dict[str, Any]]:
    """Sums over the terms of each pool, in bytes, with the devices that share it."""
    return [
        {
            "name": pool,
            "devices": list(dict.fromkeys(term.device for term in group)),
            "reserved_bytes": sum(term.reserved_bytes for term in group),
            "resident_bytes": sum(term.resident_bytes for term in group),
            "low_bytes": sum(term.low_bytes for term in group),
            "high_bytes": sum(term.high_bytes for term in group),
        }
        for (pool,), group in _grouped(terms, lambda term: (term.pool,)).items()
    ]


def _grouped(terms: Iterable[Term], key: Callable[[Term], tuple[str, ...]]) -> dict[tuple[str, ...], list[Term]]:
    """Terms alike, in the order in which the first of each kind comes."""
    groups: dict[tuple[str, ...], list[Term]] = {}
    for term in terms:
        groups.setdefault(key(term), []).append(term)
    return groups


def _rule(rule: str, number: int) -> str:
    """A rule below the table, under its number."""
    head = f"  [{number}] "
    return textwrap.fill(rule, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _row(term: Term, rule: int) -> tuple[str, ...]:
    return term.name, *_figures((term,)), term.certainty, f"[{rule}]"


def _sum(terms: Sequence[Term]) -> tuple[str, ...]:
    return "sum", *_figures(terms), "", ""


def _figures(terms: Sequence[Term]) -> tuple[str, str, str, str]:
    """Reserved, resident, the interval where there is one, and their unit; no figure is longer than 999.999."""
    reserved, resident, low, high = (
        sum(getattr(term, f"{name}_bytes") for term in terms) for name in ("reserved", "resident", "low", "high")
    )
    largest = max(reserved, resident, high)
    unit, size = ("MiB", MIB) if largest < 1000 * MIB else ("GiB", GIB)
    digits = 3 if unit == "GiB" and largest < 100 * GIB else 2
    shown = [f"{n_bytes / size:.{digits}f}" for n_bytes in (reserved, resident, low, high)]
    return shown[0], shown[1], "" if low == high else "-".join(shown[2:]), unit
