"""`bench --tune`: a few runs, each chosen by what the ones before say, until nothing is left to be gained."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from magnitude_tune.bench.journal import Journal
    from magnitude_tune.bench.launch import Subject
    from magnitude_tune.bench.run import Opener
    from magnitude_tune.bench.values import Slice
    from magnitude_tune.cli.bench_one import BenchOptions
    from magnitude_tune.pipeline.resolve import Resolved
    from magnitude_tune.tuning.running import Runner
    from magnitude_tune.tuning.values import Candidate, Step, Tuned

__all__ = ["bench_tune"]

_AXES: Final = ("n_threads", "n_threads_batch", "n_batch", "n_ubatch", "flash_attn", "n_gpu_layers", "repack")
"""What a candidate's plan is pinned to; the rest is planned around it."""


def bench_tune(options: BenchOptions, max_runs: int) -> None:
    """Tune, show the path and the winner, keep every run.

    The same command, given again within a day after an interruption, goes on where it was.

    Raises:
        DoesNotFitError, MissingPartError: as for one configuration.
        EngineError: the plan itself could not be measured.
        UsageError: another process tunes the same; a journal or store that cannot be written.
    """
    from magnitude_tune.cli.bench_ending import interruptible
    from magnitude_tune.cli.bench_one import RepackingCrashes, announced, open_as_planned
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.engines.sessions import open_or_without_repack

    gc.enable()
    with interruptible():
        try:
            _tune_and_show(announced(options), options, max_runs, open_as_planned)
        except RepackingCrashes as crash:
            narrate(f"WARNING: with repacked weights the engine ended ({crash}): planning again without them")
            _tune_and_show(announced(options), options, max_runs, open_or_without_repack)


def _tune_and_show(resolved: Resolved, options: BenchOptions, max_runs: int, open_engine: Opener) -> None:
    from magnitude_tune.bench.journal import Plans, open_journal
    from magnitude_tune.cli.bench_one import remember_runs, subject_of
    from magnitude_tune.errors import EngineError
    from magnitude_tune.tuning.candidates import candidates_around

    subject = subject_of(resolved)
    with open_journal(_key(subject, options)) as journal:
        begun = journal.plans.plans if journal.plans is not None else {}
        # What was stored meanwhile may have moved the plan: an interrupted session goes on from its own.
        subject = replace(subject, resolution=begun.get("the plan", subject.resolution))
        if not begun:
            journal.begin(Plans({"the plan": subject.resolution}, ()))
        candidates = candidates_around(
            subject.resolution.settings,
            usable_cores=subject.machine.cpu.usable_cores,
            all_layers=subject.header.all_layers,
            pinned=frozenset(pin.name for pin in resolved.request.pins),
        )
        tuned, runner = _tuned(candidates, subject, options, max_runs, journal=journal, open_engine=open_engine)
        remember_runs(subject)
        _show(tuned, subject, runner, options, max_runs)
        if tuned.interrupted:
            _leave_interrupted(tuned)
        journal.end()
    if tuned.verdict is None:
        problem = next((step.problem for step in tuned.steps if step.problem), tuned.ended)
        raise EngineError(f"the plan could not be measured: {problem}", hint="run bench without --tune to see more")


def _leave_interrupted(tuned: Tuned) -> None:
    from magnitude_tune.cli.bench_ending import INTERRUPTED
    from magnitude_tune.cli.console import narrate

    narrate(f"interrupted after {len(tuned.runs)} runs, which are kept; the same command goes on within a day")
    raise typer.Exit(INTERRUPTED)


def _tuned(
    candidates: tuple[Candidate, ...],
    subject: Subject,
    options: BenchOptions,
    max_runs: int,
    *,
    journal: Journal,
    open_engine: Opener,
) -> tuple[Tuned, Runner]:
    from magnitude_tune.bench.grid import ROUNDS
    from magnitude_tune.bench.taking import take_slice
    from magnitude_tune.cli.bench_one import shortage
    from magnitude_tune.cli.bench_progress import progress_for
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.observations.store import store
    from magnitude_tune.pipeline.history import before_session, unrefined
    from magnitude_tune.report.tune_text import step_text
    from magnitude_tune.tuning.running import Before, Doing, Runner
    from magnitude_tune.tuning.session import tune

    workload = subject.resolution.workload
    evidence, others, noise = before_session(subject.header, subject.machine, subject.engine, workload)
    with progress_for(quiet=options.quiet, verbose=options.verbose) as report:

        def take(planned: Subject) -> Slice:
            budget = options.budget_seconds / ROUNDS
            return take_slice(planned, open_engine, budget_seconds=budget, report=report)

        def tell(step: Step, number: int) -> None:
            if not options.quiet:
                line = step_text(candidates[step.candidate].point, step.run, step.problem)
                narrate(f"run {number} of at most {max_runs}, {line}")

        doing = Doing(
            plan=lambda candidate: _planned(candidate, subject, options),
            take=take,
            keep=store,
            shortage=lambda planned: shortage(planned, options.resolve),
        )
        speed = unrefined(subject.header, subject.machine, subject.engine, workload)
        runner = Runner(candidates, speed, Before(evidence, others), journal, doing)
        known = runner.known()
        tuned = tune(candidates, runner.expect, runner.run, max_runs=max_runs, noise=noise, known=known, tell=tell)
        return tuned, runner


def _planned(candidate: Candidate, subject: Subject, options: BenchOptions) -> Subject:
    """The candidate's own plan, with the memory that is free now.

    Raises:
        DoesNotFitError: it does not fit the magnitude or the memory, or cannot run as it is written.
    """
    from magnitude_tune.cli.bench_one import subject_of
    from magnitude_tune.errors import DoesNotFitError
    from magnitude_tune.pipeline.resolve import resolve_request
    from magnitude_tune.report.resolution_json import settings_document

    if not candidate.changes:
        return subject
    wanted = settings_document(candidate.settings)
    given = {name for name, _ in options.resolve.flags}
    pins = tuple((name, _written(wanted[name])) for name in _AXES if name not in given)
    # Plans may not move while candidates are compared, so what is stored meanwhile is no evidence for them.
    resolved = resolve_request(options.resolve._replace(flags=(*options.resolve.flags, *pins), history=False))
    planned = settings_document(resolved.resolution.settings)
    off = [f"{name}={planned[name]}" for name in _AXES if planned[name] != wanted[name]]
    if off:
        raise DoesNotFitError(f"would run with {', '.join(off)}")
    return subject_of(resolved)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _key(subject: Subject, options: BenchOptions) -> str:
    from magnitude_tune import __version__
    from magnitude_tune.bench.journal import grid_key

    return grid_key(
        {
            "tune": __version__,
            "machine": subject.machine.machine_hash,
            "model": subject.header.content_hash,
            "engine": [subject.engine.name, subject.engine.build, subject.engine.path],
            "workload": list(subject.resolution.workload),
            "rpc": list(subject.rpc),
            "budget_seconds": options.budget_seconds,
            "flags": [list(flag) for flag in options.resolve.flags],
        }
    )


def _show(tuned: Tuned, subject: Subject, runner: Runner, options: BenchOptions, max_runs: int) -> None:
    from magnitude_tune.cli.console import emit, emit_json

    if options.json_output:
        from magnitude_tune.report.tune_json import tune_document

        emit_json(tune_document(tuned, subject, runner.results, max_runs=max_runs), options.output)
    else:
        from magnitude_tune.report.tune_text import tune_text

        emit(tune_text(tuned, subject), options.output)
