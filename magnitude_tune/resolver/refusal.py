"""The clear refusal: the numbers, the largest term, and the nearest request that would fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.footprint.values import FootprintModel, Term
from magnitude_tune.magnitude import MAX_MAGNITUDE, SAFE_BAND, magnitude_of_threads, share
from magnitude_tune.request import Request
from magnitude_tune.resolver.advice import shown_magnitude
from magnitude_tune.resolver.candidates import Base, Candidate, Shape, Table
from magnitude_tune.resolver.choose import Limits
from magnitude_tune.units import format_bytes, format_rate

__all__ = ["refusal"]

_CONTEXT_STEP: Final = 256


def refusal(
    table: Table,
    *,
    m: float,
    limits: Limits,
    machine: Fingerprint,
    footprint: FootprintModel,
    request: Request,
    table_for: Callable[[Shape], Table],
) -> DoesNotFitError:
    """The error for a table in which nothing is allowed at magnitude `m` under `limits`.

    `table_for` prices another shape, to look for the nearest request that fits.
    """
    least = min(table.rows, key=lambda row: (_excess(table.bases[row.base], limits), row.mu, row.n_threads))
    base = table.bases[least.base]
    if (capped := _over_its_cap(base, limits, footprint)) is not None:
        return capped
    pool_index = _binding_pool(base, limits, m, machine, table.pools)
    pool = machine.pool(table.pools[pool_index])
    needs = base.reserved[pool_index]
    budget = min(limits.pools[pool_index], share(m) * pool.total_bytes)
    if needs <= budget and least.mu > base.mu:
        return _too_many_threads(least, m, machine, request)
    terms = [term for term in footprint.footprint(base.settings).terms if term.pool == pool.name]
    largest = max(terms, key=lambda term: term.reserved_bytes)
    what = (
        f"the model does not fit at magnitude {shown_magnitude(m)}: "
        f"the smallest plan reserves {format_bytes(needs)} of {pool.name}, "
        f"{format_bytes(max(0.0, budget))} may be used "
        f"({format_bytes(pool.available_bytes)} available of {format_bytes(pool.total_bytes)}, "
        f"{format_bytes(pool.floor_bytes)} kept free); "
        f"the largest term is {largest.name} with {format_bytes(largest.reserved_bytes)}"
        f"{_from_disk(largest, budget, machine)}"
    )
    return DoesNotFitError(
        what, hint=_nearest(table, base, m, limits, table_for) or _missing(needs - budget, pool.name)
    )


def _from_disk(largest: Term, budget: float, machine: Fingerprint) -> str:
    """What mapping the file all the same would come to: the part that memory does not hold is read for every token."""
    missing = largest.reserved_bytes - max(0.0, budget)
    if largest.name != "weights" or missing <= 0 or machine.disk_bandwidth is None:
        return ""
    rate = machine.disk_bandwidth.value / missing
    return f"; mapped all the same, it would be read from the disk for every token: about {format_rate(rate)}"


def _over_its_cap(base: Base, limits: Limits, footprint: FootprintModel) -> DoesNotFitError | None:
    """The refusal where the pools would hold the plan, but a device may not take its part of them."""
    if not limits.hold_bytes(base.reserved):
        return None
    for name, needs, cap in zip(footprint.devices, base.by_device, limits.devices, strict=True):
        if needs > cap:
            return DoesNotFitError(
                f"{name} may take {format_bytes(cap)} of its memory, the plan reserves {format_bytes(needs)} there",
                hint="offload fewer layers, ask for a smaller context, or raise the device's own limit",
            )
    return None


def _too_many_threads(row: Candidate, m: float, machine: Fingerprint, request: Request) -> DoesNotFitError:
    usable = machine.cpu.usable_cores
    wanted = max(row.n_threads, row.n_threads_batch)
    mu = magnitude_of_threads(wanted, usable)
    needs = f"needs magnitude {math.ceil(10 * mu) / 10:g}" if math.isfinite(mu) else "is more than there are"
    places = [str(pin.place) for name in ("n_threads", "n_threads_batch") if (pin := request.pin(name)) is not None]
    return DoesNotFitError(
        f"{wanted} threads do not fit at magnitude {shown_magnitude(m)}: "
        f"{usable} cores are usable, and {wanted} {needs}",
        where=", ".join(places) or None,
        hint="remove n_threads and n_threads_batch there: the magnitude decides",
    )


def _excess(base: Base, limits: Limits) -> float:
    """Bytes by which a base exceeds what is free, over all pools and devices."""
    pools = sum(max(0.0, n - limit) for n, limit in zip(base.reserved, limits.pools, strict=True) if n)
    return pools + sum(max(0.0, n - limit) for n, limit in zip(base.by_device, limits.devices, strict=True))


def _binding_pool(base: Base, limits: Limits, m: float, machine: Fingerprint, pools: tuple[str, ...]) -> int:
    def over(index: int) -> float:
        if base.reserved[index] == 0:
            return -math.inf
        budget = min(limits.pools[index], share(m) * machine.pool(pools[index]).total_bytes)
        return base.reserved[index] - budget

    return max(range(len(pools)), key=over)


def _nearest(table: Table, base: Base, m: float, limits: Limits, table_for: Callable[[Shape], Table]) -> str | None:
    """The nearest request that fits: a higher magnitude, or a smaller context."""
    if limits.hold(base) and math.isfinite(base.mu) and (mu := math.ceil(10 * base.mu - 1e-6) / 10) <= MAX_MAGNITUDE:
        beyond = f" (beyond the safe band, which ends at {SAFE_BAND[1]})" if mu > SAFE_BAND[1] else ""
        return f"--magnitude {mu:g} would fit{beyond}"
    if (n_ctx := _largest_context(table.shape, m, limits, table_for)) is not None:
        return f"--n-ctx {n_ctx} would fit"
    return None


def _largest_context(shape: Shape, m: float, limits: Limits, table_for: Callable[[Shape], Table]) -> int | None:
    """The largest context below the wanted one that fits, in steps of 256 tokens a slot; bytes grow with context."""
    step = _CONTEXT_STEP * (1 if shape.kv_unified else shape.n_parallel)
    low, high = 0, (shape.n_ctx - 1) // step
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(table_for(shape._replace(n_ctx=middle * step)), m, limits):
            low = middle
        else:
            high = middle - 1
    return low * step or None


def _fits(table: Table, m: float, limits: Limits) -> bool:
    return any(base.mu <= m + 1e-9 and limits.hold(base) for base in table.bases)


def _missing(n_bytes: float, pool: str) -> str:
    memory = "memory" if pool == "ram" else f"memory of {pool}"
    return (
        f"no context fits: free {format_bytes(n_bytes)} more of {memory}, or take a smaller quantisation of the model"
    )
