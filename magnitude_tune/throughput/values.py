"""How fast a plan is, and how sure we are."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from magnitude_tune.request import Settings, Workload

__all__ = ["Basis", "Evidence", "Interval", "Speed", "SpeedModel"]

Basis = Literal["shipped", "refined", "measured"]


class Interval(NamedTuple):
    """A figure with its 90 % interval, and what it rests on."""

    value: float
    low: float
    high: float
    basis: Basis

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return self.low <= value <= self.high


class Speed(NamedTuple):
    """Rates in tokens/second, times in seconds. `n_runs`: measurements here that the figures rest on."""

    pp: Interval
    tg: Interval
    ttft_seconds: Interval
    turn_seconds: Interval
    ready_seconds: Interval
    n_runs: int = 0


class Evidence(NamedTuple):
    """One stored measurement of this model, machine and engine, as the speed model uses it.

    Rates are medians in tokens/second with their 90 % intervals, after `depth` tokens of context; `ready_seconds` is
    None where it was not measured. `same_build`: whether this build of the engine gave it, or another one.
    """

    settings: Settings
    pp: tuple[float, float, float] | None
    tg: tuple[float, float, float] | None
    ready_seconds: float | None
    depth: int = 0
    same_build: bool = True


class SpeedModel(Protocol):
    """Predicts one model on one machine with one engine: what does not depend on settings is prepared once."""

    def tg_seconds(self, settings: Settings, n_threads: int) -> float:
        """Seconds for one generated token at depth 0 with that many threads (instead of the settings' own)."""

    def pp_seconds(self, settings: Settings, n_threads_batch: int, n_prompt: int) -> float:
        """Seconds to read `n_prompt` tokens at depth 0 with that many threads."""

    def speed(self, settings: Settings, workload: Workload) -> Speed:
        """Everything, with intervals."""
