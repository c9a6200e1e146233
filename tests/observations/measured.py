"""Runs to store: a clean one, and what a test changes about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from magnitude_tune.engines.values import BufferLine, MemoryReading, Sample
from magnitude_tune.observations.values import Disturbance, Measurement
from magnitude_tune.request import Settings

SETTINGS = Settings(n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=1024)
QUIET = Disturbance(
    steal_fraction=0.0,
    pressure_cpu_percent=0.0,
    pressure_memory_percent=0.0,
    other_cores=0.1,
    load_before=0.2,
    swapped_bytes=0,
)


def samples(n_tokens: int, rates: Sequence[float]) -> tuple[Sample, ...]:
    """Samples of that many tokens at those rates."""
    return tuple(Sample(n_tokens, n_tokens / rate) for rate in rates)


def measurement(**changes: object) -> Measurement:
    """A clean run with a few changes."""
    base = Measurement(
        started_at="2026-11-30T12:00:00Z",
        machine_hash="machine",
        cpu_info="A CPU",
        gpu_info="",
        engine="llama_cpp_python",
        engine_build="0.3.36",
        engine_backends="CPU",
        model_path="model.gguf",
        model_hash="model",
        model_type="gemma3 268M Q4_K_M",
        model_bytes=253_000_000,
        model_n_params=268_000_000,
        settings=SETTINGS,
        n_prompt=512,
        n_gen=128,
        n_depth=0,
        pp_samples=samples(512, (200.0, 210.0, 205.0)),
        tg_samples=samples(128, (40.0, 41.0, 42.0)),
        ready_seconds=1.5,
        memory=MemoryReading(1_000, 2_000, 3_000, 0),
        buffers=(BufferLine("CPU_Mapped", "model", 1_000),),
        disturbance=QUIET,
        magnitude_requested=4.0,
        magnitude_executed=3.9,
    )
    return replace(base, **changes)  # type: ignore[arg-type]
