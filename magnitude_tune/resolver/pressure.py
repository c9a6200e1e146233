"""Pressure: a pool or the cores hold less than the magnitude would allow, and the plan is another one because of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.magnitude import executed_for_cores, executed_for_pool, is_pool_short, share
from magnitude_tune.request import Settings
from magnitude_tune.resolver.choose import Limits

__all__ = ["Plan", "PlanUnder", "differs", "executed_by_pool", "executed_on_cores"]


class Plan(NamedTuple):
    """Settings and the concessions that they rest on."""

    settings: Settings
    concessions: tuple[str, ...]


PlanUnder = Callable[[Limits], Plan | None]


def differs(plan: Plan, other: Plan) -> bool:
    """Whether two plans differ in what memory decides: GPU layers, ubatch, repacking or a concession."""
    one, two = plan.settings, other.settings
    return (one.n_gpu_layers, one.n_cpu_moe, one.n_ubatch, one.repack, plan.concessions) != (
        two.n_gpu_layers,
        two.n_cpu_moe,
        two.n_ubatch,
        two.repack,
        other.concessions,
    )


def executed_by_pool(
    machine: Fingerprint, pools: tuple[str, ...], m: float, *, plan: Plan, under: PlanUnder, limits: Limits
) -> dict[str, float]:
    """The executed magnitude of each pool: `m`, or less where the pool is under pressure.

    Args:
        pools: pool names in the order of the limits.
        m: the requested magnitude.
        plan: what was chosen under `limits`.
        under: what would be chosen under other limits.
    """
    executed: dict[str, float] = {}
    for index, name in enumerate(pools):
        pool = machine.pool(name)
        executed[name] = m
        if not is_pool_short(m, pool.total_bytes, pool.available_bytes, pool.floor_bytes):
            continue
        whole = under(limits.without_limit_on(index, pool.total_bytes, pool.floor_bytes))
        if whole is not None and differs(plan, whole):
            executed[name] = executed_for_pool(m, pool.total_bytes, pool.available_bytes - pool.floor_bytes)
    return executed


def executed_on_cores(usable: int, m: float, *, plan: Plan, under: PlanUnder, limits: Limits) -> float:
    """The executed magnitude of the cores: `m`, or less where others keep them busy and fewer threads are chosen."""
    if limits.cores >= share(m) * usable:
        return m
    idle = under(limits._replace(cores=math.inf))
    if idle is None or _threads(idle.settings) == _threads(plan.settings):
        return m
    return executed_for_cores(m, usable, usable - limits.cores)


def _threads(settings: Settings) -> tuple[int, int]:
    return settings.n_threads, settings.n_threads_batch
