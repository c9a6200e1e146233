"""Limits that a process inherits beside control groups: address space, locked memory, and memory nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Memory
from magnitude_tune.units import MIB, format_bytes

__all__ = ["address_space_note", "inherit_limits", "keep_to_nodes"]

_LIMITS: Final = "proc/self/limits"
_NODES: Final = "sys/devices/system/node"
_UNCOUNTED_BYTES: Final = 512 * MIB
"""A llama-server with 14 threads was measured to map 280 MB more than it ever had in memory."""


def inherit_limits(memory: Memory, tree: Tree) -> Memory:
    """The memory with the soft RLIMIT_AS and RLIMIT_MEMLOCK of this process, which an engine inherits.

    RLIMIT_AS refuses allocations beyond it, so what is available lies 512 MiB below it: libraries, stacks and arenas
    of threads take address space that no plan counts. It sets no memory aside, so the total stays, as it does
    for what other programs use: shares are taken of the memory.
    """
    text = tree.text(_LIMITS) or ""
    address_space = _soft_limit(text, "Max address space")
    memory = replace(memory, address_space_bytes=address_space, locked_bytes=_soft_limit(text, "Max locked memory"))
    if address_space is None or address_space - _UNCOUNTED_BYTES >= memory.available_bytes:
        return memory
    sources = {**dict(memory.sources), "available": f"RLIMIT_AS in /{_LIMITS}, less 512 MiB"}
    available = max(0, address_space - _UNCOUNTED_BYTES)
    return replace(memory, available_bytes=available, sources=tuple(sources.items()))


def _soft_limit(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}\s+([0-9]{{1,19}})\s", text, re.ASCII | re.MULTILINE)
    value = int(found[1]) if found else None
    return value if value is not None and value < 1 << 60 else None


def keep_to_nodes(memory: Memory, tree: Tree) -> Memory:
    """The memory of those nodes only that a cpuset lets this process allocate from, where it is not all of them.

    A group bound to one node of two is killed when that node is full, whatever the other one has free.
    """
    names = [name for name in tree.children(_NODES) if re.fullmatch(r"node[0-9]{1,5}", name)]
    if len(names) < 2:
        return memory
    allowed = tree.allowed_nodes() or frozenset()
    bound = [name for name in names if int(name[4:]) in allowed]
    if not bound or len(bound) == len(names):
        return memory
    found = [_node_memory(tree, name) for name in bound]
    total = sum(one[0] for one in found)
    if not 0 < total < memory.total_bytes:
        return memory
    source = f"/{_NODES}: nodes {', '.join(name[4:] for name in bound)} only, by the cpuset"
    available = min(memory.available_bytes, sum(one[1] for one in found), total)
    sources = {**dict(memory.sources), "total": source, "available": source}
    return replace(
        memory, total_bytes=total, available_bytes=available, limit_source=source, sources=tuple(sources.items())
    )


def _node_memory(tree: Tree, name: str) -> tuple[int, int]:
    """Total bytes of a node, and those free or taken by file pages that were not used lately."""
    text = tree.text(f"{_NODES}/{name}/meminfo") or ""
    lines = re.findall(r"(MemTotal|MemFree|Inactive\(file\)):\s+([0-9]{1,15}) kB", text, re.ASCII)
    fields = {field: int(value) * 1024 for field, value in lines}
    return fields.get("MemTotal", 0), fields.get("MemFree", 0) + fields.get("Inactive(file)", 0)


def address_space_note(memory: Memory) -> Finding | None:
    """A limit of address space below the memory: it counts mapped files and stacks too, so it ends sooner."""
    limit = memory.address_space_bytes
    if limit is None or limit >= memory.total_bytes:
        return None
    return Finding(
        Rule.MACHINE_LIMITED,
        f"this process may have {format_bytes(limit)} of address space (RLIMIT_AS), less than the memory: plans stay "
        "below that, but a mapped model file counts beside its repacked copy",
        fix="raise it with `ulimit -v unlimited` where the engine starts",
    )
