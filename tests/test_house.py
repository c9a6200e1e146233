"""The house rules that tools can hold: style, types, arrows between rooms, what travels in the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports", "--no-cache"]],
    ids=["ruff check", "ruff format", "mypy --strict", "import-linter"],
)
def test_checks_are_clean(command: list[str]) -> None:
    """Style, strict types and the arrows between rooms hold on the whole tree."""
    program = SCRIPTS / command[0]
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed beside this Python")
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_carries_models_and_profiles(tmp_path: Path) -> None:
    """The shipped coefficients and machines are in the wheel, where the package looks for them."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    wheel = next(builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = zipfile.ZipFile(wheel).namelist()
    assert "magnitude_tune/_shipped/models/throughput.json" in names
    assert any(re.fullmatch(r"magnitude_tune/_shipped/profiles/.+\.json", name) for name in names)
    assert "magnitude_tune/py.typed" in names


def test_ci_runs_the_readme_command() -> None:
    """The command that CI runs is the one that the README names."""
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert "pytest" in command
    assert command in (ROOT / "README.md").read_text()


def test_modules_are_small_and_named_for_what_they_hold() -> None:
    """No module grows past 400 lines, and none is a drawer for odds and ends."""
    for path in (ROOT / "magnitude_tune").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path
        assert not re.search(r"util|helper|common|misc|manager", path.name), path
