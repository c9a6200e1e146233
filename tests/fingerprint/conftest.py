"""Machines made of files, and commands that answer from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from magnitude_tune.processes import Completed

GIB = 1 << 30

Grow = Callable[[Mapping[str, str | bytes]], Path]


@pytest.fixture
def grow(tmp_path: Path) -> Grow:
    """Write files below a new root; a `/proc/meminfo` of 64 GiB with 50 GiB available unless it is given."""

    def make(files: Mapping[str, str | bytes]) -> Path:
        root = tmp_path / "machine"
        kib = 1 << 20
        meminfo = f"MemTotal: {64 * kib} kB\nMemFree: {10 * kib} kB\nMemAvailable: {50 * kib} kB\n"
        for name, content in {"proc/meminfo": meminfo, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return make


class Answers:
    """A command runner that gives one answer, and remembers what it was asked."""

    def __init__(self, stdout: str = "", returncode: int | None = 0, stderr: str = "") -> None:
        self.completed = Completed(returncode, stdout, stderr)
        self.asked: list[tuple[tuple[str, ...], float]] = []

    def __call__(self, argv: Sequence[str], timeout_seconds: float) -> Completed:
        self.asked.append((tuple(argv), timeout_seconds))
        return self.completed


@pytest.fixture
def answers() -> type[Answers]:
    """The class of scripted command runners."""
    return Answers
