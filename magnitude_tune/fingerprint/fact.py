"""A figure is worth what its source is worth."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Fact"]


class Fact(NamedTuple):
    """A number and where it comes from: `measured 2026-11-30`, `profile`, `device table`, `guessed`."""

    value: float
    source: str
