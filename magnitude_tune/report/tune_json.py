"""A tuning session as one JSON object, in base units."""

from __future__ import annotations

from collections.abc import Sequence

from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.values import BenchResult
from magnitude_tune.report.resolution_json import SCHEMA_VERSION, settings_document
from magnitude_tune.tuning.values import Step, Tuned

__all__ = ["tune_document"]


def tune_document(
    tuned: Tuned, subject: Subject, results: Sequence[tuple[int, BenchResult]], *, max_runs: int
) -> dict[str, object]:
    """The object that `bench --tune --json` prints; `path` holds every step in order.

    Args:
        results: what each run gave, in the order of the path's runs.
    """
    coming = iter(results)
    verdict = tuned.verdict
    winner = tuned.candidates[verdict.winner] if verdict else None
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {"path": subject.header.path, "hash": subject.header.content_hash},
        "machine": {"hostname": subject.machine.hostname, "hash": subject.machine.machine_hash},
        "engine": {"name": subject.engine.name, "build": subject.engine.build},
        "workload": subject.resolution.workload._asdict(),
        "complete": not tuned.interrupted,
        "max_runs": max_runs,
        "candidates": len(tuned.candidates),
        "path": [_step(tuned, step, next(coming)[1] if step.run is not None else None) for step in tuned.steps],
        "ended": tuned.ended,
        "verdict": verdict._asdict() | {"winner": winner.point} if verdict and winner else None,
        "settings": settings_document(winner.settings) if winner else None,
    }


def _step(tuned: Tuned, step: Step, result: BenchResult | None) -> dict[str, object]:
    candidate = tuned.candidates[step.candidate]
    document: dict[str, object] = {
        "point": candidate.point,
        "changes": dict(candidate.changes),
        "phase": step.phase,
        "reason": step.reason,
        "problem": step.problem,
        "turn_seconds": step.run.seconds if step.run else None,
        "clean": step.run.clean if step.run else None,
    }
    if result is not None:
        samples = {"pp": result.measurement.pp_samples, "tg": result.measurement.tg_samples}
        document |= {name: [sample.rate for sample in taken] for name, taken in samples.items()}
    return document
