"""One configuration, measured in one fresh process of the engine, or in several whose samples are put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.findings import crash_finding, run_findings, slowed_down
from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.promise import compare
from magnitude_tune.bench.series import Series
from magnitude_tune.bench.taking import Opener, take_slice
from magnitude_tune.bench.together import combined
from magnitude_tune.bench.values import BenchResult, Report, Slice
from magnitude_tune.engines.values import MemoryReading
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.observations.values import Measurement

__all__ = ["DEFAULT_BUDGET_SECONDS", "Opener", "Subject", "result_of", "run_bench", "series_of"]

DEFAULT_BUDGET_SECONDS: Final = 120.0


def run_bench(
    subject: Subject,
    open_engine: Opener,
    *,
    budget_seconds: float = DEFAULT_BUDGET_SECONDS,
    report: Report = lambda _: None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BenchResult:
    """Launch the plan's configuration, measure it and hold the prediction against it.

    The workload's prompt and its generation are measured in turn until the interval of each median is within 10 %
    either way, or the budget ends. An interrupt (KeyboardInterrupt) or a crash ends the measuring: what was measured
    until then is the result, with `complete` False and `ending` saying which.

    Args:
        budget_seconds: for warming up and measuring; loading the model has its own time limit.
        report: is told how far the run is.

    Raises:
        EngineError: the engine did not start, or died before the first sample.
        KeyboardInterrupt: before there was anything to keep.
    """
    taken = take_slice(subject, open_engine, budget_seconds=budget_seconds, report=report, watch=watch, clock=clock)
    return result_of(subject, (taken,))


def result_of(subject: Subject, slices: Sequence[Slice], *, finished: bool = True) -> BenchResult:
    """The result of one configuration from what its processes gave, one or more.

    Args:
        finished: False where more processes were meant to follow: the measurement is not complete then.
    """
    measurement = slowed_down(_measurement(subject, slices, finished=finished))
    ending = next((taken.ending for taken in slices if taken.ending), None)
    return BenchResult(
        measurement=measurement,
        promise=compare(subject.resolution, measurement, subject.machine),
        findings=(
            *_about_repacking(slices),
            *(found for taken in slices for found in crash_finding(taken.ending)),
            *run_findings(measurement),
        ),
        ending=ending,
    )


def series_of(slices: Sequence[Slice]) -> tuple[Series, Series]:
    """The samples of both tests over all processes."""
    pp, tg = Series("pp"), Series("tg")
    for taken in slices:
        pp.extend(taken.pp)
        tg.extend(taken.tg)
    return pp, tg


def _about_repacking(slices: Sequence[Slice]) -> tuple[Finding, ...]:
    crash = next((taken.repack_crash for taken in slices if taken.repack_crash), None)
    if crash is None:
        return ()
    message = f"with repacked weights the engine ended ({crash}); measured without them"
    fix = "this is remembered: the next resolve plans without repacking"
    return (Finding(Rule.ILLEGAL_INSTRUCTION_REMEMBERED, message, fix=fix, setting="repack"),)


def _measurement(subject: Subject, slices: Sequence[Slice], *, finished: bool) -> Measurement:
    header, engine, machine = subject.header, subject.engine, subject.machine
    first, magnitude = slices[0], subject.resolution.magnitude
    used_devices = [device for device in machine.devices if device.name in first.settings.devices]
    pp, tg = series_of(slices)
    return Measurement(
        started_at=first.started_at,
        machine_hash=machine.machine_hash,
        cpu_info=machine.cpu.brand or "",
        gpu_info=", ".join(device.description for device in used_devices),
        engine=engine.name,
        engine_build=engine.build,
        engine_backends=",".join(name.upper() for name in engine.backends),
        model_path=header.path,
        model_hash=header.content_hash,
        model_type=_model_type(header),
        model_bytes=header.tensor_bytes,
        model_n_params=header.n_params,
        settings=first.settings,
        n_prompt=first.n_prompt,
        n_gen=first.n_gen,
        n_depth=0,
        pp_samples=pp.used,
        tg_samples=tg.used,
        ready_seconds=_middle([taken.ready_seconds for taken in slices]),
        memory=_largest([taken.memory for taken in slices]),
        buffers=first.buffers,
        disturbance=combined([(taken.span_seconds, taken.disturbance) for taken in slices], pp.notes + tg.notes),
        complete=finished and all(taken.ending is None for taken in slices),
        magnitude_requested=magnitude.requested,
        magnitude_executed=magnitude.executed,
        left_out=pp.left_out + tg.left_out,
    )


def _middle(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return median(known) if known else None


def _largest(readings: Sequence[MemoryReading | None]) -> MemoryReading | None:
    known = [reading for reading in readings if reading is not None]
    return max(known, key=lambda reading: reading.peak_resident_bytes) if known else None


def _model_type(header: ModelHeader) -> str:
    """As llama-bench words it: architecture, parameters, quantisation."""
    n_params = header.n_params
    size = f"{n_params / 1e9:.2f}B" if n_params >= 1e9 else f"{n_params / 1e6:.2f}M"
    return " ".join(part for part in (header.architecture, size, header.file_type) if part)
