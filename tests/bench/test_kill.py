"""Fifty kills at random moments of a grid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked, so that fifty of them start quickly")
def test_fifty_kills_at_random_moments_of_a_grid_lose_nothing_finished() -> None:
    """What the journal or the store said it had kept is there after each SIGKILL, once, and is not measured again."""
    done = subprocess.run(
        [sys.executable, TESTS / "bench" / "killed_grid.py", "50", "20240303"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == 50
    assert result["runs"] == 10 * result["grids"] >= 10
    assert result["lost"] == []
    assert result["twice"] == []
