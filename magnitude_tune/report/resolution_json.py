"""A resolution as one JSON object, in base units."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Final

from magnitude_tune.findings import Finding
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.report.terms import term_document
from magnitude_tune.request import Companions, Settings
from magnitude_tune.resolver.values import CurvePoint, PoolUse
from magnitude_tune.throughput.values import Interval, Speed

__all__ = [
    "SCHEMA_VERSION",
    "companions_document",
    "finding_documents",
    "interval_document",
    "resolution_document",
    "settings_document",
]

SCHEMA_VERSION: Final = 1


def resolution_document(resolved: Resolved) -> dict[str, object]:
    """The object that `resolve --json` prints."""
    resolution = resolved.resolution
    engine = resolved.engine
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            "path": resolved.header.path,
            "name": resolved.header.name,
            "architecture": resolved.header.architecture,
            "hash": resolved.header.content_hash,
        },
        "machine": {"hash": resolved.machine.machine_hash, "hostname": resolved.machine.hostname},
        "engine": None if engine is None else {"name": engine.name, "build": engine.build, "path": engine.path},
        "settings": settings_document(resolution.settings),
        "n_ctx_slot": resolution.settings.n_ctx_slot,
        "companions": companions_document(resolved.companions),
        "reasons": {reason.setting: reason.text for reason in resolution.reasons},
        "magnitude": resolution.magnitude._asdict(),
        "predicted": speed_document(resolution.predicted),
        "workload": resolution.workload._asdict(),
        "pools": [_pool(pool) for pool in resolution.pools],
        "terms": [term_document(term) for term in resolution.footprint.terms],
        "given_up": list(resolution.given_up),
        "findings": finding_documents(resolution.findings),
        "log": list(resolution.log_lines),
        "candidates": resolution.n_candidates,
        "curve": [_point(point) for point in resolution.curve],
    }


def settings_document(settings: Settings) -> dict[str, object]:
    """Settings by llama.cpp's names; switches that llama.cpp writes as words are words."""
    document = dataclasses.asdict(settings)
    document["flash_attn"] = "on" if settings.flash_attn else "off"
    document["devices"] = list(settings.devices)
    document["tensor_split"] = list(settings.tensor_split)
    return document


def companions_document(companions: Companions) -> dict[str, object] | None:
    """What runs beside the model, by llama.cpp's names; None where nothing does."""
    return companions._asdict() if companions.names else None


def speed_document(speed: Speed) -> dict[str, object]:
    """Every predicted figure with its interval."""
    names = ("pp", "tg", "ttft_seconds", "turn_seconds", "ready_seconds")
    return {name: interval_document(getattr(speed, name)) for name in names} | {"runs_here": speed.n_runs}


def interval_document(interval: Interval) -> dict[str, object]:
    """`{value, low, high, basis}`."""
    return interval._asdict()


def finding_documents(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """Findings with their place taken apart; `file` holds an option's or a variable's name where there is no file."""
    return [
        {
            "id": finding.rule.id,
            "severity": str(finding.rule.severity),
            "message": finding.message,
            "setting": finding.setting,
            "file": finding.place.label if finding.place else None,
            "line": finding.place.line if finding.place else None,
            "column": finding.place.column if finding.place else None,
            "fix": finding.fix,
        }
        for finding in findings
    ]


def _pool(pool: PoolUse) -> dict[str, object]:
    return pool._asdict()


def _point(point: CurvePoint) -> dict[str, object]:
    return {
        "magnitude": point.magnitude if math.isfinite(point.magnitude) else None,
        "settings": None if point.settings is None else settings_document(point.settings),
        "turn_seconds": point.turn_seconds,
        "pp": point.pp,
        "tg": point.tg,
        "reserved_bytes": dict(point.reserved_bytes),
    }
