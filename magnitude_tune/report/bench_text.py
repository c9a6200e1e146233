"""A bench as a page for people: predicted beside measured, and what to think of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from magnitude_tune.bench.findings import offloaded_bytes
from magnitude_tune.bench.values import BenchResult, PromiseItem, Quantity
from magnitude_tune.observations.statistics import summarise
from magnitude_tune.observations.values import Disturbance, Measurement
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.report.rows import finding_lines, rows_text
from magnitude_tune.units import format_bytes, format_rate, format_seconds

__all__ = ["bench_text", "between_text", "disturbance_text"]

_SHOWN: Final[dict[Quantity, tuple[str, Callable[[float], str]]]] = {
    "pp": ("pp", format_rate),
    "tg": ("tg", format_rate),
    "turn_seconds": ("turn", format_seconds),
    "ready_seconds": ("ready", format_seconds),
    "peak_bytes": ("memory", format_bytes),
}


def bench_text(result: BenchResult, resolved: Resolved, stored: str | None) -> str:
    """Subject, the table of figures with its verdicts, memory, buffers, disturbance, findings.

    Args:
        stored: the run's id in the store of measurements; None where it could not be kept.
    """
    measurement = result.measurement
    parts = [
        _title(resolved, result),
        _figures(result),
        _memory(resolved),
        _buffers(measurement),
        disturbance_text(measurement.disturbance),
        "\n".join(finding_lines((*resolved.resolution.findings, *result.findings))),
        f"Stored as run {stored}: {_use(measurement)}." if stored else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _use(measurement: Measurement) -> str:
    """Whether the next resolve rests on this run, as `observations.evidence_for` decides."""
    if not measurement.complete:
        return "the next resolve does not use it, because it did not end"
    if not measurement.disturbance.clean:
        return "the next resolve does not use it, because it was disturbed"
    rates = [[sample.rate for sample in samples] for samples in (measurement.pp_samples, measurement.tg_samples)]
    stable = [bool(each) and summarise(each).stable for each in rates]
    if all(stable):
        return "the next resolve here uses it"
    if any(stable):
        return f"the next resolve here uses its {'pp' if stable[0] else 'tg'}; the other is not stable enough"
    return "the next resolve does not use it, because its samples are too few or spread too far"


def _title(resolved: Resolved, result: BenchResult) -> str:
    measurement = result.measurement
    header, settings = resolved.header, measurement.settings
    ending = f", {result.ending.kind}" if result.ending else ""
    chosen = (
        f"n_gpu_layers={settings.n_gpu_layers}, n_threads={settings.n_threads}/{settings.n_threads_batch}, "
        f"n_batch={settings.n_batch}/{settings.n_ubatch}, n_ctx={settings.n_ctx}, "
        f"repack={'on' if settings.repack else 'off'}"
    )
    rows = [
        ("model", f"{header.name or header.path}, {measurement.model_type}, {format_bytes(measurement.model_bytes)}"),
        ("machine", f"{resolved.machine.hostname}, {measurement.cpu_info or 'unknown CPU'}"),
        ("engine", f"{measurement.engine} {measurement.engine_build}"),
        ("settings", chosen),
        ("measured", f"{measurement.n_prompt} tokens read, {measurement.n_gen} written{ending}"),
    ]
    return rows_text(rows)


def _figures(result: BenchResult) -> str:
    rows: list[tuple[str, ...]] = [("", "predicted", "", "measured", "", "n", "promise")]
    rows += [_figure(item) for item in result.promise.items]
    text = "Predicted beside measured (90 % intervals)\n" + rows_text(rows, right=(1, 3, 5))
    text += f"\n\nPromise: {result.promise.verdict}"
    for item in result.promise.items:
        if item.verdict != "kept":
            text += f"\n  {_SHOWN[item.quantity][0]}: {item.verdict}, {item.reason}"
    return text


def _figure(item: PromiseItem) -> tuple[str, ...]:
    name, shown = _SHOWN[item.quantity]
    predicted, measured = item.predicted, item.measured
    if item.quantity == "peak_bytes":
        left = (f"{shown(predicted.value)}", "reserved")
    else:
        left = (shown(predicted.value), between_text(predicted.low, predicted.value, predicted.high, shown))
    if measured is None:
        right = ("not measured", "", "")
    elif measured.n == 1:
        right = (shown(measured.median), "peak" if item.quantity == "peak_bytes" else "one reading", "1")
    else:
        between = between_text(measured.low, measured.median, measured.high, shown)
        right = (shown(measured.median), between, str(measured.n))
    return (name, *left, *right, item.verdict)


def between_text(low: float, middle: float, high: float, shown: Callable[[float], str]) -> str:
    """An interval as people read it, with its distances from the middle."""
    below, above = ((middle - low) / middle, (high - middle) / middle) if middle else (0.0, 0.0)
    return f"{shown(low)} to {shown(high)} (-{below:.0%} +{above:.0%})"


def _memory(resolved: Resolved) -> str:
    rows = [("pool", "reserved", "budget", "available")]
    rows += [
        (
            pool.name,
            format_bytes(pool.reserved_bytes),
            format_bytes(pool.budget_bytes),
            format_bytes(pool.available_bytes),
        )
        for pool in resolved.resolution.pools
    ]
    return "Memory\n" + rows_text(rows, right=(1, 2, 3))


def _buffers(measurement: Measurement) -> str:
    if not measurement.buffers:
        return ""
    sums: Counter[tuple[str, str]] = Counter()
    for line in measurement.buffers:
        sums[line.buffer, line.kind] += line.n_bytes
    rows = [(buffer, kind, format_bytes(n_bytes)) for (buffer, kind), n_bytes in sums.items()]
    text = "Buffers, by the engine's own lines\n" + rows_text(rows, right=(2,))
    for device, n_bytes in offloaded_bytes(measurement).items():
        text += f"\n  offload confirmed: {format_bytes(n_bytes)} of weights and cache on {device}"
    return text


def disturbance_text(seen: Disturbance) -> str:
    """What disturbed a run, in one line."""
    known = ", ".join(_known(seen))
    verdict = "none seen" if seen.clean else "; ".join(seen.notes)
    return f"Disturbance: {verdict}" + (f" ({known})" if known else "")


def _known(seen: Disturbance) -> Iterator[str]:
    if seen.steal_fraction is not None:
        yield f"steal {seen.steal_fraction:.1%}"
    if seen.other_cores is not None:
        yield f"others kept {seen.other_cores:.1f} cores busy"
    if seen.load_before is not None:
        yield f"load before {seen.load_before:.1f}"
    if seen.pressure_cpu_percent is not None:
        yield f"waits for CPU {seen.pressure_cpu_percent:.0f} %"
    if seen.pressure_memory_percent is not None:
        yield f"for memory {seen.pressure_memory_percent:.0f} %"
    if seen.swapped_bytes:
        yield f"{format_bytes(seen.swapped_bytes)} swapped"
    if seen.clock_change is not None:
        yield f"clock {seen.clock_change:+.0%}"
    if seen.celsius_highest is not None:
        yield f"up to {seen.celsius_highest:.0f} °C"
    if seen.throttles:
        yield f"slowed for heat {seen.throttles} times"
