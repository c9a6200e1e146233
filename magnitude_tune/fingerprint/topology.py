"""Which CPUs there are, which this process may use, and how many real, fast cores those are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnitude_tune.fingerprint import cgroups
from magnitude_tune.fingerprint.tree import Tree, parse_cpu_list

__all__ = ["Node", "Topology", "cores_of", "performance_cpus", "read_nodes", "read_topology"]

_CPUS: Final = "sys/devices/system/cpu"
# On ARM the kernel rates each core from 0 to 1024. Little cores rate 250 to 550 and middle ones from 750, so the line
# between cores worth a thread and those that hold the others up lies between.
_PERFORMANCE_SHARE: Final = 0.6

# Clocks lie closer together: little cores reach at most three quarters of the fastest one's, middle ones more.
_CLOCK_SHARE: Final = 0.78
# Cortex-A7, A35, A53, A55, A510 and A520 (main ID register part numbers, as in their technical reference manuals).
_LITTLE_PARTS: Final = frozenset(("0xc07", "0xd04", "0xd03", "0xd05", "0xd46", "0xd80"))

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
    performance, performance_source = performance_cpus(tree, online)
    # A process bound to efficiency cores only still has those.
    fast = allowed & performance or allowed
    cores = cores_of(tree, fast)
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


def performance_cpus(tree: Tree, online: frozenset[int]) -> tuple[frozenset[int], str]:
    """CPUs that are performance cores and what says so; all of them where the machine has one kind.

    Intel's hybrids list both kinds. ARM's kernels rate each core; where they do not, the cores' part numbers tell
    little ones, and last the highest clock of each.
    """
    if fast := tree.cpus("sys/devices/cpu_core/cpus"):
        return fast, "/sys/devices/cpu_core/cpus"
    if slow := tree.cpus("sys/devices/cpu_atom/cpus"):
        return online - slow, "/sys/devices/cpu_atom/cpus"
    first = min(online)
    if tree.number(f"{_CPUS}/cpu{first}/cpu_capacity") is not None:
        return _rated(tree, online, "cpu_capacity", _PERFORMANCE_SHARE)
    if not _is_arm(tree):
        return online, _ONE_KIND
    little = online & _little_cpus(tree)
    if little and little < online:
        return online - little, "/proc/cpuinfo: part numbers of little cores"
    return _rated(tree, online, "cpufreq/cpuinfo_max_freq", _CLOCK_SHARE)


def _rated(tree: Tree, online: frozenset[int], name: str, share: float) -> tuple[frozenset[int], str]:
    """CPUs whose figure in that file is at least a share of the highest."""
    ratings = {cpu: tree.number(f"{_CPUS}/cpu{cpu}/{name}") or 0 for cpu in online}
    least = max(ratings.values()) * share
    fast = frozenset(cpu for cpu, rating in ratings.items() if rating >= least)
    return fast, name.rpartition("/")[2] if fast < online else _ONE_KIND


def _is_arm(tree: Tree) -> bool:
    if tree.live:
        return hasattr(os, "uname") and os.uname().machine.startswith(("arm", "aarch64"))
    return "CPU implementer" in (tree.text("proc/cpuinfo") or "")


def _little_cpus(tree: Tree) -> frozenset[int]:
    """CPUs whose part is one of ARM Ltd.'s little cores."""
    little = []
    for block in (tree.text("proc/cpuinfo") or "").split("\n\n"):
        fields = dict(re.findall(r"^(processor|CPU implementer|CPU part)\s*:\s*(\w{1,10})\s*$", block, re.MULTILINE))
        number = fields.get("processor", "")
        is_little = fields.get("CPU implementer") == "0x41" and fields.get("CPU part", "").lower() in _LITTLE_PARTS
        if is_little and re.fullmatch(r"[0-9]{1,5}", number, re.ASCII):
            little.append(int(number))
    return frozenset(little)


def cores_of(tree: Tree, cpus: Iterable[int]) -> dict[int, Core]:
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
            nodes.append(Node(int(found[1]), len(set(cores_of(tree, cpus).values())), total))
    return tuple(nodes)
