"""Which CPUs there are, which this process may use, and how many real, fast cores those are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnitude_tune.fingerprint import cgroups
from magnitude_tune.fingerprint.tree import Tree, parse_cpu_list

__all__ = ["Node", "Topology", "read_nodes", "read_topology"]

_CPUS: Final = "sys/devices/system/cpu"
# On ARM the kernel rates each core from 0 to 1024. Little cores rate 250 to 550 and middle ones from 750, so the line
# between cores worth a thread and those that hold the others up lies between.
_PERFORMANCE_SHARE: Final = 0.6

_ONE_KIND: Final = "all cores are of one kind"

Core = tuple[object, ...]


class Topology(NamedTuple):
    """CPUs by number. `performance_cores` counts distinct physical performance cores that `allowed` reaches.

    `smt` is None where the kernel does not say which CPUs share a core.
    """

    online: frozenset[int]
    allowed: frozenset[int]
    performance_cores: int
    smt: bool | None
    sources: tuple[tuple[str, str], ...]


class Node(NamedTuple):
    """One memory node (socket, mostly) with CPUs this process may use, its cores, and its memory in bytes."""

    number: int
    cores: int
    total_bytes: int | None


def read_topology(tree: Tree) -> Topology:
    """CPUs, affinity and cores of the machine; a tree that says nothing has one CPU."""
    online, online_source = _online(tree)
    allowed, allowed_source = _allowed(tree, online)
    performance, performance_source = _performance(tree, online)
    # A process bound to efficiency cores only still has those.
    fast = allowed & performance or allowed
    cores = _cores(tree, fast)
    return Topology(
        online=online,
        allowed=allowed,
        performance_cores=len(set(cores.values())),
        smt=_smt(tree, cores),
        sources=(("cpus", online_source), ("affinity", allowed_source), ("performance_cores", performance_source)),
    )


def _online(tree: Tree) -> tuple[frozenset[int], str]:
    for name in ("online", "present", "possible"):
        if cpus := tree.cpus(f"{_CPUS}/{name}"):
            return cpus, f"/{_CPUS}/{name}"
    listed = [int(found[1]) for name in tree.children(_CPUS) if (found := re.fullmatch(r"cpu([0-9]{1,5})", name))]
    if listed:
        return frozenset(listed), f"/{_CPUS}"
    numbers = re.findall(r"^processor\s*:\s*([0-9]{1,5})\s*$", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    if numbers:
        return frozenset(map(int, numbers)), "/proc/cpuinfo"
    if tree.live:
        return frozenset(range(os.cpu_count() or 1)), "the interpreter"
    return frozenset({0}), "guessed: no list of CPUs"


def _allowed(tree: Tree, online: frozenset[int]) -> tuple[frozenset[int], str]:
    if tree.live and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0)), "affinity of this process"
    sources = []
    allowed = online
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", tree.text("proc/self/status") or "", re.MULTILINE)
    if found and (listed := parse_cpu_list(found[1]) & allowed):
        allowed, sources = listed, ["/proc/self/status"]
    if grouped := cgroups.cpuset(tree) & allowed:
        allowed, sources = grouped, [*sources, "cpuset"]
    return allowed, " and ".join(sources) or "all that are online"


def _performance(tree: Tree, online: frozenset[int]) -> tuple[frozenset[int], str]:
    """CPUs that are performance cores; all of them where the machine has one kind."""
    if fast := tree.cpus("sys/devices/cpu_core/cpus"):
        return fast, "/sys/devices/cpu_core/cpus"
    if slow := tree.cpus("sys/devices/cpu_atom/cpus"):
        return online - slow, "/sys/devices/cpu_atom/cpus"
    first = min(online)
    if tree.number(f"{_CPUS}/cpu{first}/cpu_capacity") is None:
        return online, _ONE_KIND
    ratings = {cpu: tree.number(f"{_CPUS}/cpu{cpu}/cpu_capacity") or 0 for cpu in online}
    least = max(ratings.values()) * _PERFORMANCE_SHARE
    fast = frozenset(cpu for cpu, rating in ratings.items() if rating >= least)
    return fast, "cpu_capacity" if fast < online else _ONE_KIND


def _cores(tree: Tree, cpus: Iterable[int]) -> dict[int, Core]:
    """The physical core of each CPU: its siblings, else package and core number, else itself."""
    cores: dict[int, Core] = {}
    described = None
    for cpu in sorted(cpus):
        if cpu in cores:
            continue
        folder = f"{_CPUS}/cpu{cpu}/topology"
        siblings = tree.cpus(f"{folder}/core_cpus_list") or tree.cpus(f"{folder}/thread_siblings_list")
        if cpu in siblings:
            cores.update(dict.fromkeys(siblings & frozenset(cpus), ("siblings", min(siblings))))
            continue
        core = tree.number(f"{folder}/core_id")
        if core is not None:
            cores[cpu] = ("core", tree.number(f"{folder}/physical_package_id"), core)
            continue
        described = _described_cores(tree) if described is None else described
        cores[cpu] = described.get(cpu, ("cpu", cpu))
    return cores


def _described_cores(tree: Tree) -> dict[int, Core]:
    """Cores as `/proc/cpuinfo` numbers them, for trees without a topology."""
    cores: dict[int, Core] = {}
    for block in (tree.text("proc/cpuinfo") or "").split("\n\n"):
        fields = dict(re.findall(r"^(processor|physical id|core id)\s*:\s*([0-9]{1,5})\s*$", block, re.MULTILINE))
        if "processor" in fields and "core id" in fields:
            cores[int(fields["processor"])] = ("core", fields.get("physical id"), fields["core id"])
    return cores


def _smt(tree: Tree, cores: dict[int, Core]) -> bool | None:
    if len(set(cores.values())) < len(cores):
        return True
    active = tree.number(f"{_CPUS}/smt/active")
    if active is not None:
        return active == 1
    known = any(core[0] != "cpu" for core in cores.values())
    return False if known else None


def read_nodes(tree: Tree, topology: Topology) -> tuple[Node, ...]:
    """Memory nodes with CPUs in the affinity; empty where the kernel lists none."""
    folder = "sys/devices/system/node"
    nodes = []
    for name in tree.children(folder):
        found = re.fullmatch(r"node([0-9]{1,5})", name)
        cpus = tree.cpus(f"{folder}/{name}/cpulist") & topology.allowed if found else frozenset()
        if found and cpus:
            memory = re.search(r"MemTotal:\s*([0-9]{1,15}) kB", tree.text(f"{folder}/{name}/meminfo") or "")
            total = int(memory[1]) * 1024 if memory else None
            nodes.append(Node(int(found[1]), len(set(_cores(tree, cpus).values())), total))
    return tuple(nodes)
