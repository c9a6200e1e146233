"""What was chosen, why, and what else there was."""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.findings import Finding
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.magnitude import PoolKind
from magnitude_tune.request import Settings, Workload
from magnitude_tune.throughput.values import Speed

__all__ = ["CurvePoint", "Magnitudes", "PoolUse", "Reason", "Resolution"]


class Magnitudes(NamedTuple):
    """Requested, executed (less under memory pressure) and needed (how much of the request the plan uses)."""

    requested: float
    executed: float
    needed: float


class PoolUse(NamedTuple):
    """One pool under the chosen plan, in bytes.

    `budget_bytes` is what the magnitude and the floor allow of what is there now; `executed` is less than the
    requested magnitude only where the pool is under pressure.
    """

    name: str
    kind: PoolKind
    total_bytes: int
    available_bytes: int
    floor_bytes: int
    budget_bytes: int
    reserved_bytes: int
    executed: float
    needed: float


class Reason(NamedTuple):
    """Why one setting has its value, in one sentence."""

    setting: str
    text: str


class CurvePoint(NamedTuple):
    """The choice at one magnitude; None where nothing fits at it."""

    magnitude: float
    settings: Settings | None
    turn_seconds: float | None
    pp: float | None
    tg: float | None
    reserved_bytes: tuple[tuple[str, int], ...]


class Resolution(NamedTuple):
    """One resolved request.

    `settings` is what runs (pins included); `free_settings` what would have been chosen without pins.
    `log_lines` are the exact lines of the design, without a logger's prefix beyond `INFO:` and `WARN:`.
    """

    settings: Settings
    free_settings: Settings
    magnitude: Magnitudes
    predicted: Speed
    workload: Workload
    footprint: Footprint
    pools: tuple[PoolUse, ...]
    reasons: tuple[Reason, ...]
    given_up: tuple[str, ...]
    findings: tuple[Finding, ...]
    log_lines: tuple[str, ...]
    curve: tuple[CurvePoint, ...]
    n_candidates: int
