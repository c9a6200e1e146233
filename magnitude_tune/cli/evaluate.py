"""`magnitude-tune evaluate`: how well the shipped coefficients predict a table of measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude_tune.cli.options import JSON, OUTPUT

EPILOG = """Examples:

magnitude-tune evaluate models/training/benchmarks.csv --devices models/training/devices.csv

magnitude-tune evaluate mine.csv --devices devices.csv --json

Exit codes: 0 ok, 2 usage, 3 a table that cannot be used."""

_TABLE = Annotated[str, typer.Argument(metavar="TABLE.csv", help="Benchmarks, a measurement a line.")]
_DEVICES = Annotated[str, typer.Option("--devices", metavar="DEVICES.csv", help="Data sheets of their devices.")]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(evaluate)


def evaluate(
    *,
    table: _TABLE,
    devices: _DEVICES,
    json_output: JSON = False,
    output: OUTPUT = None,
) -> None:
    """Score the shipped coefficients on a table: errors, intervals and orders by kind of measurement."""
    from pathlib import Path

    from magnitude_tune.cli.console import check_output, emit, emit_json
    from magnitude_tune.learning.evaluation import evaluate as score
    from magnitude_tune.learning.evaluation import evaluation_document
    from magnitude_tune.pipeline.resolve import shipped_coefficients

    check_output(output)
    scored = score(Path(table), Path(devices), shipped_coefficients())
    if json_output:
        emit_json(evaluation_document(scored), output)
    else:
        from magnitude_tune.report.evaluation_text import evaluation_page

        emit(evaluation_page(scored), output)
