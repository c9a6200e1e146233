"""`magnitude-tune bench`: launch the resolved plan, measure it, show predicted beside measured."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from magnitude_tune.cli.options import ENGINE_PATH, JSON, MACHINE, OUTPUT, QUIET, RPC, SYSROOT, VERBOSE, with_settings

if TYPE_CHECKING:
    from magnitude_tune.bench.run import Opener
    from magnitude_tune.bench.values import BenchResult
    from magnitude_tune.engines.sessions import Opened
    from magnitude_tune.engines.values import Launch
    from magnitude_tune.fingerprint.values import EngineFacts
    from magnitude_tune.pipeline.resolve import Resolved, ResolveOptions

__all__ = ["BenchOptions", "bench_and_report", "register"]

INTERRUPTED = 130

EPILOG = """Examples:

magnitude-tune bench agent.yaml

magnitude-tune bench model.gguf --magnitude 4.0 --budget 60 --json

magnitude-tune bench --history model.gguf; magnitude-tune bench --compare last~1 last

Exit codes: 0 ok (a broken promise included), 2 usage, 3 bad config or model file, 4 does not fit, 5 engine failed,
6 no engine is installed, 130 interrupted (what was measured is shown and kept)."""

WHAT = Annotated[
    str | None,
    typer.Argument(metavar="AGENT.YAML|MODEL", help="An agent's config, or a GGUF file.", show_default=False),
]
BUDGET = Annotated[
    float, typer.Option("--budget", min=1, max=86400, metavar="SECONDS", help="Time for warming up and measuring.")
]
_STORE = "Measurements that are stored (nothing is measured)"
HISTORY = Annotated[
    bool, typer.Option("--history", help="List stored runs, of one model where it is named.", rich_help_panel=_STORE)
]
COMPARE = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--compare",
        metavar="A B",
        help="Compare two stored runs: ids or their starts, last, last~1.",
        rich_help_panel=_STORE,
        show_default=False,
    ),
]
EXPORT = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="csv|json|sqlite", help="Write stored runs as llama-bench does.", rich_help_panel=_STORE
    ),
]
IMPORT = Annotated[
    str | None,
    typer.Option(
        "--import", metavar="FILE", help="Take in what llama-bench wrote; - is stdin.", rich_help_panel=_STORE
    ),
]


class BenchOptions(NamedTuple):
    """What to measure and how to show it. `verbose` says a line for each sample."""

    resolve: ResolveOptions
    budget_seconds: float
    json_output: bool = False
    output: str | None = None
    quiet: bool = False
    verbose: bool = False


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(with_settings(bench))


def bench(
    what: WHAT = None,
    *,
    budget: BUDGET = 120.0,
    json_output: JSON = False,
    output: OUTPUT = None,
    machine: MACHINE = None,
    sysroot: SYSROOT = None,
    engine_path: ENGINE_PATH = None,
    rpc: RPC = None,
    quiet: QUIET = False,
    verbose: VERBOSE = False,
    history: HISTORY = False,
    compare: COMPARE = None,
    export: EXPORT = None,
    import_file: IMPORT = None,
    flags: tuple[tuple[str, str], ...] = (),
) -> None:
    """Resolve, launch the engine, measure it, and show predicted beside measured."""
    from magnitude_tune.cli.bench_store import StoreQuestion, answer_from_store
    from magnitude_tune.errors import UsageError
    from magnitude_tune.pipeline.resolve import ResolveOptions

    question = StoreQuestion(history, compare, export, import_file, what, flags, json_output, output)
    if question.asked:
        answer_from_store(question)
        return
    if what is None:
        raise UsageError("nothing to measure is named", where="bench", hint="give an agent's config or a GGUF file")

    for option, value in (("--machine", machine), ("--sysroot", sysroot)):
        if value is not None:
            hint = f"leave {option} out, or use resolve to plan for another machine"
            raise UsageError("only this machine can be measured", where=option, hint=hint)
    if math.isnan(budget):
        raise UsageError("the budget must be a number of seconds", where="--budget")
    options = ResolveOptions(what=what, flags=flags, engine_path=engine_path, rpc=tuple(rpc or ()))
    bench_and_report(
        BenchOptions(
            resolve=options,
            budget_seconds=budget,
            json_output=json_output,
            output=output,
            quiet=quiet,
            verbose=verbose,
        )
    )


def bench_and_report(options: BenchOptions) -> None:
    """Measure, show the result, keep it; an interrupt shows and keeps what there is and ends with 130.

    Raises:
        MissingPartError: no engine is installed.
        MagnitudeTuneError: whatever resolving or the engine has to say; a store that cannot be written, after the
            result was shown.
    """
    gc.enable()
    try:
        result = _measure_and_show(options)
    except KeyboardInterrupt:
        from magnitude_tune.cli.console import narrate

        narrate("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    if result.ending is not None and result.ending.kind == "crashed":
        from magnitude_tune.errors import EngineError

        raise EngineError(result.ending.what, hint=result.ending.hint)
    if not result.measurement.complete:
        raise typer.Exit(INTERRUPTED)


def _measure_and_show(options: BenchOptions) -> BenchResult:
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.errors import UsageError
    from magnitude_tune.observations.store import store

    resolved, result = _measured(options)
    stored, problem = None, None
    try:
        stored = store(result.measurement)
    except UsageError as error:
        # The result is worth more than the store: show it first.
        problem = error
    _show(result, resolved, options, stored)
    if problem is not None:
        raise problem
    if result.ending is not None:
        narrate(f"{result.ending.kind}: what was measured until then is shown" + (" and kept" if stored else ""))
    return result


def _measured(options: BenchOptions) -> tuple[Resolved, BenchResult]:
    """Resolve and measure; where the plan's repacked weights crash, resolve again without them and measure that."""
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.engines.sessions import open_or_without_repack

    resolved = _announced(options)
    if not _still_fits(resolved, options.resolve):
        resolved = _announced(options)
    try:
        return resolved, _run(resolved, options, _open_as_planned)
    except _RepackingCrashes as crash:
        narrate(f"WARNING: with repacked weights the engine ended ({crash}): planning again without them")
    # Now it is remembered, so the new plan does without; where repacking is pinned, the session does.
    resolved = _announced(options)
    return resolved, _run(resolved, options, open_or_without_repack)


class _RepackingCrashes(Exception):  # noqa: N818
    """The plan cannot run as it is: the prediction to hold a measurement against would be another plan's."""


def _open_as_planned(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
    from magnitude_tune.engines.sessions import open_or_without_repack

    opened = open_or_without_repack(engine, launch, machine_hash)
    if opened.repack_crash is not None:
        opened.session.close()
        raise _RepackingCrashes(opened.repack_crash.kind.value)
    return opened


def _announced(options: BenchOptions) -> Resolved:
    """Resolve and say what will run; overcommit is said even where everything else is quiet."""
    from magnitude_tune.bench.disturbance import busy_cores
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.findings import Rule
    from magnitude_tune.pipeline.resolve import resolve_request

    # The engine starts at once, so what others do to the cores now counts.
    busy = busy_cores(options.resolve.rpc)
    resolved = resolve_request(options.resolve._replace(busy_cores=busy))
    if not options.quiet:
        for line in resolved.resolution.log_lines:
            narrate(line)
    for finding in resolved.resolution.findings:
        if finding.rule is Rule.OVERCOMMIT:
            narrate(f"WARNING: {finding.message}")
    return resolved


def _still_fits(resolved: Resolved, options: ResolveOptions) -> bool:
    """Whether the plan fits the memory that is free right before the launch; says so where it does not."""
    from magnitude_tune.bench.launch import shortfalls
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.pipeline.machine import find_machine
    from magnitude_tune.units import format_bytes

    now = find_machine(engine_path=options.engine_path, rpc=options.rpc)
    short = shortfalls(resolved.resolution, now.pools)
    for use in short:
        narrate(
            f"WARNING: {use.name} has {format_bytes(use.available_bytes)} left, the plan needs "
            f"{format_bytes(use.reserved_bytes)}: planning again"
        )
    return not short


def _run(resolved: Resolved, options: BenchOptions, open_engine: Opener) -> BenchResult:
    from magnitude_tune.bench.run import Subject, run_bench
    from magnitude_tune.cli.bench_progress import progress_for
    from magnitude_tune.errors import MissingPartError
    from magnitude_tune.findings import Rule

    engine = resolved.engine
    if engine is None:
        unusable = (finding for finding in resolved.resolution.findings if finding.rule is Rule.ENGINE_UNUSABLE)
        raise MissingPartError(
            "; ".join(finding.message for finding in unusable) or "no engine was found here",
            hint="pip install 'magnitude-tune[engine]', or name a llama-server with --engine-path",
        )
    subject = Subject(
        resolution=resolved.resolution,
        header=resolved.header,
        engine=engine,
        machine=resolved.machine,
        rpc=resolved.rpc,
    )
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
