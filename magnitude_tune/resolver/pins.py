"""Explicit settings beside the free choice: compared by effect, and pinned."""

from __future__ import annotations

from collections.abc import Mapping

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Pin, Request, Settings

__all__ = ["mismatches", "pinned_values"]


def pinned_values(request: Request) -> Mapping[str, int | str | bool]:
    """The pinned settings by name."""
    return {pin.name: pin.value for pin in request.pins}


def mismatches(request: Request, free: Settings, header: ModelHeader) -> tuple[Finding, ...]:
    """One finding for each pin that has another effect than the free choice."""
    found: list[Finding] = []
    for pin in request.pins:
        expected = _effect(pin.name, getattr(free, pin.name), free, header)
        got = _effect(pin.name, pin.value, free, header)
        if expected != got:
            found.append(_mismatch(pin, expected))
    return tuple(found)


def _mismatch(pin: Pin, expected: object) -> Finding:
    return Finding(
        Rule.MISMATCH,
        f"magnitude mismatch: expected {_shown(expected)}, got {pin.written}",
        place=pin.place,
        setting=pin.name,
        fix=f"remove {pin.name} to let the magnitude decide, or keep it: it is used as written",
    )


def _effect(name: str, value: object, free: Settings, header: ModelHeader) -> object:
    """What a value comes to: every number above block_count means all layers, no batch exceeds the context."""
    if name == "n_gpu_layers" and isinstance(value, int):
        return min(value, header.all_layers)
    if name in ("n_batch", "n_ubatch") and isinstance(value, int):
        return min(value, free.n_ctx)
    if name == "n_cpu_moe" and isinstance(value, int):
        return min(value, header.block_count) if header.moe else 0
    if name == "main_gpu" and len(free.devices) < 2:
        return 0
    if name == "tensor_split":
        written = value.split(",") if isinstance(value, str) else free.tensor_split
        return _proportions(tuple(map(float, written))) if len(free.devices) > 1 else ()
    return value


def _proportions(parts: tuple[float, ...]) -> tuple[float, ...]:
    total = sum(parts) or 1.0
    return tuple(round(part / total, 2) for part in parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
