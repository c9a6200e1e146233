"""What a bench gives: the figures, the promise beside them, and what there is to say about the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from magnitude_tune.findings import Finding
from magnitude_tune.observations.statistics import Summary
from magnitude_tune.observations.values import Measurement
from magnitude_tune.throughput.values import Interval

__all__ = ["BenchResult", "Progress", "Promise", "PromiseItem", "Quantity", "Report", "Stage", "Verdict"]

Verdict = Literal["kept", "broken", "undecided"]
Quantity = Literal["pp", "tg", "turn_seconds", "ready_seconds", "peak_bytes"]
Stage = Literal["loading", "warming up", "measuring"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is. Seconds count from the start of its stage; rates are the medians so far, tokens/second."""

    stage: Stage
    elapsed_seconds: float
    budget_seconds: float
    n_samples: int = 0
    pp: float | None = None
    tg: float | None = None


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
    """One configuration, predicted and measured. `findings` are the run's own, not those of the resolution."""

    measurement: Measurement
    promise: Promise
    findings: tuple[Finding, ...]
