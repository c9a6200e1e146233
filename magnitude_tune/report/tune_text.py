"""A tuning session for people: the path as a table and a plot, the winner and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from magnitude_tune.bench.launch import Subject
from magnitude_tune.report.rows import rows_text
from magnitude_tune.tuning.choosing import PLAN
from magnitude_tune.tuning.values import Run, Step, Tuned
from magnitude_tune.units import format_bytes, format_seconds

__all__ = ["step_text", "tune_text"]

_WIDTH: Final = 40


def tune_text(tuned: Tuned, subject: Subject) -> str:
    """Subject, path, plot and verdict. Plain characters only: nothing here needs colour or a wide character set.

    Args:
        subject: what was planned, whose model, machine and engine these are.
    """
    parts = [_title(tuned, subject), _path(tuned), _plot(tuned), _verdict(tuned)]
    return "\n\n".join(part for part in parts if part) + "\n"


def step_text(tuned_point: str, run: Run | None, problem: str | None) -> str:
    """What came of one run, in a line."""
    if run is None:
        return f"{tuned_point}: not measured, {problem}"
    return f"{tuned_point}: turn {format_seconds(run.seconds)}" + ("" if run.clean else ", disturbed")


def _title(tuned: Tuned, subject: Subject) -> str:
    header, workload = subject.header, subject.resolution.workload
    interrupted = ", interrupted" if tuned.interrupted else ""
    return rows_text(
        [
            ("model", f"{header.name or header.path}, {format_bytes(header.tensor_bytes)}"),
            ("machine", f"{subject.machine.hostname}, {subject.machine.cpu.brand or 'unknown CPU'}"),
            ("engine", f"{subject.engine.name} {subject.engine.build}"),
            ("turn", f"{workload.n_prompt} tokens read, {workload.n_gen} written{interrupted}"),
            ("tuned", f"{len(tuned.runs)} runs, of {len(tuned.candidates)} settings to choose from"),
        ]
    )


def _path(tuned: Tuned) -> str:
    rows: list[tuple[str, ...]] = [("run", "setting", "turn", "against the plan", "why")]
    plan = next((run.seconds for run in tuned.runs if run.candidate == PLAN), None)
    number = 0
    for step, count in _together(tuned.steps):
        point = tuned.candidates[step.candidate].point
        if step.run is None:
            more = f" and {count - 1} more" if count > 1 else ""
            rows.append(("-", point + more, "-", f"not measured: {step.problem}", ""))
            continue
        number += 1
        against = "" if plan is None or number == 1 else f"{step.run.seconds / plan - 1:+.1%}"
        marks = "" if step.run.clean else " (disturbed)"
        rows.append((str(number), point, format_seconds(step.run.seconds), against + marks, step.reason))
    return "Path (each run a fresh process)\n" + rows_text(rows, right=(0, 2))


def _together(steps: Iterable[Step]) -> Iterator[tuple[Step, int]]:
    """Steps in order; what could not be run one after another for the same reason is one, with their number."""
    for _, group in groupby(enumerate(steps), key=lambda each: each[1].problem or each[0]):
        alike = list(group)
        yield alike[0][1], len(alike)


def _plot(tuned: Tuned) -> str:
    """A bar for each run's turn, as long as the longest one's is wide; the fastest is marked."""
    runs = tuned.runs
    if len(runs) < 2:
        return ""
    longest, fastest = max(run.seconds for run in runs), min(run.seconds for run in runs)
    rows = [
        (
            str(number),
            "#" * max(1, round(_WIDTH * run.seconds / longest)),
            format_seconds(run.seconds) + (" fastest" if run.seconds == fastest else ""),
        )
        for number, run in enumerate(runs, 1)
    ]
    return "Turn by run (shorter is better)\n" + rows_text(rows, right=(0,))


def _verdict(tuned: Tuned) -> str:
    return "\n".join(_verdict_lines(tuned))


def _verdict_lines(tuned: Tuned) -> Iterator[str]:
    verdict = tuned.verdict
    if verdict is None:
        yield f"No verdict: {tuned.ended}"
        return
    winner = tuned.candidates[verdict.winner]
    if verdict.change:
        between = f"{verdict.low:.1%} to {verdict.high:.1%}"
        yield f"Winner: {winner.point}; the turn is {verdict.gain:.1%} shorter ({between})"
    else:
        yield "Keep the plan."
    yield f"  Because: {verdict.reason}; two runs of one setting differ by up to {verdict.noise:.1%} here."
    if not verdict.change and verdict.gain > 0:
        yield f"  The fastest other setting was ahead by {verdict.gain:.1%} ({verdict.low:.1%} to {verdict.high:.1%})."
    yield f"  Ended: {tuned.ended}."
    if verdict.change:
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in winner.changes)
        yield f"  To pin it: {options}. The next resolve here knows these runs."
