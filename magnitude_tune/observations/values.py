"""What was measured, raw: one row of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magnitude_tune.engines.values import BufferLine, MemoryReading, Sample
from magnitude_tune.request import Settings

__all__ = ["Disturbance", "LeftOut", "Measurement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What else went on during a run: fractions of the run's CPU time, pressure in percent, cores of others.

    `clock_change` is the CPU's clock in the last third of the samples against the first, -0.1 where it fell by 10 %;
    `throttles` counts how often a core was slowed down for heat.
    """

    steal_fraction: float | None
    pressure_cpu_percent: float | None
    pressure_memory_percent: float | None
    other_cores: float | None
    load_before: float | None
    swapped_bytes: int | None
    notes: tuple[str, ...] = ()
    clock_change: float | None = None
    celsius_highest: float | None = None
    throttles: int | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing was seen that makes the samples doubtful."""
        return not self.notes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A sample that was taken and is kept, but is no part of the figures."""

    test: Literal["pp", "tg"]
    reason: Literal["warm-up", "disturbed"]
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One configuration, measured in one fresh process. Raw samples are kept, statistics are views of them.

    `complete` is False where the run was interrupted; `stable` where the spread allows a verdict.
    """

    started_at: str
    machine_hash: str
    cpu_info: str
    gpu_info: str
    engine: str
    engine_build: str
    engine_backends: str
    model_path: str
    model_hash: str
    model_type: str
    model_bytes: int
    model_n_params: int
    settings: Settings
    n_prompt: int
    n_gen: int
    n_depth: int
    pp_samples: tuple[Sample, ...]
    tg_samples: tuple[Sample, ...]
    ready_seconds: float | None
    memory: MemoryReading | None
    buffers: tuple[BufferLine, ...]
    disturbance: Disturbance
    complete: bool = True
    magnitude_requested: float | None = None
    magnitude_executed: float | None = None
    left_out: tuple[LeftOut, ...] = ()
