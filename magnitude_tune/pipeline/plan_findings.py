"""What is to be said of settings that were written, not chosen: whether they fit, and what has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Request, Settings
from magnitude_tune.resolver.advice import about_context
from magnitude_tune.units import format_bytes

__all__ = ["about_plan", "about_room"]


def about_plan(
    request: Request, header: ModelHeader, engine: EngineFacts | None, settings: Settings
) -> Iterator[Finding]:
    """Settings that do something else than they say, and a context that the model was not trained for."""
    yield from about_context(request, header, settings)
    if settings.repack and engine is not None and engine.extra_buffers_problem:
        message = f"repack has no effect: {engine.extra_buffers_problem}"
        yield Finding(Rule.PIN_ADJUSTED, message, request.sources.get("repack"), "use --no-repack", "repack")
    if settings.n_cpu_moe and header.moe is None:
        message = f"n_cpu_moe {settings.n_cpu_moe} has no effect: the model has no experts"
        yield Finding(Rule.PIN_ADJUSTED, message, request.sources.get("n_cpu_moe"), None, "n_cpu_moe")
    if settings.n_ubatch > settings.n_batch:
        message = f"n_ubatch {settings.n_ubatch} is cut to n_batch, {settings.n_batch}"
        yield Finding(Rule.PIN_ADJUSTED, message, request.sources.get("n_ubatch"), "raise n_batch too", "n_ubatch")


def about_room(machine: Fingerprint, footprint: Footprint) -> Iterator[Finding]:
    """Each pool that does not have what the plan reserves, beside its floor."""
    for pool in machine.pools:
        terms = [term for term in footprint.terms if term.pool == pool.name]
        lacking = sum(term.reserved_bytes for term in terms) - pool.usable_bytes
        if terms and lacking > 0:
            largest = max(terms, key=lambda term: term.reserved_bytes)
            yield Finding(
                Rule.DOES_NOT_FIT,
                f"does not fit: {pool.name} lacks {format_bytes(lacking)}; the largest term is {largest.name} on"
                f" {largest.device}, {format_bytes(largest.reserved_bytes)}",
                fix=f"{pool.name} has {format_bytes(pool.available_bytes)} available, of which"
                f" {format_bytes(pool.floor_bytes)} are left free",
            )
