"""Aligned columns, and findings as lines: what every page is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from magnitude_tune.findings import Finding, Severity

__all__ = ["finding_lines", "rows_text"]


def rows_text(rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Rows as aligned columns, two spaces apart; the columns named in `right` are set flush right."""
    # A name from a file may hold line ends; a cell has none.
    table = [tuple(" ".join(cell.splitlines()) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))] if table else []
    lines = []
    for row in table:
        cells = (
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line a finding, with what to do below it."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    for finding in findings:
        where = ", ".join(str(part) for part in (finding.setting, finding.place) if part)
        yield f"{words[finding.rule.severity]} {finding.rule.id}: {finding.message}" + (f" ({where})" if where else "")
        if finding.fix:
            yield f"  {finding.fix}"
