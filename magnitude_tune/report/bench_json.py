"""A bench as one JSON object, in base units."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from magnitude_tune.bench.findings import offloaded_bytes
from magnitude_tune.bench.values import BenchResult, Promise, Quantity
from magnitude_tune.engines.values import Sample
from magnitude_tune.observations.statistics import Summary
from magnitude_tune.observations.values import LeftOut, Measurement
from magnitude_tune.report.resolution_json import (
    SCHEMA_VERSION,
    finding_documents,
    interval_document,
    settings_document,
)

__all__ = ["bench_document", "rate_document", "summary_document"]


def bench_document(result: BenchResult, resolution: Mapping[str, object], stored: str | None) -> dict[str, object]:
    """The object that `bench --json` prints.

    Args:
        resolution: the object that `resolve --json` prints for the same request.
        stored: the run's id in the store of measurements; None where it could not be kept.
    """
    measurement = result.measurement
    return {
        "schema_version": SCHEMA_VERSION,
        "resolution": dict(resolution),
        "measured": _measured(result),
        "settings": settings_document(measurement.settings),
        "engine": {"name": measurement.engine, "build": measurement.engine_build},
        "started_at": measurement.started_at,
        "complete": measurement.complete,
        "ending": None if result.ending is None else result.ending._asdict(),
        "stored": stored,
        "disturbance": dataclasses.asdict(measurement.disturbance) | {"clean": measurement.disturbance.clean},
        "buffers": [dataclasses.asdict(line) for line in measurement.buffers],
        "offloaded_bytes": offloaded_bytes(measurement),
        "promise": _promise(result.promise),
        "findings": finding_documents(result.findings),
    }


def _measured(result: BenchResult) -> dict[str, object]:
    measurement = result.measurement
    return {
        "n_prompt": measurement.n_prompt,
        "n_gen": measurement.n_gen,
        "pp": rate_document(result, "pp", measurement.pp_samples),
        "tg": rate_document(result, "tg", measurement.tg_samples),
        "turn_seconds": _summary(result, "turn_seconds"),
        "ready_seconds": _summary(result, "ready_seconds"),
        "peak_bytes": _summary(result, "peak_bytes"),
        "memory": None if measurement.memory is None else dataclasses.asdict(measurement.memory),
    }


def rate_document(result: BenchResult, test: Quantity, samples: Sequence[Sample]) -> dict[str, object] | None:
    """The figure of one test with its raw samples; None where it was not measured."""
    figure = _summary(result, test)
    if figure is None:
        return None
    return figure | {
        "samples": [dataclasses.asdict(sample) for sample in samples],
        "left_out": _left_out(result.measurement, test),
    }


def _left_out(measurement: Measurement, test: Quantity) -> list[dict[str, object]]:
    def document(left: LeftOut) -> dict[str, object]:
        return {"reason": left.reason} | dataclasses.asdict(left.sample)

    return [document(left) for left in measurement.left_out if left.test == test]


def _summary(result: BenchResult, quantity: Quantity) -> dict[str, object] | None:
    measured = result.promise.item(quantity).measured
    return None if measured is None else summary_document(measured)


def summary_document(summary: Summary) -> dict[str, object]:
    """An interval of the contract, with the number of samples and their spread."""
    return {
        "value": summary.median,
        "low": summary.low,
        "high": summary.high,
        "basis": "measured",
        "n": summary.n,
        "variation": summary.variation,
        "stable": summary.stable,
    }


def _promise(promise: Promise) -> dict[str, object]:
    return {
        "verdict": promise.verdict,
        "items": [
            {
                "quantity": item.quantity,
                "predicted": interval_document(item.predicted),
                "measured": None if item.measured is None else summary_document(item.measured),
                "verdict": item.verdict,
                "reason": item.reason,
            }
            for item in promise.items
        ],
    }
