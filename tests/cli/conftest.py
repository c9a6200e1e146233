"""Fixtures of the command line's tests."""

from __future__ import annotations

from cli.bench_command import bench, session

__all__ = ["bench", "session"]
