"""`magnitude-tune fingerprint`: which machine this is, each fact with its source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from magnitude_tune.cli.options import ENGINE_PATH, JSON, MACHINE, OUTPUT, RPC, SYSROOT

EPILOG = """Examples:

magnitude-tune fingerprint

magnitude-tune fingerprint --json -o machine.json

magnitude-tune fingerprint --machine rtx4090-64g

magnitude-tune fingerprint --model model.gguf

Exit codes: 0 ok, 2 usage or no such machine, 3 a machine or model file that cannot be read."""

_MODEL = Annotated[
    str | None, typer.Option("--model", metavar="FILE", help="Also measure how fast this model is read from its disk.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(fingerprint)


def fingerprint(
    *,
    machine: MACHINE = None,
    sysroot: SYSROOT = None,
    engine_path: ENGINE_PATH = None,
    rpc: RPC = None,
    model: _MODEL = None,
    json_output: JSON = False,
    output: OUTPUT = None,
) -> None:
    """Show this machine: cores, memory, accelerators, engines. Memory bandwidth is measured the first time."""
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.pipeline.machine import find_machine

    found = find_machine(
        machine=machine,
        sysroot=sysroot,
        engine_path=engine_path,
        rpc=tuple(rpc or ()),
        in_depth=True,
        model=None if model is None else _readable(model),
        measure_disk=model is not None,
    )
    if json_output:
        from magnitude_tune.report.fingerprint_json import fingerprint_document

        emit_json(fingerprint_document(found), output)
    else:
        from magnitude_tune.report.fingerprint_text import fingerprint_page

        emit(fingerprint_page(found), output)


def _readable(model: str) -> Path:
    from magnitude_tune.errors import InputFileError

    path = Path(model)
    if path.is_file() and os.access(path, os.R_OK):
        return path
    reason = "it is no file that you may read" if path.exists() else "no such file"
    raise InputFileError(f"cannot read this model: {reason}", where=model, hint="name a model file on this machine")
