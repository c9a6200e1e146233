"""A measured grid as a table for people: a row a configuration, fastest turn first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from magnitude_tune.observations.statistics import Summary
from magnitude_tune.report.bench_grid_rows import GridResult, GridRow, grid_rows, measured
from magnitude_tune.report.resolution_json import settings_document
from magnitude_tune.report.rows import finding_lines, rows_text
from magnitude_tune.units import format_bytes, format_rate, format_seconds

__all__ = ["grid_text"]


def grid_text(grid: GridResult) -> str:
    """Subject, the table, what can be told apart, disturbances, and the points that were not measured."""
    rows = grid_rows(grid.outcomes)
    parts = [_title(grid), _table(grid, rows), _verdict(rows), "\n".join(_notes(rows)), _left_out(grid)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(grid: GridResult) -> str:
    subject = grid.outcomes[0].configuration.subject
    header, workload = subject.header, subject.resolution.workload
    interrupted = ", interrupted" if grid.interrupted else ""
    return rows_text(
        [
            ("model", f"{header.name or header.path}, {format_bytes(header.tensor_bytes)}"),
            ("machine", f"{subject.machine.hostname}, {subject.machine.cpu.brand or 'unknown CPU'}"),
            ("engine", f"{subject.engine.name} {subject.engine.build}"),
            ("turn", f"{workload.n_prompt} tokens read, {workload.n_gen} written{interrupted}"),
        ]
    )


def _table(grid: GridResult, rows: tuple[GridRow, ...]) -> str:
    table: list[tuple[str, ...]] = [(*grid.axes, "pp", "", "tg", "", "turn", "", "n", "against the best")]
    table += [_row(grid, row) for row in rows]
    n_axes = len(grid.axes)
    right = (*range(n_axes), n_axes, n_axes + 2, n_axes + 4, n_axes + 6)
    return "Measured in rounds (medians with 90 % intervals)\n" + rows_text(table, right=right)


def _row(grid: GridResult, row: GridRow) -> tuple[str, ...]:
    outcome = row.outcome
    written = dict(part.split("=", 1) for part in outcome.configuration.point.split(" "))
    cells = [written[name] for name in grid.axes]
    pp, tg, turn = (measured(outcome, quantity) for quantity in ("pp", "tg", "turn_seconds"))
    for summary, shown in ((pp, format_rate), (tg, format_rate), (turn, format_seconds)):
        cells += _figure(summary, shown)
    n = min((summary.n for summary in (pp, tg) if summary), default=0)
    return (*cells, str(n), _standing(row))


def _figure(summary: Summary | None, shown: Callable[[float], str]) -> tuple[str, str]:
    if summary is None:
        return "-", ""
    if summary.n < 2:
        return shown(summary.median), "one sample"
    below, above = ((end / summary.median - 1) for end in (summary.low, summary.high))
    return shown(summary.median), f"{below:+.0%} {above:+.0%}"


def _standing(row: GridRow) -> str:
    text: str = row.standing
    if row.standing == "slower" and row.slower_by is not None:
        text = f"slower by {row.slower_by:.0%}"
    return text if row.outcome.status == "measured" else f"{text}, {row.outcome.status}"


def _verdict(rows: tuple[GridRow, ...]) -> str:
    best = next((row for row in rows if row.standing == "best"), None)
    if best is None:
        return "No configuration has samples enough, undisturbed, for a verdict."
    settings = settings_document(best.outcome.configuration.subject.resolution.settings)
    alike = sum(row.standing == "as good as the best" for row in rows)
    slower = sum(row.standing == "slower" for row in rows)
    text = f"Best: {best.outcome.configuration.point}; {alike} as good by these samples, {slower} slower"
    return text + "\n  " + ", ".join(f"{name}={_shown(value)}" for name, value in settings.items())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _notes(rows: tuple[GridRow, ...]) -> Iterator[str]:
    """What there is to say, each thing once, with the configurations it is true of."""
    said: dict[str, list[str]] = {}
    for row in rows:
        outcome = row.outcome
        if outcome.reason:
            said.setdefault(f"{outcome.status}: {outcome.reason}", []).append(outcome.configuration.point)
        for finding in outcome.result.findings if outcome.result else ():
            line = next(finding_lines([finding]))
            said.setdefault(line, []).append(outcome.configuration.point)
    for line, points in said.items():
        yield line + "\n  " + (f"all {len(rows)} configurations" if 1 < len(points) == len(rows) else "; ".join(points))


def _left_out(grid: GridResult) -> str:
    if not grid.left_out:
        return ""
    rows = [(left.point, left.kind, left.reason) for left in grid.left_out]
    return "Not measured\n" + rows_text(rows)
