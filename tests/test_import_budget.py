"""What is imported on the way: heavy libraries stay off the path of the quick commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("sklearn", "scipy", "numpy", "pandas", "matplotlib", "llama_cpp", "requests", "gguf", "cpuinfo")
RUN = """
import sys
sys.argv[0] = "magnitude-tune"
from magnitude_tune.cli.app import main
try:
    main()
finally:
    print("loaded:", *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules loaded when a command has run."""
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("loaded:")[2].split())


def test_help_loads_nothing_heavy() -> None:
    """`--help` imports none of the heavy libraries."""
    assert not loaded_by("--help").intersection(HEAVY)


@pytest.mark.engine
def test_resolve_loads_nothing_heavy(real_model: Path) -> None:
    """`resolve` of the real model imports none of the heavy libraries, nor the page drawing ones, cold or warm."""
    for _ in range(2):
        loaded = loaded_by("resolve", str(real_model))
        assert not loaded.intersection(HEAVY)
        assert "psutil" not in loaded or sys.platform != "linux"


def test_resolve_for_a_stored_machine_loads_nothing_heavy(real_model: Path) -> None:
    """Planning for another machine imports none of the heavy libraries either."""
    machine = Path(__file__).parent / "machines" / "rtx4090-64g.json"
    assert not loaded_by("resolve", str(real_model), "--machine", str(machine)).intersection(HEAVY)
