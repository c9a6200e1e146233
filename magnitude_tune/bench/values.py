"""What a bench gives: the figures, the promise beside them, and what there is to say about the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from magnitude_tune.engines.values import BufferLine, MemoryReading, Sample
from magnitude_tune.findings import Finding
from magnitude_tune.observations.statistics import Summary
from magnitude_tune.observations.values import Disturbance, Measurement
from magnitude_tune.request import Settings
from magnitude_tune.throughput.values import Interval

__all__ = [
    "BenchResult",
    "Ending",
    "Progress",
    "Promise",
    "PromiseItem",
    "Quantity",
    "Report",
    "Slice",
    "Stage",
    "Taken",
    "Verdict",
]

Verdict = Literal["kept", "broken", "undecided"]
Quantity = Literal["pp", "tg", "turn_seconds", "ready_seconds", "peak_bytes"]
Stage = Literal["loading", "warming up", "measuring"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is. Seconds count from the start of its stage; rates are the medians so far, tokens/second.

    In a grid `title` says which configuration it is, and `remaining_seconds` how long the whole may still take.
    """

    stage: Stage
    elapsed_seconds: float
    budget_seconds: float
    n_samples: int = 0
    pp: float | None = None
    tg: float | None = None
    title: str = ""
    remaining_seconds: float | None = None


class Taken(NamedTuple):
    """One sample and why it is contaminated, if it is."""

    sample: Sample
    doubts: tuple[str, ...] = ()


class Ending(NamedTuple):
    """Why a process gave fewer samples than it should have: what happened, and what to do."""

    kind: Literal["interrupted", "crashed"]
    what: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one process of one configuration gave: samples in the order they were taken, contaminated ones too.

    `settings` are those that ran; `disturbance` covers the `span_seconds` from the first sample to the last;
    `repack_crash` says how the engine ended with repacked weights before it was started without them.
    """

    started_at: str
    settings: Settings
    n_prompt: int
    n_gen: int
    pp: tuple[Taken, ...]
    tg: tuple[Taken, ...]
    ready_seconds: float | None
    memory: MemoryReading | None
    buffers: tuple[BufferLine, ...]
    disturbance: Disturbance
    span_seconds: float
    ending: Ending | None = None
    repack_crash: str | None = None


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseItem:
    """One quantity: what was predicted, what was measured, and whether the promise was kept.

    Units by the quantity's name: tokens/second, seconds, bytes. `measured` is None where it was not measured. For
    `peak_bytes` the prediction is what was reserved: a bound, from 0 up to it.
    """

    quantity: Quantity
    predicted: Interval
    measured: Summary | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Promise:
    """All quantities; broken if one is, kept if all are."""

    items: tuple[PromiseItem, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all quantities."""
        verdicts = {item.verdict for item in self.items}
        if "broken" in verdicts:
            return "broken"
        return "kept" if verdicts == {"kept"} else "undecided"

    def item(self, quantity: Quantity) -> PromiseItem:
        """The item of that quantity."""
        return next(item for item in self.items if item.quantity == quantity)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One configuration, predicted and measured. `findings` are the run's own, not those of the resolution.

    `ending` is what ended the measuring early, if something did.
    """

    measurement: Measurement
    promise: Promise
    findings: tuple[Finding, ...]
    ending: Ending | None = None
