"""Rows of the store as evidence for the speed model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final

from magnitude_tune.request import Settings
from magnitude_tune.throughput.values import Evidence

__all__ = ["evidence_of"]

_KNOWN: Final = {field.name for field in fields(Settings)}
_REQUIRED: Final = {field.name for field in fields(Settings) if field.default is MISSING}


def evidence_of(rows: Sequence[Mapping[str, object]], engine_build: str) -> Evidence | None:
    """The stable rows of one run as evidence; None where the settings are not ones this version understands.

    Args:
        engine_build: today's; a run of another one says so.
    """
    rates: dict[str, tuple[float, float, float]] = {}
    settings: Settings | None = None
    ready: float | None = None
    for row in rows:
        settings = _settings(row["settings"])
        ready = _positive(row["ready_seconds"])
        median, low, high = (_positive(row[name]) for name in ("median_ts", "low_ts", "high_ts"))
        if median and low and high:
            rates["tg" if row["n_gen"] else "pp"] = (median, low, high)
    if settings is None or not rates:
        return None
    return Evidence(
        settings=settings,
        pp=rates.get("pp"),
        tg=rates.get("tg"),
        ready_seconds=ready,
        depth=_depth(rows[0]["n_depth"]),
        same_build=rows[0]["engine_build"] == engine_build,
    )


def _settings(text: object) -> Settings | None:
    """Settings as stored; None where they are not of this version's shape.

    What an earlier version did not know had the value that is the default now.
    """
    try:
        stored: dict[str, Any] = json.loads(str(text))
        if not isinstance(stored, dict) or not _REQUIRED <= stored.keys() <= _KNOWN:
            return None
        values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
        return Settings(**values)
    except (ValueError, TypeError, RecursionError):
        return None


def _depth(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
