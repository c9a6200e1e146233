"""Stored runs, and two of them compared, as JSON objects in base units."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from magnitude_tune.observations.compare import Comparison, Difference
from magnitude_tune.observations.history import StoredRun, StoredTest
from magnitude_tune.observations.imports import Imported
from magnitude_tune.report.resolution_json import SCHEMA_VERSION

__all__ = ["comparison_document", "history_document", "import_document"]


def history_document(runs: Iterable[StoredRun]) -> dict[str, object]:
    """The object that `bench --history --json` prints: every run, newest first."""
    return {"schema_version": SCHEMA_VERSION, "runs": [_run(run) for run in runs]}


def comparison_document(comparison: Comparison) -> dict[str, object]:
    """The object that `bench --compare A B --json` prints: both runs, and B over A for each test."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "settings": {name: {"a": a, "b": b} for name, a, b in comparison.settings},
        "tests": [_difference(difference) for difference in comparison.tests],
        "only": list(comparison.only),
    }


def import_document(imported: Imported) -> dict[str, object]:
    """The object that `bench --import FILE --json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": list(imported.run_ids),
        "rows": imported.n_rows,
        "runs_known": imported.n_known,
        "left_out": [{"reason": reason, "rows": n} for reason, n in imported.left_out],
    }


def _run(run: StoredRun) -> dict[str, object]:
    watched = bool(run.disturbance)
    return {
        "id": run.run_id,
        "origin": run.origin,
        "started_at": run.started_at,
        "machine": {"hash": run.machine_hash, "cpu": run.cpu_info, "gpu": run.gpu_info},
        "model": {"hash": run.model_hash, "file": run.model_filename, "type": run.model_type},
        "engine": {"name": run.engine, "build": run.engine_build},
        "settings": dict(run.settings),
        "magnitude": {"requested": run.magnitude_requested, "executed": run.magnitude_executed},
        "tests": [_test(test) for test in run.tests],
        "complete": run.complete,
        "disturbance": {**run.disturbance, "clean": run.clean} if watched else None,
        "ready_seconds": run.ready_seconds,
        "peak_bytes": run.peak_bytes,
    }


def _test(test: StoredTest) -> dict[str, object]:
    summary = test.summary
    return {
        "test": str(test.key),
        **test.key._asdict(),
        "value": summary.median,
        "low": summary.low,
        "high": summary.high,
        "basis": "measured",
        "n": summary.n,
        "variation": summary.variation,
        "stable": test.stable,
        "left_out": test.n_left_out,
        "samples": [dataclasses.asdict(sample) for sample in test.samples],
    }


def _difference(difference: Difference) -> dict[str, object]:
    return {
        "test": str(difference.key),
        **difference.key._asdict(),
        "a": difference.a.summary.median,
        "b": difference.b.summary.median,
        "ratio": {"value": difference.ratio, "low": difference.low, "high": difference.high, "basis": "measured"},
        "noise": difference.noise,
        "verdict": difference.verdict,
        "reason": difference.reason,
    }
