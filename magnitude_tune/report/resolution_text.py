"""A resolution as a page for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.report.resolution_json import companions_document, settings_document
from magnitude_tune.report.rows import finding_lines, rows_text
from magnitude_tune.resolver.advice import shown_magnitude
from magnitude_tune.resolver.values import CurvePoint, Resolution
from magnitude_tune.throughput.values import Interval, Speed
from magnitude_tune.units import format_bytes, format_rate, format_seconds

__all__ = ["basis_text", "curve_text", "resolution_text", "speed_text"]


def resolution_text(resolved: Resolved, *, explain: bool) -> str:
    """Model and machine, settings with their reasons, memory against budget, speed with intervals, findings."""
    resolution = resolved.resolution
    parts = [
        _title(resolved),
        _settings(resolution),
        _memory(resolution),
        _terms(resolution) if explain else "",
        speed_text(resolution.predicted),
        _magnitude(resolution),
        curve_text(resolution.curve) if resolution.curve else "",
        "\n".join(finding_lines(resolution.findings)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def basis_text(speed: Speed, interval: Interval) -> str:
    """`predicted (shipped)`, `predicted (3 runs here)`, or `measured`; where only other models ran here, that."""
    if interval.basis == "measured":
        return "measured"
    if interval.basis == "refined" and not speed.n_runs:
        return "predicted (other models here)"
    if interval.basis == "refined":
        return f"predicted ({speed.n_runs} run{'s' if speed.n_runs != 1 else ''} here)"
    return "predicted (shipped)"


def curve_text(curve: Sequence[CurvePoint]) -> str:
    """The choice at each magnitude, one row each."""
    rows: list[tuple[str, ...]] = [
        ("magnitude", "n_gpu_layers", "n_threads", "n_ubatch", "repack", "pp", "tg", "turn", "memory")
    ]
    for point in curve:
        if point.settings is None or point.turn_seconds is None or point.pp is None or point.tg is None:
            rows.append((shown_magnitude(point.magnitude), "does not fit", "", "", "", "", "", "", ""))
            continue
        settings = point.settings
        memory = ", ".join(f"{name} {format_bytes(n)}" for name, n in point.reserved_bytes if n)
        rows.append(
            (
                shown_magnitude(point.magnitude),
                str(settings.n_gpu_layers),
                f"{settings.n_threads}/{settings.n_threads_batch}",
                str(settings.n_ubatch),
                "on" if settings.repack else "off",
                format_rate(point.pp),
                format_rate(point.tg),
                format_seconds(point.turn_seconds),
                memory,
            )
        )
    return "Curve (decode/prompt threads; memory without the prompt cache)\n" + rows_text(rows, right=(0, 5, 6, 7))


def _title(resolved: Resolved) -> str:
    header, machine, engine = resolved.header, resolved.machine, resolved.engine
    cores = machine.cpu.usable_cores
    devices = "".join(f", {device.name} {device.description}" for device in machine.devices)
    lines = [
        ("model", f"{header.name or header.path}, {header.architecture}, {format_bytes(header.tensor_bytes)}"),
        ("machine", f"{machine.hostname}, {cores} usable core{'s' if cores > 1 else ''}{devices}"),
        ("engine", f"{engine.name} {engine.build}" if engine else "none found: planned as for llama-server"),
    ]
    companions = companions_document(resolved.companions) or {}
    lines += [(name, _shown(value)) for name, value in companions.items() if value not in (None, False)]
    return rows_text(lines)


def _settings(resolution: Resolution) -> str:
    document = settings_document(resolution.settings)
    rows = [(reason.setting, _shown(document[reason.setting]), reason.text) for reason in resolution.reasons]
    if resolution.settings.n_parallel > 1:
        place = [name for name, *_ in rows].index("n_parallel") + 1
        rows.insert(place, ("n_ctx_slot", _shown(resolution.settings.n_ctx_slot), "context of each slot"))
    if resolution.settings.tensor_split:
        rows.insert(
            1, ("tensor_split", _shown(document["tensor_split"]), f"layers on {', '.join(resolution.settings.devices)}")
        )
    return "Settings\n" + rows_text(rows)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _memory(resolution: Resolution) -> str:
    rows = [("pool", "reserved", "budget", "available", "total")]
    rows += [
        (
            pool.name,
            format_bytes(pool.reserved_bytes),
            format_bytes(pool.budget_bytes),
            format_bytes(pool.available_bytes),
            format_bytes(pool.total_bytes),
        )
        for pool in resolution.pools
    ]
    text = "Memory\n" + rows_text(rows, right=(1, 2, 3, 4))
    if resolution.given_up:
        text += "\n  given up: " + "; ".join(resolution.given_up)
    return text


def _terms(resolution: Resolution) -> str:
    # Imported here: a page without terms needs none of it.
    from magnitude_tune.report.terms import terms_text

    return terms_text(resolution.footprint.terms)


def speed_text(speed: Speed) -> str:
    """Every predicted figure with its interval and what it rests on."""

    def row(name: str, interval: Interval, shown: Callable[[float], str]) -> tuple[str, ...]:
        between = f"{shown(interval.low)} to {shown(interval.high)}"
        return name, shown(interval.value), between, basis_text(speed, interval)

    rows = [
        row("pp", speed.pp, format_rate),
        row("tg", speed.tg, format_rate),
        row("ttft", speed.ttft_seconds, format_seconds),
        row("turn", speed.turn_seconds, format_seconds),
        row("ready", speed.ready_seconds, format_seconds),
    ]
    return "Speed (90 % interval)\n" + rows_text(rows, right=(1,))


def _magnitude(resolution: Resolution) -> str:
    m = resolution.magnitude
    text = (
        f"Magnitude requested {shown_magnitude(m.requested)}, executed {shown_magnitude(m.executed)}, "
        f"needed {shown_magnitude(m.needed)}"
    )
    short = [pool for pool in resolution.pools if pool.executed < m.requested]
    for pool in short:
        usable = format_bytes(pool.available_bytes - pool.floor_bytes)
        text += f"\n  {pool.name}: {usable} usable now, magnitude {shown_magnitude(pool.executed)}"
    return text
