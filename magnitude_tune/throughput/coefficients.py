"""The shipped coefficients of the speed model: what is stated for each kind of device, and what was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.errors import InputFileError
from magnitude_tune.throughput.features import NUMBERS, is_feature
from magnitude_tune.throughput.learned import OTHER, Correction, Learned, Scale, Term

__all__ = [
    "DEVICE_KINDS",
    "SCHEMA_VERSION",
    "Coefficients",
    "CpuCoefficients",
    "DoubtCoefficients",
    "KindCoefficients",
    "ReadyCoefficients",
    "parse_coefficients",
]

SCHEMA_VERSION: Final = 2
DEVICE_KINDS: Final = ("cpu", "gpu", "igpu", "apple", "rpc")
_MOST_NAMES: Final = 256
_MOST_FACTORS: Final = 3
"""Host CPU, discrete card, graphics in the host's memory, Apple's GPU, and a device over RPC."""


class KindCoefficients(NamedTuple):
    """What one kind of device reaches of its data sheet, and what each step costs beside that.

    Args:
        tg_efficiency: share of the memory bandwidth that generation reaches.
        tg_compute_efficiency: share of the peak arithmetic that generation (one token at a time) reaches.
        pp_efficiency: share of the peak arithmetic that a large batch reaches.
        half_batch_tokens: fixed cost of a batch, in tokens: at this batch size the device runs at half its best rate.
        token_overhead_seconds, layer_overhead_seconds: per token generated or batch read, and per block of it.
        expert_overhead_seconds: on top of that per block with experts: choosing them and gathering.
        link_bandwidth, link_latency_seconds: to the host, bytes/second and seconds a crossing, where unknown.
        tg_factor_90, pp_factor_90: half-width of the 90 % interval as a factor: the rate lies in rate/f .. rate*f.
    """

    tg_efficiency: float
    tg_compute_efficiency: float
    pp_efficiency: float
    half_batch_tokens: float
    token_overhead_seconds: float
    layer_overhead_seconds: float
    expert_overhead_seconds: float
    link_bandwidth: float
    link_latency_seconds: float
    tg_factor_90: float
    pp_factor_90: float
    source: str


class CpuCoefficients(NamedTuple):
    """What is special about host CPUs.

    Args:
        core_bandwidth_share: most of the memory bandwidth that one core can draw, where its even share is less.
        measured_bandwidth_gain: data-sheet bandwidth over what a copy on all cores measures.
        repack_pp_gain, repack_tg_gain: how much faster repacked weights are multiplied.
    """

    core_bandwidth_share: float
    measured_bandwidth_gain: float
    repack_pp_gain: float
    repack_tg_gain: float
    source: str


class DoubtCoefficients(NamedTuple):
    """How sure we are beside the kinds' own intervals.

    Args:
        tg_residual, pp_residual: standard deviation of log(measured/predicted) that other settings keep after the
            factor from measurements here.
        rerun_factor_90: between two sessions of the very same setting.
        guessed_factor_90: where a device's bandwidth, or a CPU's bandwidth or peak, is a guess.
    """

    tg_residual: float
    pp_residual: float
    rerun_factor_90: float
    guessed_factor_90: float
    source: str


class ReadyCoefficients(NamedTuple):
    """Time to ready.

    Args:
        disk_bandwidth, cache_bandwidth: bytes/second from an unknown disk and from the page cache.
        repack_bandwidth: bytes/second brought into another layout.
        start_seconds_low, start_seconds_high: process, libraries, context and warm-up, at best and at worst.
        vocabulary_seconds_per_token: building the tokenizer.
    """

    disk_bandwidth: float
    cache_bandwidth: float
    repack_bandwidth: float
    start_seconds_low: float
    start_seconds_high: float
    vocabulary_seconds_per_token: float
    source: str


class Coefficients(NamedTuple):
    """Everything `models/throughput.json` holds; without `learned` the stated efficiencies stand alone."""

    kinds: Mapping[str, KindCoefficients]
    cpu: CpuCoefficients
    doubt: DoubtCoefficients
    ready: ReadyCoefficients
    learned: Learned | None = None


class _Reader:
    """Takes values out of one object of the document and insists that nothing is missing, odd or left over."""

    def __init__(self, value: object, path: str, where: str) -> None:
        self._where = where
        self._path = path
        if not isinstance(value, Mapping):
            raise self.error(f"{path or 'the document'} is not an object")
        self._left = dict(value)

    def error(self, what: str) -> InputFileError:
        return InputFileError(what, where=self._where, hint="restore the file that this version shipped")

    def take(self, name: str) -> object:
        if name not in self._left:
            raise self.error(f"{self._name(name)} is missing")
        return self._left.pop(name)

    def part(self, name: str) -> _Reader:
        return _Reader(self.take(name), self._name(name), self._where)

    def number(self, name: str, *, low: float = 0.0, high: float = 1e15) -> float:
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{self._name(name)} is not a number: {value!r}")
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(f"{self._name(name)} is {value!r}, outside {low:g} to {high:g}")
        return float(value)

    def rate(self, name: str) -> float:
        return self.number(name, low=1.0, high=1e16)

    def efficiency(self, name: str) -> float:
        return self.number(name, low=1e-4, high=100.0)

    def factor(self, name: str) -> float:
        return self.number(name, low=1.0, high=100.0)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{self._name(name)} is not a text")
        return value

    def names(self) -> tuple[str, ...]:
        if len(self._left) > _MOST_NAMES:
            raise self.error(f"{self._path} has {len(self._left)} entries, more than {_MOST_NAMES}")
        return tuple(str(name) for name in self._left)

    def done(self) -> None:
        if self._left:
            raise self.error(f"{self._name(min(self._left, key=str))} is not a name that this version knows")

    def _name(self, name: object) -> str:
        return f"{self._path}.{name}" if self._path else str(name)


def parse_coefficients(document: Mapping[str, object], where: str) -> Coefficients:
    """Check and take over the coefficients of a parsed `throughput.json`; `where` names the file in errors.

    Raises:
        InputFileError: another schema version, or a value that is missing, unknown, of another type or out of range.
    """
    reader = _Reader(document, "", where)
    version = reader.take("schema_version")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise reader.error(f"schema_version is {version!r}, this version reads {SCHEMA_VERSION}")
    kinds = reader.part("kinds")
    coefficients = Coefficients(
        kinds={kind: _kind(kinds.part(kind)) for kind in DEVICE_KINDS},
        cpu=_cpu(reader.part("cpu")),
        doubt=_doubt(reader.part("doubt")),
        ready=_ready(reader.part("ready")),
    )
    kinds.done()
    learned = _learned(reader.part("learned"))
    reader.take("training")
    reader.done()
    return coefficients._replace(learned=learned)


def _learned(reader: _Reader) -> Learned:
    scales = reader.part("scales")
    ranges = reader.part("ranges")
    learned = Learned(
        tg=_correction(reader.part("tg")),
        pp=_correction(reader.part("pp")),
        scales={name: _scale(scales.part(name), name) for name in scales.names()},
        ranges=tuple(_range(ranges.part(name)) for name in NUMBERS),
    )
    ranges.done()
    reader.done()
    return learned


def _scale(reader: _Reader, kind: str) -> Scale:
    if kind not in DEVICE_KINDS:
        raise reader.error(f"learned.scales.{kind} is not a kind of device")
    scale = Scale(reader.number("bandwidth", high=1.0), reader.number("flops", high=1.0))
    reader.done()
    return scale


def _range(reader: _Reader) -> tuple[float, float]:
    low = reader.number("low", low=-100.0, high=100.0)
    high = reader.number("high", low=low, high=100.0)
    reader.done()
    return low, high


def _correction(reader: _Reader) -> Correction:
    terms, spreads = reader.part("terms"), reader.part("spreads")
    found = []
    for name in terms.names():
        factors = tuple(name.split("*"))
        if len(factors) > _MOST_FACTORS or not all(map(is_feature, factors)):
            raise terms.error(f"{name!r} is not a product of features that this version knows")
        found.append(Term(terms.number(name, low=-10.0, high=10.0), factors))
    names = spreads.names()
    if OTHER not in names:
        raise spreads.error(f"the spread {OTHER!r} is missing")
    correction = Correction(
        terms=tuple(found),
        spreads={name: spreads.number(name, low=1e-3, high=5.0) for name in names},
        multiple=reader.number("multiple", low=0.1, high=20.0),
    )
    reader.done()
    return correction


def _kind(reader: _Reader) -> KindCoefficients:
    kind = KindCoefficients(
        tg_efficiency=reader.efficiency("tg_efficiency"),
        tg_compute_efficiency=reader.efficiency("tg_compute_efficiency"),
        pp_efficiency=reader.efficiency("pp_efficiency"),
        half_batch_tokens=reader.number("half_batch_tokens", high=1e6),
        token_overhead_seconds=reader.number("token_overhead_seconds", low=1e-9, high=10.0),
        layer_overhead_seconds=reader.number("layer_overhead_seconds", high=10.0),
        expert_overhead_seconds=reader.number("expert_overhead_seconds", high=10.0),
        link_bandwidth=reader.rate("link_bandwidth"),
        link_latency_seconds=reader.number("link_latency_seconds", high=10.0),
        tg_factor_90=reader.factor("tg_factor_90"),
        pp_factor_90=reader.factor("pp_factor_90"),
        source=reader.text("source"),
    )
    reader.done()
    return kind


def _cpu(reader: _Reader) -> CpuCoefficients:
    cpu = CpuCoefficients(
        core_bandwidth_share=reader.number("core_bandwidth_share", low=1e-3, high=1.0),
        measured_bandwidth_gain=reader.efficiency("measured_bandwidth_gain"),
        repack_pp_gain=reader.factor("repack_pp_gain"),
        repack_tg_gain=reader.factor("repack_tg_gain"),
        source=reader.text("source"),
    )
    reader.done()
    return cpu


def _doubt(reader: _Reader) -> DoubtCoefficients:
    doubt = DoubtCoefficients(
        tg_residual=reader.number("tg_residual", low=1e-3, high=5.0),
        pp_residual=reader.number("pp_residual", low=1e-3, high=5.0),
        rerun_factor_90=reader.factor("rerun_factor_90"),
        guessed_factor_90=reader.factor("guessed_factor_90"),
        source=reader.text("source"),
    )
    reader.done()
    return doubt


def _ready(reader: _Reader) -> ReadyCoefficients:
    ready = ReadyCoefficients(
        disk_bandwidth=reader.rate("disk_bandwidth"),
        cache_bandwidth=reader.rate("cache_bandwidth"),
        repack_bandwidth=reader.rate("repack_bandwidth"),
        start_seconds_low=reader.number("start_seconds_low", high=600.0),
        start_seconds_high=reader.number("start_seconds_high", high=600.0),
        vocabulary_seconds_per_token=reader.number("vocabulary_seconds_per_token", high=1.0),
        source=reader.text("source"),
    )
    reader.done()
    return ready
