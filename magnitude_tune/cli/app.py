"""The console script: commands, error texts, exit codes."""

from __future__ import annotations

import os
import sys

import typer

from magnitude_tune.cli import bench, demo, fingerprint, inspect, resolve
from magnitude_tune.cli.console import fail
from magnitude_tune.errors import MagnitudeTuneError

__all__ = ["app", "main"]

EPILOG = (
    "Exit codes: 0 ok, 1 findings at or above the threshold, 2 usage, 3 bad input file, 4 does not fit, "
    "5 engine failed, 6 an optional part is missing, 70 a bug of ours, 130 interrupted."
)

app = typer.Typer(
    name="magnitude-tune",
    help="One dial for how hard a local GGUF model may use this machine.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (resolve, bench, fingerprint, inspect, demo):
    command.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from magnitude_tune import __version__

        typer.echo(f"magnitude-tune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """One dial for how hard a local GGUF model may use this machine."""


def main() -> None:
    """Run the command line; every error of ours becomes its text and its exit code."""
    try:
        app()
    except MagnitudeTuneError as error:
        fail(error)
    except BrokenPipeError:
        # The reader has gone; leave without a second error from the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("MAGNITUDE_TUNE_TRACEBACK"):
            raise
        fail(
            MagnitudeTuneError(
                f"a bug of ours: {type(error).__name__}: {error}",
                hint="set MAGNITUDE_TUNE_TRACEBACK=1, run it again and report what it prints",
            )
        )
