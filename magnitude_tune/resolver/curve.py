"""The choice over all magnitudes, and its inverse: the least magnitude that reaches a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.magnitude import MAX_MAGNITUDE
from magnitude_tune.request import Request, Settings, Target, Workload
from magnitude_tune.resolver.candidates import Table
from magnitude_tune.resolver.choose import Limits, choose
from magnitude_tune.resolver.values import CurvePoint
from magnitude_tune.throughput.values import Speed, SpeedModel
from magnitude_tune.units import format_rate, format_seconds

__all__ = ["CURVE", "TENTHS", "curve_points", "magnitude_for_target"]

TENTHS: Final = tuple(tenth / 10 for tenth in range(1, int(10 * MAX_MAGNITUDE) + 1))
"""Every magnitude that can be told apart in print."""

CURVE: Final = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.3, 3.7, 4.0, 4.4, 5.0, 6.0)
"""Where `resolve --curve` states the choice: closer together inside the safe band."""


def curve_points(
    table: Table, limits: Limits, magnitudes: Sequence[float], speed: SpeedModel, workload: Workload
) -> tuple[CurvePoint, ...]:
    """The choice at each magnitude: a filter over the priced table."""
    return tuple(_point(table, limits, m, speed, workload) for m in magnitudes)


def _point(table: Table, limits: Limits, m: float, speed: SpeedModel, workload: Workload) -> CurvePoint:
    row = choose(table, m, limits)
    if row is None:
        return CurvePoint(m, None, None, None, None, ())
    settings = table.settings(row)
    predicted = speed.speed(settings, workload)
    reserved = tuple(zip(table.pools, table.bases[row.base].reserved, strict=True))
    return CurvePoint(m, settings, predicted.turn_seconds.value, predicted.pp.value, predicted.tg.value, reserved)


def magnitude_for_target(
    request: Request, table: Table, limits: Limits, speed: SpeedModel
) -> tuple[float, tuple[Finding, ...]]:
    """The least magnitude, in tenths, that reaches the request's target.

    Where the request states a magnitude too, the target is sought up to that. A target out of reach is a finding
    that says how far this machine can go; the magnitude that goes furthest is returned.
    """
    if request.target is None:
        return request.magnitude, ()
    ceiling = request.magnitude if "magnitude" in request.sources else MAX_MAGNITUDE
    reached: list[tuple[float, float]] = []
    seen: dict[Settings, float] = {}
    for m in (*(tenth for tenth in TENTHS if tenth < ceiling - 1e-9), ceiling):
        row = choose(table, m, limits)
        if row is None:
            continue
        settings = table.settings(row)
        if settings not in seen:
            seen[settings] = _quantity(speed.speed(settings, request.workload), request.target.quantity)
        if _meets(seen[settings], request.target):
            return m, (_reached(request.target, (seen[settings], m), request),)
        reached.append((seen[settings], m))
    if not reached:
        return ceiling, ()
    best = (max if request.target.comparison == ">=" else min)(reached)
    return best[1], (_out_of_reach(request.target, best, ceiling, request),)


def _meets(value: float, target: Target) -> bool:
    return value >= target.bound if target.comparison == ">=" else value <= target.bound


def _quantity(speed: Speed, name: str) -> float:
    return {
        "pp": speed.pp,
        "tg": speed.tg,
        "ttft_seconds": speed.ttft_seconds,
        "turn_seconds": speed.turn_seconds,
        "ready_seconds": speed.ready_seconds,
    }[name].value


def _reached(target: Target, at: tuple[float, float], request: Request) -> Finding:
    value, m = at
    return Finding(
        Rule.TARGET_REACHED,
        f"target {_written(target)} is reached at magnitude {m:g}, with {_shown(target, value)} predicted",
        place=request.sources.get("target"),
        setting="target",
    )


def _out_of_reach(target: Target, best: tuple[float, float], ceiling: float, request: Request) -> Finding:
    value, m = best
    reach = "this machine goes" if ceiling >= MAX_MAGNITUDE else f"up to the magnitude asked for, {ceiling:g}, it goes"
    return Finding(
        Rule.TARGET_OUT_OF_REACH,
        f"target {_written(target)} is out of reach: {reach} to {_shown(target, value)}, at magnitude {m:g}",
        place=request.sources.get("target"),
        setting="target",
        fix="lower the target, or take a smaller model or another machine",
    )


def _written(target: Target) -> str:
    return f"{target.quantity}{target.comparison}{target.bound:g}"


def _shown(target: Target, value: float) -> str:
    return format_rate(value) if target.quantity in ("pp", "tg") else format_seconds(value)
