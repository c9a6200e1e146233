"""Predicted beside measured: was the promise kept?"""

from __future__ import annotations

from magnitude_tune.bench.values import Promise, PromiseItem, Quantity, Verdict
from magnitude_tune.engines.values import Sample
from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.observations.statistics import MAX_VARIATION, MIN_SAMPLES, Summary, summarise, summarise_sum
from magnitude_tune.observations.values import Measurement
from magnitude_tune.resolver.values import Resolution
from magnitude_tune.throughput.values import Interval

__all__ = ["compare", "most_resident"]


def compare(resolution: Resolution, measurement: Measurement, machine: Fingerprint) -> Promise:
    """Hold the prediction against the measurement, quantity by quantity.

    A speed or a time is kept where its measured median lies in the predicted interval, broken where the two
    intervals do not touch, and undecided between, or where the samples carry no verdict. Memory of the
    host is kept where the peak of the engine's process stays within what was reserved for it; a card's own is not read.
    """
    predicted, workload = resolution.predicted, resolution.workload
    pp, tg = measurement.pp_samples, measurement.tg_samples
    turn = _turn(pp, tg, workload.n_prompt, workload.n_gen)
    doubt = _doubt(measurement)
    if measurement.settings != resolution.settings:
        doubt = "measured with other settings than were predicted"
    return Promise(
        (
            _judged("pp", predicted.pp, _rates(pp), doubt),
            _judged("tg", predicted.tg, _rates(tg), doubt),
            _judged("turn_seconds", predicted.turn_seconds, turn, doubt),
            _ready(predicted.ready_seconds, measurement.ready_seconds),
            _memory(most_resident(resolution, machine), measurement),
        )
    )


def most_resident(resolution: Resolution, machine: Fingerprint) -> int:
    """Most bytes that the engine's own process may show: what is reserved for it on the host, and mapped pages.

    What a server on loopback holds is not the engine's, and `bench` never fills the prompt cache. While a mapped file
    loads, the pages of tensors that go to devices show too; they are clean, so no budget holds them.
    """
    served = {device.name for device in machine.devices if device.backend == "rpc"}
    host = machine.host_pool.name
    terms = resolution.footprint.terms
    own = (term for term in terms if term.pool == host and term.device not in served and term.name != "prompt_cache")
    resident = sum(term.reserved_bytes for term in own)
    if resolution.settings.load_mode == "mmap":
        resident += sum(term.reserved_bytes for term in terms if term.name == "weights" and term.device != "CPU")
    return resident


def _rates(samples: tuple[Sample, ...]) -> Summary | None:
    return summarise([sample.rate for sample in samples]) if samples else None


def _turn(pp: tuple[Sample, ...], tg: tuple[Sample, ...], n_prompt: int, n_gen: int) -> Summary | None:
    """n_prompt/pp + n_gen/tg, from the samples' own times."""
    if not pp or not tg:
        return None
    return summarise_sum([n_prompt / sample.rate for sample in pp], [n_gen / sample.rate for sample in tg])


def _doubt(measurement: Measurement) -> str | None:
    if not measurement.complete:
        return "the run was interrupted"
    return None if measurement.disturbance.clean else measurement.disturbance.notes[0]


def _judged(quantity: Quantity, predicted: Interval, measured: Summary | None, doubt: str | None) -> PromiseItem:
    verdict: Verdict = "undecided"
    if measured is None:
        reason = "not measured"
    elif measured.n < MIN_SAMPLES:
        reason = f"{_count(measured.n)}; a verdict needs {MIN_SAMPLES}"
    elif doubt is not None:
        reason = doubt
    elif not measured.stable:
        reason = f"samples spread by {measured.variation:.0%}, more than {MAX_VARIATION:.0%}"
    else:
        verdict, reason = _placed(predicted, measured)
    return _item(quantity, predicted, measured, verdict, reason)


def _placed(predicted: Interval, measured: Summary) -> tuple[Verdict, str]:
    if predicted.holds(measured.median):
        return "kept", "inside the predicted interval"
    side = "above" if measured.median > predicted.high else "below"
    if measured.low > predicted.high or measured.high < predicted.low:
        return "broken", f"{side} the predicted interval"
    return "undecided", f"{side} the predicted interval by less than the measurement's own width"


def _ready(predicted: Interval, seconds: float | None) -> PromiseItem:
    """One start is one reading: it can keep the promise, but not break it."""
    if seconds is None:
        return _item("ready_seconds", predicted, None, "undecided", "not measured")
    measured = Summary(median=seconds, low=seconds, high=seconds, n=1, variation=0.0)
    if predicted.holds(seconds):
        return _item("ready_seconds", predicted, measured, "kept", "inside the predicted interval")
    side = "above" if seconds > predicted.high else "below"
    return _item("ready_seconds", predicted, measured, "undecided", f"{side} the predicted interval, in one start")


def _memory(reserved_bytes: int, measurement: Measurement) -> PromiseItem:
    predicted = Interval(value=reserved_bytes, low=0, high=reserved_bytes, basis="shipped")
    if measurement.memory is None:
        return _item("peak_bytes", predicted, None, "undecided", "not measured")
    peak = measurement.memory.peak_resident_bytes + measurement.memory.swap_bytes
    measured = Summary(median=peak, low=peak, high=peak, n=1, variation=0.0)
    if peak > reserved_bytes:
        return _item("peak_bytes", predicted, measured, "broken", "above what was reserved")
    if not (measurement.complete and measurement.pp_samples and measurement.tg_samples):
        return _item("peak_bytes", predicted, measured, "undecided", "the run did not end")
    return _item("peak_bytes", predicted, measured, "kept", "within what was reserved")


def _item(
    quantity: Quantity, predicted: Interval, measured: Summary | None, verdict: Verdict, reason: str
) -> PromiseItem:
    return PromiseItem(quantity=quantity, predicted=predicted, measured=measured, verdict=verdict, reason=reason)


def _count(n: int) -> str:
    return "one sample" if n == 1 else f"{n} samples"
