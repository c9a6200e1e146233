"""The parts of a machine's page that only `fingerprint` has: cores of each kind, caches, nodes, activity, limits."""

from __future__ import annotations

from collections.abc import Iterator

from magnitude_tune.fingerprint.details import Cache, Details, HugePages, MemoryNode, Pressure
from magnitude_tune.fingerprint.values import Memory
from magnitude_tune.units import format_bytes

__all__ = ["Row", "activity_rows", "bandwidth_rows", "limit_rows", "memory_rows", "processor_rows", "system_rows"]

Row = tuple[str, str, str | None]
"""Label, value and source of one line."""


def processor_rows(details: Details) -> Iterator[Row]:
    """Packages and cores of each kind, affinity, and caches."""
    sources = dict(details.sources)
    if details.physical_cores is not None:
        yield "All cores", _cores(details), sources.get("structure")
    if details.affinity:
        yield "Affinity", f"CPUs {details.affinity}", sources.get("affinity")
    for cache in details.caches:
        yield _cache_name(cache), _cache(cache), sources.get("caches")


def bandwidth_rows(details: Details) -> Iterator[Row]:
    """Memory bandwidth of fewer threads than all usable cores."""
    for one in details.bandwidths[:-1]:
        threads = "1 thread" if one.threads == 1 else f"{one.threads} threads"
        yield f"- {threads}", f"{one.rate.value / 1e9:.1f} GB/s", one.rate.source


def _cores(details: Details) -> str:
    parts = [f"{details.physical_cores} physical"]
    if details.packages and details.packages > 1:
        parts[0] += f" in {details.packages} packages"
    if details.efficiency_cores:
        parts.append(f"{details.efficiency_cores} of them for efficiency")
    if details.threads_per_core and details.threads_per_core > 1:
        parts.append(f"{details.threads_per_core} threads each at most")
    return ", ".join(parts)


def _cache_name(cache: Cache) -> str:
    return f"L{cache.level}d cache" if cache.kind == "data" else f"L{cache.level} cache"


def _cache(cache: Cache) -> str:
    shared = "" if cache.shared_by == 1 else f", each for {cache.shared_by} CPUs"
    return f"{cache.instances} x {format_bytes(cache.size_bytes)}{shared}"


def memory_rows(details: Details) -> Iterator[Row]:
    """Memory nodes where there are several, huge pages, and what the model lies on."""
    sources = dict(details.sources)
    if len(details.nodes) > 1:
        for node in details.nodes:
            yield f"Node {node.number}", _node(node), sources.get("nodes")
    if details.huge_pages:
        yield "Huge pages", _huge_pages(details.huge_pages), sources.get("huge_pages")
    if (under := details.filesystem) is not None:
        yield "Model lies on", f"{under.device} ({under.kind}) at {under.mount}", sources.get("filesystem")


def _node(node: MemoryNode) -> str:
    total = "unknown size" if node.total_bytes is None else format_bytes(node.total_bytes)
    free = "" if node.free_bytes is None else f", {format_bytes(node.free_bytes)} free"
    return f"{node.cores} cores, {total}{free}{'' if node.allowed else ', not for this process'}"


def _huge_pages(pages: HugePages) -> str:
    parts = [f"transparent: {pages.transparent}"] if pages.transparent else []
    if pages.reserved and pages.page_bytes:
        parts.append(f"{pages.reserved} x {format_bytes(pages.page_bytes)} reserved, {pages.free or 0} free")
    elif pages.reserved == 0:
        parts.append("none reserved")
    return ", ".join(parts) or "unknown"


def limit_rows(memory: Memory) -> Iterator[Row]:
    """What this process inherits: RLIMIT_AS and RLIMIT_MEMLOCK where they are set."""
    if memory.address_space_bytes is not None:
        yield "Address space", f"{format_bytes(memory.address_space_bytes)} at most", "RLIMIT_AS"
    if memory.locked_bytes is not None:
        yield "Locked memory", f"{format_bytes(memory.locked_bytes)} at most", "RLIMIT_MEMLOCK"


def system_rows(details: Details) -> Iterator[Row]:
    """Virtual machine, container and WSL."""
    sources = dict(details.sources)
    if details.wsl:
        yield "Runs in", "the Windows Subsystem for Linux", "/proc/version"
    if details.virtual_machine:
        kind = {"none": "no", "unknown": "yes, of a kind unknown"}.get(details.virtual_machine, details.virtual_machine)
        yield "Virtual machine", kind, sources.get("virtual_machine")
    if details.container:
        yield "Container", details.container, sources.get("container")


def activity_rows(details: Details) -> Iterator[Row]:
    """Load, stolen time and stalls at the time of reading."""
    sources = dict(details.sources)
    if details.load is not None:
        yield "Load", " ".join(f"{load:.2f}" for load in details.load) + " (1, 5, 15 min)", sources.get("load")
    if details.steal_share is not None:
        yield "Stolen time", f"{details.steal_share:.2%}", sources.get("steal_share")
    for pressure in details.pressure:
        yield f"Stalls, {pressure.resource}", _pressure(pressure), sources.get("pressure")


def _pressure(pressure: Pressure) -> str:
    full = "" if pressure.full_10s is None else f"; of all {pressure.full_10s:.1%}"
    return f"{pressure.some_10s:.1%} of 10 s, {pressure.some_60s:.1%} of 60 s{full}"
