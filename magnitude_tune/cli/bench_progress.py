"""Shows how far a bench is: a bar on a terminal, otherwise a line now and then. On stderr."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from magnitude_tune.bench.values import Progress
from magnitude_tune.cli.console import colour, narrate
from magnitude_tune.units import format_rate

if TYPE_CHECKING:
    import rich.progress

__all__ = ["BarProgress", "LineProgress", "QuietProgress", "progress_for", "progress_text"]

_LINE_EVERY_SECONDS: Final = 10.0


def progress_for(*, quiet: bool, verbose: bool) -> QuietProgress | LineProgress | BarProgress:
    """What suits stderr: nothing if quiet, a line for each sample if verbose, a bar on a terminal, or some lines."""
    if quiet:
        return QuietProgress()
    if verbose or not sys.stderr.isatty():
        return LineProgress(each=verbose)
    return BarProgress()


def progress_text(progress: Progress) -> str:
    """The state of a run in a few words."""
    parts: list[str] = [progress.stage]
    if progress.n_samples:
        parts.append(f"{progress.n_samples} samples")
    if progress.pp is not None:
        parts.append(f"pp {format_rate(progress.pp)}")
    if progress.tg is not None:
        parts.append(f"tg {format_rate(progress.tg)}")
    if progress.remaining_seconds is not None:
        parts.append(f"at most {_minutes(progress.remaining_seconds)} left")
    return (f"{progress.title}: " if progress.title else "") + ", ".join(parts)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class QuietProgress:
    """Shows nothing."""

    def __call__(self, progress: Progress) -> None:
        """Take no notice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LineProgress:
    """Says a line when a stage begins, and every ten seconds, also while one sample takes longer.

    Args:
        each: say one for each sample too.
        every_seconds: how often.
    """

    def __init__(self, *, each: bool = False, every_seconds: float = _LINE_EVERY_SECONDS) -> None:
        self._each = each
        self._every_seconds = every_seconds
        self._latest: Progress | None = None
        self._began = time.monotonic()
        self._over = threading.Event()
        self._teller = threading.Thread(target=self._tell, daemon=True)

    def __call__(self, progress: Progress) -> None:
        """Take the state; it is told when it is time."""
        latest = self._latest
        new_stage = latest is None or (latest.stage, latest.title) != (progress.stage, progress.title)
        self._latest = progress
        if new_stage or self._each:
            narrate(f"bench: {progress_text(progress)}")

    def __enter__(self) -> Self:
        self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._teller.join()

    def _tell(self) -> None:
        while not self._over.wait(self._every_seconds):
            if self._latest is not None:
                narrate(f"bench: {progress_text(self._latest)}, {time.monotonic() - self._began:.0f} s")


class BarProgress:
    """A bar over the budget, with the medians so far."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True, no_color=not colour(stream_is_terminal=True)),
            transient=True,
        )
        self._task: rich.progress.TaskID = self._bar.add_task("starting", total=None)

    def __call__(self, progress: Progress) -> None:
        """Move the bar: before measuring nobody knows how long it takes."""
        measuring = progress.stage == "measuring"
        self._bar.update(
            self._task,
            description=progress_text(progress),
            total=progress.budget_seconds if measuring else None,
            completed=min(progress.elapsed_seconds, progress.budget_seconds) if measuring else 0,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
