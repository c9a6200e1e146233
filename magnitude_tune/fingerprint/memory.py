"""Host memory as this process may use it: the kernel's figures, cut by control groups."""

from __future__ import annotations

import re
from dataclasses import replace

from magnitude_tune.fingerprint import cgroups
from magnitude_tune.fingerprint.limits import inherit_limits, keep_to_nodes
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Memory

__all__ = ["limit_memory", "read_memory"]

_MEMINFO = "/proc/meminfo"


def read_memory(tree: Tree) -> Memory | None:
    """Memory in bytes; None where `/proc/meminfo` does not give a total.

    total = min(MemTotal, limits); available = min(MemAvailable, limit - (usage - inactive file pages)) over this
    group and its ancestors; before that cut to the memory nodes of a cpuset, after it to RLIMIT_AS. Kernels before
    3.14 have no MemAvailable: free pages and the page cache stand in.
    """
    lines = re.findall(r"^(\w+):\s+([0-9]{1,15}) kB", tree.text("proc/meminfo") or "", re.ASCII | re.MULTILINE)
    fields = {name: int(value) * 1024 for name, value in lines}
    total = fields.get("MemTotal", 0)
    if not total:
        return None
    available = fields.get("MemAvailable")
    source = _MEMINFO
    if available is None:
        available = sum(fields.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
        source = f"{_MEMINFO}: free, buffers and cache, for want of MemAvailable"
    memory = Memory(
        total_bytes=total,
        available_bytes=min(available, total),
        host_total_bytes=total,
        swap_total_bytes=fields.get("SwapTotal"),
        swap_free_bytes=fields.get("SwapFree"),
        sources=(("total", _MEMINFO), ("available", source)),
    )
    return inherit_limits(limit_memory(keep_to_nodes(memory, tree), cgroups.memory_limits(tree)), tree)


def limit_memory(memory: Memory, limits: tuple[cgroups.MemoryLimit, ...]) -> Memory:
    """The memory under the tightest of the limits, for total and available separately."""
    sources = dict(memory.sources)
    total, limit_source = memory.total_bytes, memory.limit_source
    available = memory.available_bytes
    for limit in limits:
        if limit.limit_bytes < total:
            total, limit_source = limit.limit_bytes, limit.source
            sources["total"] = limit.source
        if limit.available_bytes < available:
            available = limit.available_bytes
            sources["available"] = f"{limit.source} less usage that cannot be reclaimed"
    return replace(
        memory,
        total_bytes=total,
        available_bytes=min(available, total),
        limit_source=limit_source,
        sources=tuple(sources.items()),
    )
