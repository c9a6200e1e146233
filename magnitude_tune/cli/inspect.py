"""`magnitude-tune inspect`: what a model file says, and what memory given settings take, without loading it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magnitude_tune.cli.options import (
    ENGINE_BUILD,
    ENGINE_PATH,
    JSON,
    MACHINE,
    MEMORY_SETTINGS,
    OUTPUT,
    RPC,
    SYSROOT,
    SettingsCommand,
    with_settings,
)

EPILOG = """Examples:

magnitude-tune inspect model.gguf

magnitude-tune inspect model-00002-of-00004.gguf --json -o facts.json

magnitude-tune inspect model.gguf --n-ctx 32768 --n-gpu-layers all --type-k q8_0 --machine rtx4090-64g

With any setting the memory of exactly these settings is shown, term by term, and whether it fits. No engine is needed.
What is not given is n_ctx min(8192, trained) (0 is the trained one), n_gpu_layers 0, n_batch 2048, n_ubatch 512,
n_parallel 1, f16, mmap, flash attention and repacking on, no prompt cache. --repack is on, --no-repack is off, and so
for --kv-unified. llama.cpp's own names of these options are taken too.

Exit codes: 0 ok, 2 usage, 3 not a GGUF file, damaged, truncated, or a part missing."""

MODEL = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, any part of a split one, or a folder with one model.")
]
DEVICES = Annotated[
    str | None,
    typer.Option("--devices", metavar="NAMES", help="Accelerators to use, for example CUDA0,CUDA1; none for none."),
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG, cls=SettingsCommand)(
        with_settings(inspect, MEMORY_SETTINGS, "Settings to price (exactly these)")
    )


def inspect(
    model: MODEL,
    *,
    json_output: JSON = False,
    output: OUTPUT = None,
    devices: DEVICES = None,
    machine: MACHINE = None,
    sysroot: SYSROOT = None,
    engine_path: ENGINE_PATH = None,
    engine_build: ENGINE_BUILD = None,
    rpc: RPC = None,
    flags: tuple[tuple[str, str], ...] = (),
) -> None:
    """Show what a model's header says: size, types, attention, experts. With settings, what memory these take."""
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.header.read import read_model, require_complete

    header = read_model(model)
    require_complete(header)
    asked: dict[str, Any] = {
        "flags": flags,
        "devices": devices,
        "machine": machine,
        "sysroot": sysroot,
        "engine_path": engine_path,
        "engine_build": engine_build,
        "rpc": tuple(rpc or ()),
    }
    planned = None
    if any(asked.values()):
        from magnitude_tune.pipeline.inspection import InspectOptions, plan_as_written

        planned = plan_as_written(header, InspectOptions(**asked))
    if json_output:
        from magnitude_tune.report.inspect_json import inspect_document, planned_document

        emit_json(inspect_document(header) | (planned_document(planned) if planned else {}), output)
    else:
        from magnitude_tune.report.inspect_text import inspect_page, planned_page

        emit(inspect_page(header) + ("\n\n" + planned_page(planned) if planned else ""), output)
