"""What a resolution has to say besides its settings: the exact log lines, and findings about the request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.magnitude import SAFE_BAND, band
from magnitude_tune.request import Request, Settings
from magnitude_tune.resolver.candidates import Shape
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Magnitudes, PoolUse
from magnitude_tune.units import format_bytes

__all__ = ["about_context", "log_lines", "request_findings", "shown_magnitude"]

_FAST_KV_PAIRS: Final = frozenset({("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0")})


def shown_magnitude(m: float) -> str:
    """`4.0`, `4.25`: at least one decimal."""
    return f"{m:.1f}" if round(m, 1) == m else f"{m:g}"


def log_lines(
    settings: Settings, magnitudes: Magnitudes, pools: tuple[PoolUse, ...], *, free_cores: tuple[float, int]
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """The log lines of the design, and a finding where a pool or the cores are under pressure.

    `batch_size` is n_batch. Of several under pressure the line names the one that leaves least. `free_cores` are
    the cores that others leave, and all usable ones.
    """
    resolved = f"n_gpu_layers={settings.n_gpu_layers}, n_threads={settings.n_threads}, batch_size={settings.n_batch}"
    lines = [f"INFO: magnitude resolved to {resolved}", f"INFO: settings {_listed(settings)}"]
    if magnitudes.executed >= magnitudes.requested:
        return tuple(lines), ()
    pool = min(pools, key=lambda use: use.executed)
    if pool.executed <= magnitudes.executed:
        what = "VRAM" if pool.kind == "card" else "RAM"
        fix = (
            f"{format_bytes(pool.available_bytes)} of {format_bytes(pool.total_bytes)} are available in "
            f"{pool.name}: stop what else uses it, or ask for a smaller context"
        )
    else:
        what = "CPU"
        fix = f"others leave {free_cores[0]:.1f} of {free_cores[1]} cores: stop them, or wait until they are done"
    message = (
        f"magnitude scaled from {shown_magnitude(magnitudes.requested)} → "
        f"{shown_magnitude(magnitudes.executed)} due to {what} pressure"
    )
    return (*lines, f"WARN: {message}"), (Finding(Rule.PRESSURE, message, fix=fix),)


def _listed(settings: Settings) -> str:
    """Every setting, switches as words, devices only where something is offloaded."""
    values = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return ", ".join(f"{name}={_word(value)}" for name, value in values if value != ())


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def request_findings(request: Request, subject: Subject, settings: Settings, shape: Shape) -> tuple[Finding, ...]:
    """Findings about the magnitude, the context, concessions and devices."""
    return (
        *_about_magnitude(request),
        *about_context(request, subject.header, settings),
        *_about_attention(request, settings),
        *_about_kv_pair(request, subject, settings),
        *(Finding(Rule.CONCESSION, f"given up for memory: {text}") for text in shape.concessions),
        *_devices_left_out(subject),
    )


def _about_magnitude(request: Request) -> Iterator[Finding]:
    place, m = request.sources.get("magnitude"), request.magnitude
    if band(m) == "overcommit":
        yield Finding(
            Rule.OVERCOMMIT,
            f"magnitude {shown_magnitude(m)} is beyond the safe band {SAFE_BAND[0]} - {SAFE_BAND[1]}: "
            "little is left for anything else on this machine",
            place=place,
            fix=f"use at most {SAFE_BAND[1]} unless this machine has no other work",
            setting="magnitude",
        )
    elif band(m) == "light" and request.target is None:
        yield Finding(
            Rule.LIGHT_LOAD,
            f"magnitude {shown_magnitude(m)} is a light load: much of the machine stays unused",
            place=place,
            setting="magnitude",
        )


def about_context(request: Request, header: ModelHeader, settings: Settings) -> Iterator[Finding]:
    """What to say of a context beyond the trained one, or of one that had to be assumed."""
    trained = header.context_length
    # As asked for: that the engine rounds each part up is not the user's doing.
    per_slot = settings.n_ctx if settings.kv_unified else settings.n_ctx // max(1, settings.n_parallel)
    if trained is not None and per_slot > trained:
        yield Finding(
            Rule.CONTEXT_BEYOND_TRAINED,
            f"a context of {per_slot} tokens is asked for, the model was trained at {trained}",
            place=request.sources.get("n_ctx"),
            fix=f"use at most {trained}",
            setting="n_ctx",
        )
    if trained is None and request.n_ctx is None:
        yield Finding(
            Rule.CONTEXT_DEFAULTED,
            f"the model does not say its trained context: {settings.n_ctx} tokens assumed",
            fix="state n_ctx",
            setting="n_ctx",
        )


def _about_attention(request: Request, settings: Settings) -> Iterator[Finding]:
    pin = request.pin("flash_attn")
    if pin is not None and not pin.value and settings.flash_attn:
        yield Finding(
            Rule.FLASH_ATTENTION_FORCED,
            f"flash attention is on: the engine refuses a {settings.type_v} V cache without it",
            place=pin.place,
            fix="leave flash_attn unset, or set type_v: f16",
            setting="flash_attn",
        )


def _about_kv_pair(request: Request, subject: Subject, settings: Settings) -> Iterator[Finding]:
    """CUDA's default build has attention kernels for few pairs of types: any other pair is attended on the CPU."""
    pair = (settings.type_k, settings.type_v)
    backends = {device.backend for device in subject.machine.devices if device.name in settings.devices}
    if settings.flash_attn and pair not in _FAST_KV_PAIRS and backends & {"cuda", "rocm"}:
        pins = [pin for name in ("type_k", "type_v") if (pin := request.pin(name)) is not None]
        yield Finding(
            Rule.SLOW_KV_PAIR,
            f"a KV cache of {pair[0]} and {pair[1]} may move attention to the CPU: default builds for "
            f"{'/'.join(sorted(backends))} have no kernel for this pair",
            place=pins[0].place if pins else None,
            fix="use q8_0 or q4_0 for both, or f16",
            setting="type_v",
        )


def _devices_left_out(subject: Subject) -> Iterator[Finding]:
    for device in subject.machine.devices:
        pool = subject.machine.pool(device.pool)
        if pool.kind == "card" and pool.available_bytes - pool.floor_bytes <= 0:
            yield Finding(
                Rule.DEVICE_LEFT_OUT,
                f"{device.name} is left out: {format_bytes(pool.available_bytes)} of its memory are available, "
                f"{format_bytes(pool.floor_bytes)} are kept free",
                fix="stop what else uses the card",
            )
