"""`magnitude-tune demo`: the main job on a real model, from an example config to predicted beside measured."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude_tune.cli.options import ENGINE_PATH, JSON, OUTPUT, QUIET

EPILOG = """Examples:

magnitude-tune demo

magnitude-tune demo --folder /tmp/demo --json

Exit codes: 0 ok, 4 does not fit, 5 engine failed, 6 the model's or the engine's package is missing."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(demo)


def demo(
    *,
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="Where agent.yaml and the model go.")
    ] = "magnitude-tune-demo",
    budget: Annotated[float, typer.Option("--budget", min=1, metavar="SECONDS", help="Time to measure.")] = 60.0,
    engine_path: ENGINE_PATH = None,
    json_output: JSON = False,
    output: OUTPUT = None,
    quiet: QUIET = False,
) -> None:
    """Write an example agent.yaml, take the real 270M model, resolve, launch, bench, and resolve again."""
    from pathlib import Path

    from magnitude_tune.cli.bench import BenchOptions, bench_and_report
    from magnitude_tune.cli.console import emit, narrate
    from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request
    from magnitude_tune.report.resolution_text import resolution_text

    config = prepare(Path(folder))
    if not quiet:
        narrate(f"wrote {config}")
    options = ResolveOptions(what=str(config), engine_path=engine_path)
    before = resolve_request(options)
    if not json_output:
        emit(resolution_text(before, explain=False), output if output == "-" else None)
    bench_and_report(
        BenchOptions(resolve=options, budget_seconds=budget, json_output=json_output, output=output, quiet=quiet)
    )
    if not quiet and not json_output:
        after = resolve_request(options)
        narrate(f"the next resolve uses this measurement: {summary(after)}")
