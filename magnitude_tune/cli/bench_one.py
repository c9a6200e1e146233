"""Measures one configuration for `bench` and `demo`: plan, launch, measure, show, keep."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NamedTuple

from magnitude_tune.cli.bench_ending import interruptible, keep_and_show, leave

if TYPE_CHECKING:
    from magnitude_tune.bench.launch import Subject
    from magnitude_tune.bench.run import Opener
    from magnitude_tune.bench.values import BenchResult
    from magnitude_tune.engines.sessions import Opened
    from magnitude_tune.engines.values import Launch
    from magnitude_tune.fingerprint.values import EngineFacts
    from magnitude_tune.pipeline.resolve import Resolved, ResolveOptions

__all__ = [
    "BenchOptions",
    "RepackingCrashes",
    "announced",
    "bench_and_report",
    "open_as_planned",
    "remember_runs",
    "shortage",
    "subject_of",
]


class BenchOptions(NamedTuple):
    """What to measure and how to show it. `verbose` says a line for each sample."""

    resolve: ResolveOptions
    budget_seconds: float
    json_output: bool = False
    output: str | None = None
    quiet: bool = False
    verbose: bool = False


def bench_and_report(options: BenchOptions) -> None:
    """Measure, show the result, keep it; an interrupt shows and keeps what there is and ends with 130.

    Raises:
        MissingPartError: no engine is installed.
        MagnitudeTuneError: whatever resolving or the engine has to say; a store that cannot be written, after the
            result was shown.
    """
    gc.enable()
    with interruptible():
        result = _measure_and_show(options)
    leave(result.ending)


def _measure_and_show(options: BenchOptions) -> BenchResult:
    resolved, result = _measured(options)
    keep_and_show(result.measurement, result.ending, lambda stored: _show(result, resolved, options, stored))
    remember_runs(subject_of(resolved))
    return result


def remember_runs(subject: Subject) -> None:
    """Work out what the runs that are stored by now say about other settings, for the next resolve."""
    from magnitude_tune.pipeline.history import remember
    from magnitude_tune.pipeline.resolve import shipped_coefficients

    remember(
        subject.header,
        subject.machine,
        subject.engine,
        workload=subject.resolution.workload,
        coefficients=shipped_coefficients(),
    )


def _measured(options: BenchOptions) -> tuple[Resolved, BenchResult]:
    """Resolve and measure; where the plan's repacked weights crash, resolve again without them and measure that."""
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.engines.sessions import open_or_without_repack

    resolved = announced(options)
    if short := shortage(subject_of(resolved), options.resolve):
        narrate(f"WARNING: {short}: planning again")
        resolved = announced(options)
    try:
        return resolved, _run(resolved, options, open_as_planned)
    except RepackingCrashes as crash:
        narrate(f"WARNING: with repacked weights the engine ended ({crash}): planning again without them")
    # Now it is remembered, so the new plan does without; where repacking is pinned, the session does.
    resolved = announced(options)
    return resolved, _run(resolved, options, open_or_without_repack)


class RepackingCrashes(Exception):  # noqa: N818
    """The plan cannot run as it is: the prediction to hold a measurement against would be another plan's."""


def open_as_planned(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
    """Start the engine; a plan that only runs without its repacked weights is not measured as if it were another.

    Raises:
        RepackingCrashes: it is remembered, so the next plan does without.
        EngineError: as `engines.sessions.open_or_without_repack`.
    """
    from magnitude_tune.engines.sessions import open_or_without_repack

    opened = open_or_without_repack(engine, launch, machine_hash)
    if opened.repack_crash is not None:
        opened.session.close()
        raise RepackingCrashes(opened.repack_crash.kind.value)
    return opened


def announced(options: BenchOptions) -> Resolved:
    """Resolve and say what will run; overcommit is said even where everything else is quiet."""
    from magnitude_tune.bench.disturbance import busy_cores
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.findings import Rule
    from magnitude_tune.pipeline.resolve import resolve_request

    # The engine starts at once, so what others do to the cores now counts.
    busy = busy_cores(options.resolve.rpc)
    resolved = resolve_request(options.resolve._replace(busy_cores=busy, measure_disk=True))
    if not options.quiet:
        for line in resolved.resolution.log_lines:
            narrate(line)
    for finding in resolved.resolution.findings:
        if finding.rule is Rule.OVERCOMMIT:
            narrate(f"WARNING: {finding.message}")
    return resolved


def shortage(subject: Subject, options: ResolveOptions) -> str | None:
    """Why the plan does not fit the memory that is free right now; None where it does."""
    from magnitude_tune.bench.launch import shortfalls
    from magnitude_tune.pipeline.machine import find_machine
    from magnitude_tune.units import format_bytes

    now = find_machine(engine_path=options.engine_path, rpc=options.rpc)
    short = [
        f"{use.name} has {format_bytes(use.available_bytes)} left, the plan needs {format_bytes(use.reserved_bytes)}"
        for use in shortfalls(subject.resolution, now.pools)
    ]
    return "; ".join(short) or None


def subject_of(resolved: Resolved) -> Subject:
    """What is measured of a resolution.

    Raises:
        MissingPartError: no engine is installed, or none that can be used.
    """
    from magnitude_tune.bench.launch import Subject

    return Subject(
        resolution=resolved.resolution,
        header=resolved.header,
        engine=_engine(resolved),
        machine=resolved.machine,
        rpc=resolved.rpc,
        companions=resolved.companions,
    )


def _engine(resolved: Resolved) -> EngineFacts:
    """The engine that was planned for.

    Raises:
        MissingPartError: there is none, or none that can be used.
    """
    from magnitude_tune.errors import MissingPartError
    from magnitude_tune.findings import Rule

    if resolved.engine is not None:
        return resolved.engine
    unusable = (finding for finding in resolved.resolution.findings if finding.rule is Rule.ENGINE_UNUSABLE)
    raise MissingPartError(
        "; ".join(finding.message for finding in unusable) or "no engine was found here",
        hint="pip install 'magnitude-tune[engine]', or name a llama-server with --engine-path",
    )


def _run(resolved: Resolved, options: BenchOptions, open_engine: Opener) -> BenchResult:
    from magnitude_tune.bench.run import run_bench
    from magnitude_tune.cli.bench_progress import progress_for

    subject = subject_of(resolved)
    with progress_for(quiet=options.quiet, verbose=options.verbose) as report:
        return run_bench(subject, open_engine, budget_seconds=options.budget_seconds, report=report)


def _show(result: BenchResult, resolved: Resolved, options: BenchOptions, stored: str | None) -> None:
    from magnitude_tune.cli.console import emit, emit_json

    if options.json_output:
        from magnitude_tune.report.bench_json import bench_document
        from magnitude_tune.report.resolution_json import resolution_document

        emit_json(bench_document(result, resolution_document(resolved), stored), options.output)
    else:
        from magnitude_tune.report.bench_text import bench_text

        emit(bench_text(result, resolved, stored), options.output)
