"""Stored runs, and two of them compared, as pages for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from magnitude_tune.observations.compare import Comparison, Difference
from magnitude_tune.observations.history import StoredRun, StoredTest, short_ids
from magnitude_tune.observations.imports import Imported
from magnitude_tune.report.rows import rows_text
from magnitude_tune.units import format_rate

__all__ = ["MAX_SHOWN", "comparison_text", "history_text", "import_text"]

MAX_SHOWN: Final = 50
"""Runs on a page; JSON has all of them."""

_MAIN: Final = ("n_gpu_layers", "n_threads", "n_batch", "n_ubatch", "n_ctx", "load_mode", "repack")
_SUBJECTS: Final[Mapping[str, tuple[Callable[[StoredRun], str], Callable[[StoredRun], str]]]] = {
    "machine": (lambda run: run.machine_hash, lambda run: run.cpu_info or run.machine_hash[:12]),
    "model": (lambda run: run.model_hash, lambda run: run.model_type or run.model_filename),
    "engine": (lambda run: f"{run.engine} {run.engine_build}", lambda run: f"{run.engine} {run.engine_build}"),
}


def history_text(runs: Sequence[StoredRun]) -> str:
    """A line for each run, newest first: its id, what sets it apart from the others, rates, and how far to trust them.

    Args:
        runs: newest first.
    """
    if not runs:
        return "No runs are stored.\n"
    shown = runs[:MAX_SHOWN]
    differing, common = _settings_apart(shown)
    subjects = _subjects_apart(shown)
    ids = short_ids(runs)
    kinds = list(dict.fromkeys(test.key.kind for run in shown for test in run.tests))
    kinds.sort(key=("pp", "tg", "pp+tg").index)
    rows = [("run", "when", *subjects, "settings", *kinds, "marks")]
    rows += [
        (
            ids[run.run_id],
            run.started_at[:16].replace("T", " "),
            *(part(run) for part in subjects.values()),
            _settings(run, differing),
            *(_rates(run, kind) for kind in kinds),
            ", ".join(_marks(run)),
        )
        for run in shown
    ]
    parts = [rows_text(rows)]
    if common:
        parts.append("The same in all: " + ", ".join(f"{name}={_value(value)}" for name, value in common.items()))
    if len(runs) > len(shown):
        parts.append(f"{len(runs) - len(shown)} older runs are not shown; --json has them all.")
    return "\n\n".join(parts) + "\n"


def comparison_text(comparison: Comparison) -> str:
    """Both runs, what they were set to differently, and for each test the ratio with its interval and verdict."""
    a, b = comparison.a, comparison.b
    ids = short_ids((a, b))
    subject = [
        ("A", f"{ids[a.run_id]}, {a.started_at}" + _in_brackets(_marks(a))),
        ("B", f"{ids[b.run_id]}, {b.started_at}" + _in_brackets(_marks(b))),
        ("model", a.model_type or a.model_filename),
        ("machine", a.cpu_info or "unknown CPU"),
        ("engine", f"{a.engine} {a.engine_build}"),
    ]
    rows: list[tuple[str, ...]] = [("test", "A", "B", "B / A", "90 % interval", "verdict")]
    rows += [_difference(difference) for difference in comparison.tests]
    parts = [
        rows_text(subject),
        _differing(comparison),
        rows_text(rows, right=(1, 2, 3)),
        "\n".join(f"  {text}" for text in comparison.only),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def import_text(imported: Imported) -> str:
    """What was taken of a file, and why the rest was not."""
    n_runs = len(imported.run_ids)
    lines = [f"Imported {_counted(n_runs, 'run')} with {_counted(imported.n_rows, 'row')}."]
    if imported.n_known:
        lines.append(f"{_counted(imported.n_known, 'run')} of it were here already.")
    lines += [f"Left out {_counted(n, 'row')}: {reason}." for reason, n in imported.left_out]
    if n_runs:
        lines.append("Imported runs are marked and calibrate nothing: the machine is known by its names only.")
    return "\n".join(lines) + "\n"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _settings_apart(runs: Sequence[StoredRun]) -> tuple[list[str], dict[str, object]]:
    """Names whose values differ among the runs, and the main ones that are the same in all."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    differing = []
    common = {}
    for name in names:
        values = {str(run.settings[name]) for run in runs if name in run.settings}
        if len(values) > 1:
            differing.append(name)
        elif name in _MAIN and all(name in run.settings for run in runs):
            common[name] = runs[0].settings[name]
    return differing, common


def _subjects_apart(runs: Sequence[StoredRun]) -> Mapping[str, Callable[[StoredRun], str]]:
    """What else must be said of each run because it is not the same in all."""
    return {name: shown for name, (identity, shown) in _SUBJECTS.items() if len({identity(run) for run in runs}) > 1}


def _settings(run: StoredRun, names: Iterable[str]) -> str:
    return " ".join(f"{name}={_value(run.settings[name])}" for name in names if name in run.settings)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _rates(run: StoredRun, kind: str) -> str:
    tests = [test for test in run.tests if test.key.kind == kind]
    if not tests:
        return "-"
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return _rate(tests[0]) + more


def _rate(test: StoredTest) -> str:
    summary = test.summary
    between = f"{format_rate(summary.low).removesuffix(' t/s')} to {format_rate(summary.high)}"
    if len(test.samples) < 2:
        between = "one sample" if test.samples else "mean only"
    return f"{test.key}: {format_rate(summary.median)} ({between})"


def _marks(run: StoredRun) -> Iterator[str]:
    if run.origin == "imported":
        yield "imported"
    if not run.complete:
        yield "interrupted"
    if not run.clean:
        yield "disturbed"
    unstable = [test.key.kind for test in run.tests if not test.stable and test.samples]
    if unstable:
        yield "unstable " + " and ".join(dict.fromkeys(unstable))


def _in_brackets(marks: Iterable[str]) -> str:
    text = ", ".join(marks)
    return f" ({text})" if text else ""


def _differing(comparison: Comparison) -> str:
    if not comparison.settings:
        return "Settings: the same"
    rows = [(name, _value(a), _value(b)) for name, a, b in comparison.settings]
    return "Settings that differ\n" + rows_text([("", "A", "B"), *rows])


def _difference(difference: Difference) -> tuple[str, ...]:
    interval = "-" if difference.low is None else f"{difference.low:.3f} to {difference.high:.3f}"
    return (
        str(difference.key),
        format_rate(difference.a.summary.median),
        format_rate(difference.b.summary.median),
        f"{difference.ratio:.3f}",
        interval,
        f"{difference.verdict}: {difference.reason}",
    )
