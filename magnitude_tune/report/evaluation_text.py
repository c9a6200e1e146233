"""How well predictions met a table, as a page: a line a kind, and what could not be used."""

from __future__ import annotations

from typing import Final

from magnitude_tune.learning.evaluation import Figures, Scored
from magnitude_tune.report.rows import rows_text

__all__ = ["evaluation_page"]

_HEAD: Final = (
    "kind", "rows", "devices", "median error", "90th pct", "within 25 %", "coverage", "width", "rank corr.", "sweeps",
)  # fmt: skip


def evaluation_page(scored: Scored) -> str:
    """The page of `evaluate`; errors are medians of devices, coverage and width those of the 90 % interval."""
    rows = [_HEAD, *(_row(kind, each) for kind, each in scored.kinds.items())]
    lines = ["Predictions against measurements", rows_text(rows, right=range(1, len(_HEAD)))]
    if scored.skipped:
        lines += ["", "Rows left out"]
        lines.append(rows_text([(str(n), reason) for reason, n in scored.skipped.items()], right=(0,)))
    return "\n".join(lines)


def _row(kind: str, each: Figures) -> tuple[str, ...]:
    shares = (each.median_error, each.p90_error, each.within_25, each.coverage_90, each.median_width_90)
    order = "-" if each.rank_correlation is None else f"{each.rank_correlation:.2f}"
    shown = ("-" if share is None else f"{100 * share:.1f} %" for share in shares)
    return (kind, str(each.rows), str(each.devices), *shown, order, str(each.sweeps))
