"""Where the console script begins."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Most commands live for a moment, in which there is nothing to collect: looking for garbage while modules load
    would cost a fifth of it. `bench`, which lives longer, turns it on again.
    """
    gc.disable()
    try:
        from magnitude_tune.cli.app import main as run

        run()
    except KeyboardInterrupt:
        # Pressed while modules load, before any command is there to end well.
        sys.exit(130)
