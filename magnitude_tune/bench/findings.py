"""What a run itself has to say: neighbours, heat, and layers that are not where they were meant to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from magnitude_tune.bench.statistics import drift
from magnitude_tune.bench.values import Ending
from magnitude_tune.engines.rpc import device_of_buffer
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.observations.values import Measurement

__all__ = ["crash_finding", "offloaded_bytes", "run_findings", "slowed_down"]

_SUSPECT_CLOCK: Final = 0.10


def run_findings(measurement: Measurement) -> tuple[Finding, ...]:
    """Findings of one measurement."""
    return (*_disturbed(measurement), *_slowed(measurement), *_offload(measurement))


def slowed_down(measurement: Measurement) -> Measurement:
    """The measurement, with what slowed the machine down within it among its disturbance's notes.

    It is not clean then: a rate under a falling clock is neither a verdict nor a calibration.
    """
    seen = measurement.disturbance
    return replace(measurement, disturbance=replace(seen, notes=(*seen.notes, *_signs_of_heat(measurement))))


def crash_finding(ending: Ending | None) -> tuple[Finding, ...]:
    """That the engine or server ended before its samples sufficed; nothing for other endings."""
    if ending is None or ending.kind != "crashed":
        return ()
    message = f"{ending.what}; the samples until then are kept, without a verdict"
    return (Finding(Rule.ENGINE_ENDED, message, fix=ending.hint),)


def offloaded_bytes(measurement: Measurement) -> dict[str, int]:
    """Bytes of weights and cache on each device other than the host, by the engine's own buffer lines."""
    found: Counter[str] = Counter()
    for line in measurement.buffers:
        device = device_of_buffer(line.buffer)
        if device != "CPU" and line.kind in ("model", "kv", "recurrent"):
            found[device] += line.n_bytes
    return dict(found)


def _disturbed(measurement: Measurement) -> Iterator[Finding]:
    fix = "run bench again while the machine is quiet"
    slowed = _signs_of_heat(measurement)
    for note in measurement.disturbance.notes:
        if note in slowed:
            continue
        yield Finding(Rule.DISTURBED_MEASUREMENT, f"{note}; the figures carry no verdict", fix=fix)
    n_left_out = sum(left.reason == "disturbed" for left in measurement.left_out)
    if n_left_out:
        samples = "1 disturbed sample was" if n_left_out == 1 else f"{n_left_out} disturbed samples were"
        yield Finding(Rule.DISTURBED_MEASUREMENT, f"{samples} repeated and left out of the figures")


def _slowed(measurement: Measurement) -> Iterator[Finding]:
    fix = "let the machine cool down and run bench again; plan with the sustained figure"
    for sign in _signs_of_heat(measurement):
        yield Finding(Rule.DISTURBED_MEASUREMENT, f"{sign}; the figures carry no verdict", fix=fix)


def _signs_of_heat(measurement: Measurement) -> tuple[str, ...]:
    return (*_sinking(measurement), *_hot(measurement))


def _sinking(measurement: Measurement) -> Iterator[str]:
    for test, samples in (("pp", measurement.pp_samples), ("tg", measurement.tg_samples)):
        if not samples:
            continue
        seen = drift([sample.rate for sample in samples])
        if seen.suspect:
            yield (
                f"{test} fell by {seen.fraction:.1%} from the first sample to the last, to {seen.sustained:.1f} t/s "
                f"sustained after a peak of {seen.peak:.1f}: heat or a power limit is likely"
            )


def _hot(measurement: Measurement) -> Iterator[str]:
    seen = measurement.disturbance
    signs = []
    if seen.clock_change is not None and seen.clock_change <= -_SUSPECT_CLOCK:
        signs.append(f"the CPU's clock fell by {-seen.clock_change:.0%} within the run")
    if seen.throttles:
        signs.append(f"cores were slowed down for heat {seen.throttles} times")
    if not signs:
        return
    if seen.celsius_highest is not None:
        signs.append(f"the hottest sensor showed {seen.celsius_highest:.0f} °C")
    yield ", ".join(signs)


def _offload(measurement: Measurement) -> Iterator[Finding]:
    settings = measurement.settings
    if settings.n_gpu_layers <= 0:
        return
    held = offloaded_bytes(measurement)
    missing = [device for device in settings.devices if not held.get(device)]
    if not held or missing:
        where = ", ".join(missing) or "any device"
        yield Finding(
            Rule.OFFLOAD_DIFFERS,
            f"n_gpu_layers is {settings.n_gpu_layers}, but the engine's log shows no weights or cache on {where}",
            fix="check that this build of the engine drives the device",
            setting="n_gpu_layers",
        )
