"""How every measurement ends: kept, shown even where it could not be kept, and with the exit code of its ending."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from magnitude_tune.bench.values import Ending
    from magnitude_tune.observations.values import Measurement

__all__ = ["INTERRUPTED", "interruptible", "keep_and_show", "leave"]

INTERRUPTED: Final = 130


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt before there is anything to keep ends with 130."""
    try:
        yield
    except KeyboardInterrupt:
        from magnitude_tune.cli.console import narrate

        narrate("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def keep_and_show(measurement: Measurement, ending: Ending | None, show: Callable[[str | None], None]) -> None:
    """Store a measurement and show it with its id in the store.

    Raises:
        UsageError: the store cannot be written; after the result was shown, which is worth more than the store.
    """
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.errors import UsageError
    from magnitude_tune.observations.store import store

    stored, problem = None, None
    try:
        stored = store(measurement)
    except UsageError as error:
        problem = error
    show(stored)
    if problem is not None:
        raise problem
    if ending is not None:
        narrate(f"{ending.kind}: what was measured until then is shown" + (" and kept" if stored else ""))


def leave(ending: Ending | None) -> None:
    """Leave with 130 after an interrupt; a run that came to its end goes on.

    Raises:
        EngineError: the engine crashed.
    """
    if ending is None:
        return
    if ending.kind == "interrupted":
        raise typer.Exit(INTERRUPTED)
    from magnitude_tune.errors import EngineError

    raise EngineError(ending.what, hint=ending.hint)
