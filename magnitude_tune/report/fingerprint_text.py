"""A machine as a page for people: each fact, and behind it where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.report.fingerprint_details import (
    activity_rows,
    bandwidth_rows,
    limit_rows,
    memory_rows,
    processor_rows,
    system_rows,
)
from magnitude_tune.units import format_bytes

__all__ = ["fingerprint_page"]

_LABEL: Final = 17
_VALUE: Final = 46
# The sets that decide which kernels an engine picks; the whole list is in the JSON.
_SHOWN_FEATURES: Final = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sme", "v",
)  # fmt: skip


def fingerprint_page(fingerprint: Fingerprint) -> str:
    """The page of `fingerprint`: processor, memory, accelerators, engines, and what is doubtful."""
    sections = [_title(fingerprint), _cpu(fingerprint), _memory(fingerprint)]
    if fingerprint.details is not None:
        rows = (*system_rows(fingerprint.details), *activity_rows(fingerprint.details))
        sections += [["System", *(_line(*row) for row in rows)]] if rows else []
    sections += [_device(device, fingerprint) for device in fingerprint.devices]
    sections += [_engine(engine) for engine in fingerprint.engines]
    if not fingerprint.engines:
        sections.append(["Engines", "  none found"])
    if fingerprint.notes:
        sections.append(["Notes", *(line for note in fingerprint.notes for line in _note(note.message, note.fix))])
    return _printable("\n\n".join("\n".join(lines) for lines in sections))


def _title(fingerprint: Fingerprint) -> list[str]:
    origin = "stored machine" if fingerprint.stored else "this machine"
    return [fingerprint.hostname, f"  {fingerprint.system} · {origin} · {fingerprint.machine_hash}"]


def _line(label: str, value: str, source: str | None = None) -> str:
    text = f"  {label:<{_LABEL}}{value}"
    return f"{text:<{_LABEL + _VALUE}}  {source}" if source else text


def _cpu(fingerprint: Fingerprint) -> list[str]:
    cpu, details = fingerprint.cpu, fingerprint.details
    rows = [_line(*row) for row in processor_rows(details)] if details else []
    rates = [_line(*row) for row in bandwidth_rows(details)] if details else []
    sources = dict(cpu.sources)
    features = [name for name in _SHOWN_FEATURES if name in cpu.features]
    return [
        "Processor",
        _line("Name", cpu.brand or "unknown", sources.get("brand")),
        _line("Architecture", cpu.architecture),
        _line("Usable cores", str(cpu.usable_cores), "the least of the next two lines, whole cores"),
        _line("Fast cores", _fast_cores(cpu), sources.get("performance_cores") or sources.get("cores")),
        _line("CPU quota", _quota(cpu), sources.get("quota")),
        _line("Logical CPUs", _logical(cpu), sources.get("cpus")),
        *rows,
        _line("Clock", f"{cpu.max_hertz / 1e9:.2f} GHz" if cpu.max_hertz else "unknown", sources.get("max_hertz")),
        _line("Features", " ".join(features) or "unknown", sources.get("features")),
        _line("Memory bandwidth", _bandwidth(cpu.bandwidth), cpu.bandwidth.source),
        *rates,
        _line("Arithmetic", _flops(cpu.flops), cpu.flops.source),
    ]


def _fast_cores(cpu: Cpu) -> str:
    return f"{cpu.performance_cores} in the affinity of {cpu.affinity_cpus} CPUs"


def _quota(cpu: Cpu) -> str:
    return "none" if cpu.quota_cores is None else f"{cpu.quota_cores:g} cores"


def _logical(cpu: Cpu) -> str:
    smt = {True: "several per core", False: "one per core", None: "cores unknown"}[cpu.smt]
    return f"{cpu.logical_cpus}, {smt}"


def _bandwidth(fact: Fact) -> str:
    return f"{fact.value / 1e9:.1f} GB/s"


def _flops(fact: Fact) -> str:
    return f"{fact.value / 1e12:.2f} TFLOPS"


def _memory(fingerprint: Fingerprint) -> list[str]:
    memory = fingerprint.memory
    sources = dict(memory.sources)
    lines = [
        "Memory",
        _line("Total", format_bytes(memory.total_bytes), sources.get("total") or sources.get("memory")),
        _line("Available", format_bytes(memory.available_bytes), sources.get("available")),
    ]
    if memory.limit_source:
        lines.append(_line("Host's total", format_bytes(memory.host_total_bytes), "before the limit"))
    lines.append(_line("Swap", _swap(memory)))
    lines += [_line(*row) for row in limit_rows(memory)]
    if fingerprint.disk_bandwidth:
        lines.append(_line("Disk reads", _bandwidth(fingerprint.disk_bandwidth), fingerprint.disk_bandwidth.source))
    if fingerprint.details is not None:
        lines += [_line(*row) for row in memory_rows(fingerprint.details)]
    return lines


def _swap(memory: Memory) -> str:
    if memory.swap_total_bytes is None:
        return "unknown"
    if memory.swap_total_bytes == 0:
        return "none"
    free = "unknown" if memory.swap_free_bytes is None else format_bytes(memory.swap_free_bytes)
    return f"{format_bytes(memory.swap_total_bytes)}, {free} free"


def _device(device: Device, fingerprint: Fingerprint) -> list[str]:
    pool = next((pool for pool in fingerprint.pools if pool.name == device.pool), None)
    lines = [
        f"{device.name}: {device.description}",
        _line("Backend", device.backend, device.source),
        _line("Memory", f"{_size(device.total_bytes)}, {_size(device.free_bytes)} free", _pool(device, pool)),
        _line("Memory bandwidth", _bandwidth(device.bandwidth), device.bandwidth.source),
        _line("Arithmetic", _flops(device.flops), device.flops.source),
    ]
    if device.cap_bytes is not None:
        lines.append(_line("May take", format_bytes(device.cap_bytes), "the device's own limit"))
    if device.link_bandwidth:
        rate = f"{device.bus}, " if device.bus else ""
        lines.append(_line("Link to host", rate + _bandwidth(device.link_bandwidth), device.link_bandwidth.source))
    if device.compute_capability:
        lines.append(_line("Architecture", device.compute_capability))
    if device.driver or device.runtime:
        lines.append(_line("Driver", ", ".join(filter(None, (device.driver, device.runtime)))))
    if device.integrated:
        lines.append(_line("Use", "only where there is no card beside it"))
    return lines


def _size(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else format_bytes(n_bytes)


def _pool(device: Device, pool: Pool | None) -> str:
    kind = pool.kind if pool else "host"
    owners = {
        "host": "this host's RAM",
        "unified": "shared with the host",
        "card": "the card's own",
        "remote": "another host's RAM",
    }
    return f"pool {device.pool}: {owners[kind]}"


def _engine(engine: EngineFacts) -> list[str]:
    name = {"llama_cpp_python": "llama-cpp-python"}.get(engine.name, engine.name.replace("_", "-"))
    lines = [f"Engine: {name} {engine.build}", _line("File", engine.path)]
    if engine.problem:
        return [*lines, _line("Cannot be used", engine.problem)]
    lines.append(_line("ggml", engine.ggml_version or "unknown"))
    lines.append(_line("Backends", " ".join(engine.backends)))
    lines.append(_line("Offload", "yes" if engine.gpu_offload else "no: it runs on the CPU only"))
    lines.append(_line("Repacks into", " ".join(engine.extra_buffers) or "nothing", engine.extra_buffers_problem))
    for device in engine.devices:
        sizes = f"{format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"
        lines.append(_line(f"Device {device.name}", sizes, device.description))
    return lines


def _note(message: str, fix: str | None) -> Iterable[str]:
    yield f"  - {message}"
    if fix:
        yield f"    {fix}"


def _printable(text: str) -> str:
    """Without control characters: names come from files and devices that strangers made."""
    return "".join(char if char == "\n" or char.isprintable() else "?" for char in text)
