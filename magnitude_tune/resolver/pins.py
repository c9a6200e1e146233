"""Explicit settings beside the free choice: compared by effect, and pinned."""

from __future__ import annotations

from collections.abc import Mapping

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.request import Pin, Request, Settings, layers_per_device
from magnitude_tune.resolver.placements import pinned_shares
from magnitude_tune.resolver.subject import Subject

__all__ = ["mismatches", "pinned_values"]


def pinned_values(request: Request) -> Mapping[str, int | str | bool]:
    """The pinned settings by name."""
    return {pin.name: pin.value for pin in request.pins}


def mismatches(request: Request, free: Settings, runs: Settings, subject: Subject) -> tuple[Finding, ...]:
    """One finding for each pin that has another effect than the free choice, or that cannot run as it is written."""
    found: list[Finding] = []
    for pin in request.pins:
        expected, got = (_effect(pin.name, value, free, subject) for value in (getattr(free, pin.name), pin.value))
        actual = _effect(pin.name, getattr(runs, pin.name), runs, subject)
        as_written = actual == _effect(pin.name, pin.value, runs, subject)
        if expected != got:
            found.append(_mismatch(pin, expected, as_written=as_written))
        if not as_written and not (pin.name == "flash_attn" and runs.flash_attn):
            # That flash attention has to be on is said with its reason, see advice.py.
            found.append(_adjusted(pin, actual))
    return tuple(found)


def _mismatch(pin: Pin, expected: object, *, as_written: bool) -> Finding:
    keep = ", or keep it: it is used as written" if as_written else ""
    return Finding(
        Rule.MISMATCH,
        f"magnitude mismatch: expected {_shown(expected)}, got {pin.written}",
        place=pin.place,
        setting=pin.name,
        fix=f"remove {pin.name} to let the magnitude decide{keep}",
    )


def _adjusted(pin: Pin, actual: object) -> Finding:
    return Finding(
        Rule.PIN_ADJUSTED,
        f"{pin.name} cannot be {pin.written} here: {_shown(actual)} runs",
        place=pin.place,
        setting=pin.name,
        fix=f"remove {pin.name}",
    )


def _effect(name: str, value: object, beside: Settings, subject: Subject) -> object:
    """What a value comes to: every number above block_count means all layers, no batch exceeds the context."""
    if name == "n_gpu_layers" and isinstance(value, int):
        return min(value, subject.header.all_layers)
    if name in ("n_batch", "n_ubatch") and isinstance(value, int):
        return min(value, beside.n_ctx)
    if name == "n_cpu_moe" and isinstance(value, int):
        return min(value, subject.header.block_count) if subject.header.moe else 0
    if name == "tensor_split":
        return _layers(value, beside, subject)
    return value


def _layers(split: object, beside: Settings, subject: Subject) -> tuple[tuple[str, int], ...]:
    """Layers per device; of a pinned text as the engine shares them out, of settings as they are."""
    if not beside.n_gpu_layers or not subject.machine.devices:
        return ()
    if not isinstance(split, str):
        counts = beside.tensor_split or (beside.n_gpu_layers,)
        return tuple(zip(beside.devices, counts, strict=True))
    group = pinned_shares(subject.machine, split)
    counts = layers_per_device(beside.n_gpu_layers, [share for _, share in group])
    return tuple((device.name, count) for (device, _), count in zip(group, counts, strict=True))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(part[1]) if isinstance(part, tuple) else str(part) for part in value) or "none"
    return str(value)
