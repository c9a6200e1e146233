"""`magnitude-tune inspect`: what a model file says, without loading it."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude_tune.cli.options import JSON, OUTPUT

EPILOG = """Examples:

magnitude-tune inspect model.gguf

magnitude-tune inspect model-00002-of-00004.gguf --json -o facts.json

Exit codes: 0 ok, 2 usage, 3 not a GGUF file, damaged, truncated, or a part missing."""

MODEL = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, any part of a split one, or a folder with one model.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(inspect)


def inspect(model: MODEL, *, json_output: JSON = False, output: OUTPUT = None) -> None:
    """Show what a model file says: size, types, attention, experts, and what is odd. Reads the header only."""
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.header.read import read_model, require_complete

    header = read_model(model)
    require_complete(header)
    if json_output:
        from magnitude_tune.report.inspect_json import inspect_document

        emit_json(inspect_document(header), output)
    else:
        from magnitude_tune.report.inspect_text import inspect_page

        emit(inspect_page(header), output)
