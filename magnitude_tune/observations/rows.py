"""A measurement as rows of the store: one per test, as llama-bench has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Literal

from magnitude_tune.engines.values import Sample
from magnitude_tune.observations.statistics import summarise
from magnitude_tune.observations.values import Measurement
from magnitude_tune.request import Settings

__all__ = ["rows_of"]

Row = dict[str, object]


def rows_of(measurement: Measurement, run_id: str) -> tuple[Row, ...]:
    """One row for the prompt test and one for generation, as far as there are samples.

    Means and standard deviations are computed in floats: llama-bench's own overflow on slow runs.
    """
    shared = _shared_columns(measurement, run_id)
    rows = []
    if measurement.pp_samples:
        rows.append(shared | _test_columns(measurement, "pp") | {"n_prompt": measurement.n_prompt, "n_gen": 0})
    if measurement.tg_samples:
        rows.append(shared | _test_columns(measurement, "tg") | {"n_prompt": 0, "n_gen": measurement.n_gen})
    return tuple(rows)


def _shared_columns(measurement: Measurement, run_id: str) -> Row:
    settings, memory = measurement.settings, measurement.memory
    return {
        "build_commit": measurement.engine_build,
        "build_number": 0,
        "cpu_info": measurement.cpu_info,
        "gpu_info": measurement.gpu_info,
        "backends": measurement.engine_backends,
        "model_filename": measurement.model_path,
        "model_type": measurement.model_type,
        "model_size": measurement.model_bytes,
        "model_n_params": measurement.model_n_params,
        **_engine_columns(settings),
        "n_depth": measurement.n_depth,
        "test_time": measurement.started_at,
        "run_id": run_id,
        "machine_hash": measurement.machine_hash,
        "model_hash": measurement.model_hash,
        "engine": measurement.engine,
        "engine_build": measurement.engine_build,
        "settings": _json(asdict(settings)),
        "ready_seconds": measurement.ready_seconds,
        "peak_bytes": memory.peak_resident_bytes if memory else None,
        "anonymous_bytes": memory.anonymous_bytes if memory else None,
        "buffers": _json([asdict(line) for line in measurement.buffers]),
        "disturbance": _json(asdict(measurement.disturbance)),
        "clean": int(measurement.disturbance.clean),
        "complete": int(measurement.complete),
        "magnitude_requested": measurement.magnitude_requested,
        "magnitude_executed": measurement.magnitude_executed,
    }


def _engine_columns(settings: Settings) -> Row:
    """llama-bench's names and spellings of the settings, its defaults for what we never change."""
    return {
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "n_threads": settings.n_threads,
        "cpu_mask": "0x0",
        "cpu_strict": 0,
        "poll": 50,
        "type_k": settings.type_k,
        "type_v": settings.type_v,
        "n_gpu_layers": settings.n_gpu_layers,
        "n_cpu_moe": settings.n_cpu_moe,
        "split_mode": "layer",
        "main_gpu": settings.main_gpu,
        "no_kv_offload": 0,
        "flash_attn": int(settings.flash_attn),
        "devices": "/".join(settings.devices) or "auto",
        "tensor_split": "/".join(f"{part:.2f}" for part in settings.tensor_split) or "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": settings.load_mode,
        "lazy_mode": "auto",
        "embeddings": 0,
        "no_op_offload": 0,
        "no_host": 0,
        "repack": int(settings.repack),
        "fit_target": 0,
        "fit_min_ctx": 0,
    }


def _test_columns(measurement: Measurement, test: Literal["pp", "tg"]) -> Row:
    samples = measurement.pp_samples if test == "pp" else measurement.tg_samples
    rates = [sample.rate for sample in samples]
    nanoseconds = [sample.seconds * 1e9 for sample in samples]
    summary = summarise(rates)
    return {
        "avg_ns": round(fmean(nanoseconds)),
        "stddev_ns": round(_deviation(nanoseconds)),
        "avg_ts": fmean(rates),
        "stddev_ts": _deviation(rates),
        "samples": _json([_pair(sample) for sample in samples]),
        "left_out": _json(
            [
                {"reason": left.reason, "sample": _pair(left.sample)}
                for left in measurement.left_out
                if left.test == test
            ]
        ),
        "median_ts": summary.median,
        "low_ts": summary.low,
        "high_ts": summary.high,
        "stable": int(summary.stable),
    }


def _pair(sample: Sample) -> tuple[int, float]:
    return sample.n_tokens, sample.seconds


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
