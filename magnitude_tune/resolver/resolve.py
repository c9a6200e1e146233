"""Which settings? One request, one model, one machine: the whole resolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.findings import Finding
from magnitude_tune.fingerprint.values import Pool
from magnitude_tune.magnitude import magnitude_of_bytes, needed, share
from magnitude_tune.request import Request, Settings
from magnitude_tune.resolver.advice import log_lines, request_findings, shown_magnitude
from magnitude_tune.resolver.candidates import Candidate, Search, Shape, Table
from magnitude_tune.resolver.choose import Limits, choose, limits_of
from magnitude_tune.resolver.concessions import conceding_shapes, wanted_shape
from magnitude_tune.resolver.curve import curve_points, magnitude_for_target
from magnitude_tune.resolver.explain import Explained, given_up, reasons
from magnitude_tune.resolver.kv_types import require_cacheable
from magnitude_tune.resolver.nearby import Nearby
from magnitude_tune.resolver.pins import mismatches, pinned_values
from magnitude_tune.resolver.pressure import Plan, executed_by_pool, executed_on_cores
from magnitude_tune.resolver.pricing import build_table
from magnitude_tune.resolver.prompt_cache import with_prompt_cache
from magnitude_tune.resolver.refusal import refusal
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Magnitudes, PoolUse, Resolution

__all__ = ["resolve"]


class _Choice(NamedTuple):
    """A row of a table, chosen at magnitude `m`."""

    table: Table
    row: Candidate
    m: float

    @property
    def settings(self) -> Settings:
        return self.table.settings(self.row)

    @property
    def plan(self) -> Plan:
        return Plan(self.settings, self.table.shape.concessions)


class _Chooser:
    """Tables by shape, priced at most once, and the choice under any magnitude and limits."""

    def __init__(self, subject: Subject, request: Request, pins: dict[str, int | str | bool]) -> None:
        self.request = request
        self.subject = subject
        self.search = Search(subject=subject, workload=request.workload, pins=pins)
        self.wanted = wanted_shape(request, subject.header)
        self._tables: dict[Shape, Table] = {}

    def table(self, shape: Shape) -> Table:
        if shape not in self._tables:
            self._tables[shape] = build_table(self.search, shape)
        return self._tables[shape]

    def choose(self, m: float, limits: Limits) -> _Choice | None:
        """The wanted shape if it fits, else the first that concedes enough."""
        for shape in (self.wanted, *conceding_shapes(self.request, self.subject.header, self.wanted)):
            table = self.table(shape)
            if (row := choose(table, m, limits)) is not None:
                return _Choice(table, row, m)
        return None

    def refuse(self, m: float, limits: Limits) -> DoesNotFitError:
        return refusal(
            build_table(self.search, self.wanted, beyond=True),
            m=m,
            limits=limits,
            machine=self.subject.machine,
            footprint=self.subject.footprint,
            request=self.request,
            table_for=self.table,
        )


def resolve(
    subject: Subject,
    request: Request,
    *,
    known: tuple[Finding, ...] = (),
    magnitudes: Sequence[float] = (),
    busy_cores: float = 0.0,
) -> Resolution:
    """Choose settings for `request`, and say why, how much they take and how fast they are.

    Args:
        known: findings about the machine, the engine and the model, to be reported with ours.
        magnitudes: where to state the curve; empty for none.
        busy_cores: cores that others keep busy. Pinned thread counts run as they are pinned all the same.

    Raises:
        DoesNotFitError: nothing that the request allows fits; with the numbers and the nearest request that would.
        UsageError: a pinned KV type that the engine refuses for this model.
    """
    require_cacheable(request, subject.header)
    pins = dict(pinned_values(request))
    busy = 0.0 if pins.keys() & {"n_threads", "n_threads_batch"} else busy_cores
    limits = limits_of(subject.machine, subject.footprint.pools, subject.footprint.devices, busy_cores=busy)
    free_chooser = _Chooser(subject, request, {})
    chooser = _Chooser(subject, request, pins) if pins else free_chooser
    m, target_findings = _magnitude(chooser, request, limits)
    choice = chooser.choose(m, limits)
    if choice is None:
        raise chooser.refuse(m, limits)
    free = choice if chooser is free_chooser else free_chooser.choose(m, limits) or choice
    settings = _final(choice, limits, subject, pins)
    if settings is None:
        raise _cache_refusal(pins, m)
    free_settings = _final(free, limits, subject, {}) or free.settings
    findings = (
        *known,
        *request.findings,
        *target_findings,
        *request_findings(replace(request, magnitude=m), subject, settings, choice.table.shape),
        *mismatches(request, free_settings, settings, subject),
    )
    return _resolution(
        chooser, choice, m=m, limits=limits, settings=settings, free=free_settings, findings=findings, at=magnitudes
    )


def _magnitude(chooser: _Chooser, request: Request, limits: Limits) -> tuple[float, tuple[Finding, ...]]:
    if request.target is None:
        return request.magnitude, ()
    return magnitude_for_target(request, chooser.table(chooser.wanted), limits, chooser.subject.speed)


def _final(choice: _Choice, limits: Limits, subject: Subject, pins: dict[str, int | str | bool]) -> Settings | None:
    """The chosen settings with checkpoints and the prompt cache, which are decided last."""
    if not subject.has_prompt_cache:
        return choice.settings
    return with_prompt_cache(choice.settings, subject, pins, m=choice.m, limits=limits)


def _cache_refusal(pins: dict[str, int | str | bool], m: float) -> DoesNotFitError:
    if "cache_ram" in pins:
        name, what = "cache_ram", f"a prompt cache of {pins['cache_ram']} MiB"
    else:
        name, what = "ctx_checkpoints", f"context checkpoints ({pins['ctx_checkpoints']} a slot)"
    verb = "does" if name == "cache_ram" else "do"
    return DoesNotFitError(
        f"{what} {verb} not fit beside the model at magnitude {shown_magnitude(m)}",
        where=name,
        hint=f"leave {name} unset: it is sized to what is left",
    )


def _resolution(
    chooser: _Chooser,
    choice: _Choice,
    *,
    m: float,
    limits: Limits,
    settings: Settings,
    free: Settings,
    findings: tuple[Finding, ...],
    at: Sequence[float],
) -> Resolution:
    subject, request, table = chooser.subject, chooser.request, choice.table

    def under(other: Limits) -> Plan | None:
        return found.plan if (found := chooser.choose(m, other)) else None

    executed = executed_by_pool(subject.machine, table.pools, m, plan=choice.plan, under=under, limits=limits)
    usable = subject.machine.cpu.usable_cores
    on_cores = executed_on_cores(usable, m, plan=choice.plan, under=under, limits=limits)
    magnitudes = Magnitudes(m, min(on_cores, *executed.values()), needed(m, choice.row.mu))
    # Without any limit everything of the wanted shape is allowed, so there always is a best.
    everything = Limits((math.inf,) * len(limits.pools), (math.inf,) * len(limits.devices))
    unlimited = choose(chooser.table(chooser.wanted), math.inf, everything) or choice.row
    best = chooser.table(chooser.wanted).settings(unlimited)
    footprint = subject.footprint.footprint(settings)
    has_cache = subject.has_prompt_cache and request.pin("cache_ram") is None
    pools = tuple(
        _pool_use(
            subject.machine.pool(name), m, footprint.reserved_of_pool(name), without_cache=base, executed=executed[name]
        )
        for name, base in zip(table.pools, table.bases[choice.row.base].reserved, strict=True)
    )
    lines, pressure = log_lines(settings, magnitudes, pools, free_cores=(limits.cores, usable))
    nearby = Nearby(subject, settings, request.workload, m, limits)
    findings = (*findings, *pressure, *nearby.one_layer_short())
    explained = Explained(
        request=replace(request, magnitude=m),
        subject=subject,
        shape=table.shape,
        settings=settings,
        best=best,
        findings=findings,
        nearby=nearby,
    )
    return Resolution(
        settings=settings,
        free_settings=free,
        magnitude=magnitudes,
        predicted=subject.speed.speed(settings, request.workload),
        workload=request.workload,
        footprint=footprint,
        pools=pools,
        reasons=reasons(explained),
        given_up=given_up(explained, has_prompt_cache=has_cache),
        findings=findings,
        log_lines=lines,
        curve=curve_points(table, limits, at, subject.speed, request.workload),
        n_candidates=len(table.rows),
    )


def _pool_use(pool: Pool, m: float, reserved: int, *, without_cache: int, executed: float) -> PoolUse:
    budget = min(share(m) * pool.total_bytes, pool.available_bytes - pool.floor_bytes)
    return PoolUse(
        name=pool.name,
        kind=pool.kind,
        total_bytes=pool.total_bytes,
        available_bytes=pool.available_bytes,
        floor_bytes=pool.floor_bytes,
        budget_bytes=max(0, math.floor(budget)),
        reserved_bytes=reserved,
        executed=executed,
        needed=needed(m, magnitude_of_bytes(without_cache, pool.total_bytes)),
    )
