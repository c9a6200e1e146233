"""Runs the real console script as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MACHINES = Path(__file__).parent.parent / "machines"


def run(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`magnitude-tune` with these arguments; a traceback fails the test whatever the exit code."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "magnitude_tune", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **(env or {})},
        cwd=cwd,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
