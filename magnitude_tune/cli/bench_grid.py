"""`bench --settings n_threads=1,2 n_ubatch=64,512`: every combination, planned, measured in rounds, compared."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from magnitude_tune.cli.options import SETTINGS

if TYPE_CHECKING:
    from magnitude_tune.bench.grid import Configuration, Grid, Outcome
    from magnitude_tune.bench.journal import Journal
    from magnitude_tune.bench.run import Opener
    from magnitude_tune.cli.bench_one import BenchOptions
    from magnitude_tune.report.bench_grid_rows import LeftOut

__all__ = ["Axis", "bench_grid", "parse_axes", "sort_words"]

_MOST_CONFIGURATIONS: Final = 500
_NOT_AXES: Final = ("model", "engine", "target")
_EXAMPLE: Final = "for example --settings n_threads=1,2,4 n_ubatch=64,512"


class Axis(NamedTuple):
    """One setting and the values it takes in the grid, as they were written."""

    name: str
    values: tuple[str, ...]


def sort_words(
    what: str | None, words: Sequence[str], settings: Sequence[str] | None
) -> tuple[str | None, tuple[str, ...]]:
    """What to measure, and the words of the grid: `--settings` takes several, so some arrive as arguments.

    Args:
        what: the first argument.
        words: the other arguments.
        settings: the values of the option itself; None where it was not used.

    Raises:
        UsageError: an argument that is neither.
    """
    from magnitude_tune.errors import UsageError

    given = [word for word in (what, *words) if word is not None]
    axes = [word for word in given if settings is not None and "=" in word and _name(word) in SETTINGS]
    others = [word for word in given if word not in axes]
    if len(others) > 1:
        hint = f"name one config or model; {_EXAMPLE}"
        raise UsageError(f"there is an argument too many: {others[1][:60]!r}", where="bench", hint=hint)
    return (others[0] if others else None), (*(settings or ()), *axes)


def parse_axes(words: Sequence[str], flags: Sequence[tuple[str, str]]) -> tuple[Axis, ...]:
    """The axes of a grid.

    Args:
        flags: settings from other options; one that is an axis too would be ignored, so that is refused.

    Raises:
        UsageError: a word that is no axis, an unknown or repeated setting, a value that is empty or repeated, or more
            combinations than can be meant.
    """
    from magnitude_tune.errors import UsageError

    axes: list[Axis] = []
    for word in words:
        axis = _axis(word)
        if axis.name in {known.name for known in axes}:
            raise UsageError(f"{axis.name} is named twice", where="--settings", hint="give it one list of values")
        if axis.name in dict(flags):
            hint = "leave one of the two out"
            raise UsageError(f"{axis.name} is also given as an option of its own", where="--settings", hint=hint)
        axes.append(axis)
    size = 1
    for axis in axes:
        size *= len(axis.values)
    if size > _MOST_CONFIGURATIONS:
        what = f"the grid has {size} configurations, the most are {_MOST_CONFIGURATIONS}"
        raise UsageError(what, where="--settings", hint="name fewer values")
    return tuple(axes)


def _name(word: str) -> str:
    return word.partition("=")[0].strip().replace("-", "_")


def _axis(word: str) -> Axis:
    from magnitude_tune.errors import UsageError

    name, (_, sign, text) = _name(word), word.partition("=")
    if not sign:
        raise UsageError(f"{word[:60]!r} is not NAME=VALUE,VALUE", where="--settings", hint=_EXAMPLE)
    if name not in SETTINGS or name in _NOT_AXES:
        known = ", ".join(setting for setting in SETTINGS if setting not in _NOT_AXES)
        raise UsageError(f"there is no setting {name[:60]!r} to vary", where="--settings", hint=f"known are {known}")
    # As llama-bench has it: commas part the values, so the parts of one split have slashes between them.
    values = [value.strip().replace("/", ",") if name == "tensor_split" else value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"{name} has an empty value", where="--settings", hint=_EXAMPLE)
    if len(set(values)) < len(values):
        raise UsageError(f"{name} has the same value twice", where="--settings", hint="name each value once")
    return Axis(name, tuple(values))


def bench_grid(axes: Sequence[Axis], options: BenchOptions) -> None:
    """Measure every combination, show them side by side, keep them.

    The same command, given again within a day after an interruption, goes on where it was; a grid that came to its
    end is measured anew.

    Raises:
        UsageError: a value that a setting cannot have; another process measures the same grid; after what was
            measured is shown, a store or journal that cannot be written.
        DoesNotFitError: no combination fits, or none any more when it is about to be launched.
        EngineError: a configuration crashed; the others were measured, and all are shown before.
    """
    from magnitude_tune.cli.bench_one import RepackingCrashes, open_as_planned
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.engines.sessions import open_or_without_repack

    gc.enable()
    try:
        _measure_and_show(axes, options, open_as_planned, anew=False)
    except RepackingCrashes as crash:
        narrate(f"WARNING: with repacked weights the engine ended ({crash}): planning again without them")
        # Where repacking is pinned, the sessions do without it.
        _measure_and_show(axes, options, open_or_without_repack, anew=True)


def _measure_and_show(axes: Sequence[Axis], options: BenchOptions, open_engine: Opener, *, anew: bool) -> None:
    from magnitude_tune.bench.journal import open_journal
    from magnitude_tune.cli.bench_ending import INTERRUPTED
    from magnitude_tune.cli.bench_one import remember_runs
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.errors import DoesNotFitError, EngineError

    configurations, left_out = _planned(axes, options)
    with open_journal(_key(axes, configurations, options)) as journal:
        configurations, left_out = _as_begun(journal, configurations, left_out, anew=anew)
        outcomes, interrupted, problem = _measured(configurations, options, journal, open_engine)
        remember_runs(configurations[0].subject)
        _show(axes, outcomes, left_out, options, interrupted=interrupted or problem is not None)
        if problem is not None:
            raise problem
        if interrupted:
            narrate("interrupted: what is finished is kept; the same command goes on from here within a day")
            raise typer.Exit(INTERRUPTED)
        if all(outcome.status == "no longer fits" and outcome.result is None for outcome in outcomes):
            what = f"none of the {len(outcomes)} configurations fits any more; {outcomes[0].reason}"
            raise DoesNotFitError(what, where="--settings", hint="free memory, or give the command again")
        journal.end()
    crashed = [outcome for outcome in outcomes if outcome.status == "crashed"]
    if crashed:
        what = f"{len(crashed)} of {len(outcomes)} configurations crashed, first {crashed[0].configuration.point}"
        raise EngineError(f"{what}: {crashed[0].reason}", hint="the table names each one's cause")


def _planned(axes: Sequence[Axis], options: BenchOptions) -> tuple[tuple[Configuration, ...], tuple[LeftOut, ...]]:
    """A plan for each combination; those that cannot run as written, do not fit or repeat another are left out."""
    from magnitude_tune.bench.disturbance import busy_cores
    from magnitude_tune.bench.grid import Configuration
    from magnitude_tune.cli.bench_one import subject_of
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.errors import DoesNotFitError
    from magnitude_tune.findings import Rule
    from magnitude_tune.pipeline.resolve import resolve_request
    from magnitude_tune.report.bench_grid_rows import LeftOut

    # Plans may not move while the grid is measured, so what it stores is no evidence for them.
    common = options.resolve._replace(history=False, busy_cores=busy_cores(options.resolve.rpc))
    names = {axis.name for axis in axes}
    chosen: dict[object, Configuration] = {}
    left_out: list[LeftOut] = []
    loud: set[str] = set()
    for values in product(*(axis.values for axis in axes)):
        pins = tuple(zip((axis.name for axis in axes), values, strict=True))
        point = " ".join(f"{name}={value}" for name, value in pins)
        try:
            resolved = resolve_request(common._replace(flags=(*common.flags, *pins)))
        except DoesNotFitError as error:
            left_out.append(LeftOut(point, "does not fit", str(error)))
            continue
        findings = resolved.resolution.findings
        loud |= {finding.message for finding in findings if finding.rule is Rule.OVERCOMMIT}
        adjusted = [each for each in findings if each.rule is Rule.PIN_ADJUSTED and each.setting in names]
        if adjusted:
            left_out.append(LeftOut(point, "cannot run so", "; ".join(each.message for each in adjusted)))
            continue
        settings = resolved.resolution.settings
        if settings in chosen:
            left_out.append(LeftOut(point, "repeats another", f"the same settings as {chosen[settings].point}"))
            continue
        chosen[settings] = Configuration(point, subject_of(resolved))
    for message in sorted(loud):
        narrate(f"WARNING: {message}")
    if not chosen:
        first = left_out[0]
        raise DoesNotFitError(
            f"none of the {len(left_out)} configurations can be measured; {first.point}: {first.reason}",
            where="--settings",
            hint="name smaller values",
        )
    return tuple(chosen.values()), tuple(left_out)


def _as_begun(
    journal: Journal, configurations: tuple[Configuration, ...], left_out: tuple[LeftOut, ...], *, anew: bool
) -> tuple[tuple[Configuration, ...], tuple[LeftOut, ...]]:
    """The plans that an interrupted grid was begun with, whatever memory and cores are free now; else these.

    Whether they still fit is looked at before each launch.
    """
    from magnitude_tune.bench.grid import Configuration
    from magnitude_tune.bench.journal import Plans
    from magnitude_tune.report.bench_grid_rows import LeftOut

    begun = None if anew else journal.plans
    if begun is None:
        journal.begin(Plans({each.point: each.subject.resolution for each in configurations}, left_out))
        return configurations, left_out
    subject = configurations[0].subject
    planned = tuple(Configuration(point, replace(subject, resolution=plan)) for point, plan in begun.plans.items())
    return planned, tuple(LeftOut._make(each) for each in begun.left_out)


def _key(axes: Sequence[Axis], configurations: Sequence[Configuration], options: BenchOptions) -> str:
    from magnitude_tune import __version__
    from magnitude_tune.bench.journal import grid_key

    subject = configurations[0].subject
    return grid_key(
        {
            "version": __version__,
            "machine": subject.machine.machine_hash,
            "model": subject.header.content_hash,
            "engine": [subject.engine.name, subject.engine.build, subject.engine.path],
            "workload": list(subject.resolution.workload),
            "rpc": list(subject.rpc),
            "budget_seconds": options.budget_seconds,
            "flags": [list(flag) for flag in options.resolve.flags],
            "axes": [list(axis) for axis in axes],
        }
    )


def _measured(
    configurations: Sequence[Configuration], options: BenchOptions, journal: Journal, open_engine: Opener
) -> Grid:
    from magnitude_tune.bench.grid import measure_grid
    from magnitude_tune.cli.bench_one import shortage
    from magnitude_tune.cli.bench_progress import progress_for
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.observations.store import store

    before = sum(bool(journal.slices(each.point, each.subject.resolution.settings)) for each in configurations)
    if not options.quiet:
        known = f", {before} of them measured before, at least in part" if before else ""
        seconds = options.budget_seconds * len(configurations)
        narrate(f"grid: {len(configurations)} configurations{known}; at most {seconds:.0f} s and their loading")
    with progress_for(quiet=options.quiet, verbose=options.verbose) as report:
        return measure_grid(
            configurations,
            open_engine,
            journal,
            budget_seconds=options.budget_seconds,
            keep=store,
            shortage=lambda subject: shortage(subject, options.resolve),
            report=report,
        )


def _show(
    axes: Sequence[Axis],
    outcomes: Sequence[Outcome],
    left_out: Sequence[LeftOut],
    options: BenchOptions,
    *,
    interrupted: bool,
) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.report.bench_grid_rows import GridResult

    grid = GridResult(tuple(axis.name for axis in axes), tuple(outcomes), tuple(left_out), interrupted)
    if options.json_output:
        from magnitude_tune.report.bench_grid_json import grid_document

        emit_json(grid_document(grid), options.output)
    else:
        from magnitude_tune.report.bench_grid_text import grid_text

        emit(grid_text(grid), options.output)
