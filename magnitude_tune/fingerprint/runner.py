"""How probes run commands: a seam, so that tests give stored answers instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnitude_tune.processes import Completed

__all__ = ["CommandRunner", "run_command"]

CommandRunner = Callable[[Sequence[str], float], "Completed"]
"""Runs an argument list within a number of seconds."""


def run_command(argv: Sequence[str], timeout_seconds: float) -> Completed:
    """Run a command of this machine."""
    from magnitude_tune.processes import run

    return run(argv, timeout_seconds=timeout_seconds)
