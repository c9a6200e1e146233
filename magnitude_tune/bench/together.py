"""The disturbances of several processes of one configuration, put together."""

from __future__ import annotations

from collections.abc import Sequence

from magnitude_tune.observations.values import Disturbance

__all__ = ["combined"]


def combined(parts: Sequence[tuple[float, Disturbance]], notes: tuple[str, ...]) -> Disturbance:
    """What went on over several spans (seconds each); `notes` are the doubts about the samples in use."""
    seen = [part for _, part in parts]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [(span, value) for (span, _), value in zip(parts, values, strict=True) if value is not None]
        total = sum(span for span, _ in known)
        if total <= 0:
            return known[0][1] if known else None
        return sum(span * value for span, value in known) / total

    changes = [part.clock_change for part in seen if part.clock_change is not None]
    degrees = [part.celsius_highest for part in seen if part.celsius_highest is not None]
    throttles = [part.throttles for part in seen if part.throttles is not None]
    swapped = [part.swapped_bytes for part in seen if part.swapped_bytes is not None]
    return Disturbance(
        steal_fraction=mean([part.steal_fraction for part in seen]),
        pressure_cpu_percent=mean([part.pressure_cpu_percent for part in seen]),
        pressure_memory_percent=mean([part.pressure_memory_percent for part in seen]),
        other_cores=mean([part.other_cores for part in seen]),
        load_before=seen[0].load_before if seen else None,
        swapped_bytes=sum(swapped) if swapped else None,
        clock_change=min(changes) if changes else None,
        celsius_highest=max(degrees) if degrees else None,
        throttles=sum(throttles) if throttles else None,
        notes=notes,
    )
