"""A measured server as a page for people and as one JSON object: no plan of ours runs there, so no promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from magnitude_tune.bench.served import ServedResult
from magnitude_tune.engines.values import Sample
from magnitude_tune.observations.statistics import Summary, summarise
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.report.bench_text import between_text, disturbance_text
from magnitude_tune.report.resolution_json import SCHEMA_VERSION, finding_documents, resolution_document
from magnitude_tune.report.rows import finding_lines, rows_text
from magnitude_tune.throughput.values import Interval, Speed
from magnitude_tune.units import format_bytes, format_rate, format_seconds

__all__ = ["served_document", "served_text"]

_KINDS = {"llama_server": "llama-server", "ollama": "Ollama", "openai": "OpenAI-compatible"}
_TIMED = {"server": "by the server's own clock", "stream": "by the stream's arrival here, network included"}


def served_text(result: ServedResult, resolved: Resolved | None, stored: str | None) -> str:
    """Which server, which model, the table of figures, disturbance, findings.

    Args:
        resolved: what would be planned here for the model that was named beside the address; for information only.
        stored: the run's id in the store of measurements; None where it could not be kept.
    """
    note = ""
    if resolved is not None:
        note = "Predicted is what a plan of ours would do here; the server runs with settings of its own: no promise."
    kept = f"Stored as run {stored}, for comparison; it calibrates no prediction." if stored else ""
    parts = [
        _title(result),
        "Measured (90 % intervals)\n" + _figures(result, resolved),
        note,
        disturbance_text(result.measurement.disturbance)
        if result.machine
        else "Disturbance: not known on another host",
        "\n".join(finding_lines(result.findings)),
        kept,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(result: ServedResult) -> str:
    facts, measurement = result.facts, result.measurement
    ending = f", {result.ending.kind}" if result.ending else ""
    size = f", {format_bytes(facts.model_bytes)}" if facts.model_bytes else ""
    path = f", {facts.model_path}" if facts.model_path not in (None, facts.model) else ""
    context = f"{facts.n_ctx} tokens" if facts.n_ctx else "not told"
    rows = [
        ("server", f"{result.address}, {_KINDS[facts.kind]} {facts.build}"),
        ("model", f"{facts.model}{size}{path}"),
        ("context", context),
        ("measured", f"{measurement.n_prompt} tokens read, {measurement.n_gen} written{ending}"),
        ("timed", _TIMED[result.timed_by]),
    ]
    return rows_text(rows)


def _figures(result: ServedResult, resolved: Resolved | None) -> str:
    predicted = resolved.resolution.predicted if resolved else None
    heads = ("predicted", "") if predicted else ()
    rows: list[tuple[str, ...]] = [("", *heads, "measured", "", "n")]
    for name, shown, summary in _summaries(result):
        beside: tuple[str, ...] = ()
        if predicted:
            interval = _predicted(predicted, name)
            beside = (shown(interval.value), between_text(interval.low, interval.value, interval.high, shown))
        width = between_text(summary.low, summary.median, summary.high, shown) if summary.n > 1 else "one reading"
        rows.append((name, *beside, shown(summary.median), width, str(summary.n)))
    return rows_text(rows, right=(1, 3, 5) if predicted else (1, 3))


def _summaries(result: ServedResult) -> Sequence[tuple[str, Callable[[float], str], Summary]]:
    return (
        ("pp", format_rate, _rates(result.measurement.pp_samples)),
        ("tg", format_rate, _rates(result.measurement.tg_samples)),
        ("ttft", format_seconds, result.ttft_seconds),
        ("turn", format_seconds, result.turn_seconds),
    )


def _predicted(speed: Speed, name: str) -> Interval:
    return {"pp": speed.pp, "tg": speed.tg, "ttft": speed.ttft_seconds, "turn": speed.turn_seconds}[name]


def _rates(samples: Sequence[Sample]) -> Summary:
    return summarise([sample.rate for sample in samples])


def served_document(result: ServedResult, resolved: Resolved | None, stored: str | None) -> dict[str, object]:
    """The object that `bench --url --json` prints; `promise` is always null."""
    measurement = result.measurement
    return {
        "schema_version": SCHEMA_VERSION,
        "resolution": None if resolved is None else resolution_document(resolved),
        "served": {"url": result.address, **result.facts._asdict(), "timed_by": result.timed_by},
        "measured": {
            "n_prompt": measurement.n_prompt,
            "n_gen": measurement.n_gen,
            "pp": _with_samples(measurement.pp_samples),
            "tg": _with_samples(measurement.tg_samples),
            "ttft_seconds": _document(result.ttft_seconds),
            "turn_seconds": _document(result.turn_seconds),
            "ready_seconds": None,
            "peak_bytes": None,
        },
        "engine": {"name": measurement.engine, "build": measurement.engine_build},
        "started_at": measurement.started_at,
        "complete": measurement.complete,
        "ending": None if result.ending is None else result.ending._asdict(),
        "stored": stored,
        "disturbance": None
        if result.machine is None
        else dataclasses.asdict(measurement.disturbance) | {"clean": measurement.disturbance.clean},
        "promise": None,
        "findings": finding_documents(result.findings),
    }


def _with_samples(samples: Sequence[Sample]) -> dict[str, object]:
    return _document(_rates(samples)) | {"samples": [dataclasses.asdict(sample) for sample in samples]}


def _document(summary: Summary) -> dict[str, object]:
    figures = {"value": summary.median, "low": summary.low, "high": summary.high, "basis": "measured"}
    return figures | {"n": summary.n, "variation": summary.variation, "stable": summary.stable}
