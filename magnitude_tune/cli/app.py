"""The console script: commands, error texts, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from magnitude_tune.cli.console import fail
from magnitude_tune.errors import MagnitudeTuneError, UsageError

__all__ = ["COMMANDS", "build", "main"]

EPILOG = (
    "Exit codes: 0 ok, 2 usage, 3 bad input file, 4 does not fit, 5 engine failed, 6 an optional part is missing, "
    "70 a bug of ours, 130 interrupted."
)

COMMANDS = ("resolve", "bench", "fingerprint", "inspect", "evaluate", "train", "demo")
"""In the order of average work; each is a module of this room."""


def build(names: Iterable[str]) -> typer.Typer:
    """The program with these commands."""
    app = typer.Typer(
        name="magnitude-tune",
        help="One dial for how hard a local GGUF model may use this machine.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in names:
        import_module(f"magnitude_tune.cli.{name}").register(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from magnitude_tune import __version__

        typer.echo(f"magnitude-tune {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """One dial for how hard a local GGUF model may use this machine."""


def main() -> None:
    """Run the command line; every error of ours becomes its text and its exit code."""
    # Building options takes time: where a command is named, only that one is built.
    named = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        build((named,) if named in COMMANDS else COMMANDS)()
    except MagnitudeTuneError as error:
        fail(error)
    except BrokenPipeError:
        # The reader has gone; leave without a second error from the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if os.environ.get("MAGNITUDE_TUNE_TRACEBACK"):
            raise
        where = str(error.filename) if error.filename else None
        fail(UsageError(f"the system refuses: {error.strerror or error}", where=where, hint="check paths and options"))
    except Exception as error:
        if os.environ.get("MAGNITUDE_TUNE_TRACEBACK"):
            raise
        fail(
            MagnitudeTuneError(
                f"a bug of ours: {type(error).__name__}: {error}",
                hint="set MAGNITUDE_TUNE_TRACEBACK=1, run it again and report what it prints",
            )
        )
