"""A measured grid as one JSON object, in base units."""

from __future__ import annotations

import dataclasses

from magnitude_tune.bench.values import BenchResult
from magnitude_tune.report.bench_grid_rows import GridResult, GridRow, grid_rows, measured
from magnitude_tune.report.bench_json import rate_document, summary_document
from magnitude_tune.report.resolution_json import (
    SCHEMA_VERSION,
    finding_documents,
    interval_document,
    settings_document,
)

__all__ = ["grid_document"]


def grid_document(grid: GridResult) -> dict[str, object]:
    """The object that `bench --settings ... --json` prints; configurations come fastest turn first."""
    rows = grid_rows(grid.outcomes)
    subject = grid.outcomes[0].configuration.subject
    return {
        "schema_version": SCHEMA_VERSION,
        "axes": list(grid.axes),
        "model": {"path": subject.header.path, "hash": subject.header.content_hash},
        "machine": {"hostname": subject.machine.hostname, "hash": subject.machine.machine_hash},
        "engine": {"name": subject.engine.name, "build": subject.engine.build},
        "workload": subject.resolution.workload._asdict(),
        "complete": not grid.interrupted,
        "configurations": [_configuration(row) for row in rows],
        "left_out": [left._asdict() for left in grid.left_out],
    }


def _configuration(row: GridRow) -> dict[str, object]:
    outcome = row.outcome
    resolution = outcome.configuration.subject.resolution
    settings = outcome.result.measurement.settings if outcome.result else resolution.settings
    predicted = resolution.predicted
    return {
        "point": outcome.configuration.point,
        "settings": settings_document(settings),
        "status": outcome.status,
        "reason": outcome.reason,
        "standing": row.standing,
        "slower_by": row.slower_by,
        "rounds": outcome.rounds,
        "stored": outcome.stored,
        "predicted": {
            "pp": interval_document(predicted.pp),
            "tg": interval_document(predicted.tg),
            "turn_seconds": interval_document(predicted.turn_seconds),
        },
        "measured": _measured(outcome.result, row) if outcome.result else None,
    }


def _measured(result: BenchResult, row: GridRow) -> dict[str, object]:
    measurement = result.measurement
    turn = measured(row.outcome, "turn_seconds")
    return {
        "started_at": measurement.started_at,
        "pp": rate_document(result, "pp", measurement.pp_samples),
        "tg": rate_document(result, "tg", measurement.tg_samples),
        "turn_seconds": None if turn is None else summary_document(turn),
        "ready_seconds": measurement.ready_seconds,
        "disturbance": dataclasses.asdict(measurement.disturbance) | {"clean": measurement.disturbance.clean},
        "findings": finding_documents(result.findings),
    }
