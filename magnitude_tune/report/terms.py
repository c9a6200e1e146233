"""The terms of a footprint: a table by device and pool with sums, and rows for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from magnitude_tune.footprint.values import Term
from magnitude_tune.report.rows import rows_text
from magnitude_tune.units import MIB

__all__ = ["pool_documents", "term_document", "terms_text"]

_HEAD = ("device", "pool", "term", "reserved", "resident", "between", "certainty", "rule")
_FIGURES = (3, 4, 5)
_WIDTH: Final = 96


def terms_text(terms: Sequence[Term]) -> str:
    """The terms of each device with their sum; of each pool with several devices, and of everything, one sum more.

    Rules are numbered and stand below.
    """
    by_device = _grouped(terms, lambda term: (term.device, term.pool))
    rows: list[tuple[str, ...]] = [_HEAD]
    numbers = {rule: number for number, rule in enumerate(dict.fromkeys(term.rule for term in terms), start=1)}
    for (device, pool), group in by_device.items():
        rows += [_row(term, numbers[term.rule]) for term in group]
        rows.append(_sum(device, pool, group))
    for (pool,), group in _grouped(terms, lambda term: (term.pool,)).items():
        if len({term.device for term in group}) > 1:
            rows.append(_sum("all", pool, group))
    if len({term.pool for term in terms}) > 1:
        rows.append(_sum("all", "all", terms))
    return "Terms\n" + rows_text(rows, right=_FIGURES) + "\n" + "\n".join(_rule(*each) for each in numbers.items())


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
    between = "" if term.low_bytes == term.high_bytes else f"{_mib(term.low_bytes)} to {_mib(term.high_bytes)}"
    figures = (_mib(term.reserved_bytes), _mib(term.resident_bytes), between)
    return term.device, term.pool, term.name, *figures, term.certainty, f"[{rule}]"


def _sum(device: str, pool: str, terms: Sequence[Term]) -> tuple[str, ...]:
    reserved = _mib(sum(term.reserved_bytes for term in terms))
    resident = _mib(sum(term.resident_bytes for term in terms))
    low, high = (sum(getattr(term, name) for term in terms) for name in ("low_bytes", "high_bytes"))
    between = "" if low == high else f"{_mib(low)} to {_mib(high)}"
    return device, pool, "sum", reserved, resident, between, "", ""


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.2f} MiB"
