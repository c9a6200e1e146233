"""How the processor is built: packages, cores of each kind, caches, and memory nodes. Read on demand."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.details import Cache, MemoryNode
from magnitude_tune.fingerprint.topology import Topology, cores_of, performance_cpus
from magnitude_tune.fingerprint.tree import Tree

__all__ = ["Structure", "cpu_list", "read_caches", "read_memory_nodes", "read_structure"]

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "": 1}
# Kernels number caches from index0 on; four or five is what processors have.
_MOST_INDICES: Final = 8


class Structure(NamedTuple):
    """Counts over all online CPUs; None where the kernel does not say which CPUs share a core."""

    packages: int | None
    physical_cores: int | None
    efficiency_cores: int | None
    threads_per_core: int | None


def read_structure(tree: Tree, topology: Topology) -> Structure:
    """Packages, physical cores, efficiency cores among them, and threads of the core that has most."""
    online = topology.online
    cores = cores_of(tree, online)
    packages = {tree.number(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in online} - {None}
    if topology.smt is None:
        return Structure(len(packages) or None, None, None, None)
    fast, _ = performance_cpus(tree, online)
    return Structure(
        # Boards of ARM number their one package -1.
        packages=len(packages) or None,
        physical_cores=len(set(cores.values())),
        efficiency_cores=len({cores[cpu] for cpu in online - fast}),
        threads_per_core=max(Counter(cores.values()).values(), default=1),
    )


def read_caches(tree: Tree, topology: Topology) -> tuple[Cache, ...]:
    """Data and unified caches by level, kind and size; empty where the kernel lists none.

    Each cache is read once, at the first of the CPUs that share it.
    """
    seen: dict[str, set[int]] = {}
    counts: Counter[tuple[int, str, int]] = Counter()
    widths: dict[tuple[int, str, int], int] = {}
    for cpu in sorted(topology.online):
        for index in range(_MOST_INDICES):
            if cpu in seen.setdefault(f"index{index}", set()):
                continue
            folder = f"{_CPUS}/cpu{cpu}/cache/index{index}"
            kind = (tree.word(f"{folder}/type") or "").lower()
            if not kind:
                break
            shared = tree.cpus(f"{folder}/shared_cpu_list") | {cpu}
            seen[f"index{index}"] |= shared
            level, size = tree.number(f"{folder}/level"), _size(tree.word(f"{folder}/size"))
            if kind in ("data", "unified") and level is not None and 1 <= level <= 9 and size:
                counts[level, kind, size] += 1
                widths[level, kind, size] = max(widths.get((level, kind, size), 0), len(shared & topology.online))
    return tuple(Cache(*key, counts[key], widths[key]) for key in sorted(counts))


def _size(text: str | None) -> int | None:
    found = re.fullmatch(r"([0-9]{1,9})([KM]?)", text or "", re.ASCII)
    return int(found[1]) * _UNITS[found[2]] if found else None


def read_memory_nodes(tree: Tree, topology: Topology) -> tuple[MemoryNode, ...]:
    """Every memory node, also those without CPUs; empty where the kernel lists none."""
    allowed = tree.allowed_nodes()
    nodes = []
    for name in tree.children(_NODES):
        found = re.fullmatch(r"node([0-9]{1,4})", name)
        if not found:
            continue
        number = int(found[1])
        cpus = tree.cpus(f"{_NODES}/{name}/cpulist") & topology.online
        text = tree.text(f"{_NODES}/{name}/meminfo") or ""
        lines = re.findall(r"(MemTotal|MemFree):\s+([0-9]{1,14}) kB", text, re.ASCII)
        sizes = {field: int(value) * 1024 for field, value in lines}
        nodes.append(
            MemoryNode(
                number=number,
                cores=len(set(cores_of(tree, cpus).values())),
                total_bytes=sizes.get("MemTotal"),
                free_bytes=sizes.get("MemFree"),
                allowed=allowed is None or number in allowed,
            )
        )
    return tuple(sorted(nodes))


def cpu_list(cpus: frozenset[int]) -> str:
    """CPU numbers as a kernel list: `0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
