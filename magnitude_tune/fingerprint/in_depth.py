"""The details of a machine, gathered from every probe that only `fingerprint` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint import activity, bandwidth, filesystem, host, structure, virtual
from magnitude_tune.fingerprint.details import Cache, Details, Filesystem, ThreadRate
from magnitude_tune.fingerprint.topology import Topology
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Cpu, Memory

__all__ = ["Depth", "Known", "read_details"]

_UNREAD_ELSEWHERE: Final = "memory nodes, pressure, stolen time, huge pages and inherited limits"


class Depth(NamedTuple):
    """Details, and the findings they led to."""

    details: Details
    notes: tuple[Finding, ...]


class Known(NamedTuple):
    """What the fingerprint has found already: `facts` are macOS's figures, `elsewhere` where there is no `/proc`."""

    topology: Topology
    cpu: Cpu
    memory: Memory
    facts: Mapping[str, str]
    elsewhere: bool


def read_details(tree: Tree, known: Known, *, measure: bool = True, model: Path | None = None) -> Depth:
    """Everything that is worth showing and that no plan needs.

    Args:
        tree: where `/proc` and `/sys` are read.
        known: what the fingerprint has found already.
        measure: whether bandwidths may be measured; else they come from the cache or are guessed.
        model: a model file of this machine, to say what it lies on; its rate is the one in the cache.
    """
    built, caches, (machine, machine_source) = _built(tree, known)
    container, container_source = virtual.read_container(tree)
    nodes = structure.read_memory_nodes(tree, known.topology)
    load, steal = activity.read_load(tree), activity.read_steal_share(tree)
    pressure, huge = activity.read_pressure(tree), activity.read_huge_pages(tree)
    found, model_notes = _filesystem(tree, model)
    system = "the system" if known.elsewhere else None
    read = {
        "affinity": dict(known.topology.sources).get("affinity", "the system"),
        "structure": (system or "/sys/devices/system/cpu") if built.physical_cores else None,
        "caches": (system or "/sys/devices/system/cpu") if caches else None,
        "nodes": "/sys/devices/system/node" if nodes else None,
        "load": (system or "/proc/loadavg") if load else None,
        "steal_share": "/proc/stat, since boot" if steal is not None else None,
        "pressure": "/proc/pressure" if pressure else None,
        "huge_pages": "/sys/kernel/mm, /proc/meminfo" if huge else None,
        "virtual_machine": machine_source,
        "container": container_source,
        "filesystem": "/proc/self/mountinfo" if found else None,
    }
    details = Details(
        **built._asdict(),
        affinity=structure.cpu_list(known.topology.allowed),
        caches=caches,
        nodes=nodes,
        bandwidths=_bandwidths(tree, known, measure=measure),
        load=load,
        steal_share=steal,
        pressure=pressure,
        huge_pages=huge,
        virtual_machine=machine,
        container=container,
        wsl=host.is_wsl(tree),
        filesystem=found,
        sources=tuple((name, source) for name, source in read.items() if source),
    )
    return Depth(details, (*model_notes, *_system_notes(tree, known)))


def _built(tree: Tree, known: Known) -> tuple[structure.Structure, tuple[Cache, ...], tuple[str | None, str]]:
    if known.elsewhere:
        from magnitude_tune.fingerprint import elsewhere_details as elsewhere

        facts = known.facts
        return (
            elsewhere.system_structure(facts),
            elsewhere.system_caches(facts),
            elsewhere.system_virtual_machine(facts),
        )
    topology = known.topology
    return (
        structure.read_structure(tree, topology),
        structure.read_caches(tree, topology),
        virtual.read_virtual_machine(tree),
    )


def _bandwidths(tree: Tree, known: Known, *, measure: bool) -> tuple[ThreadRate, ...]:
    """One, half and all usable cores, each once; all of them is the figure that the fingerprint already has."""
    cpu, memory = known.cpu, known.memory
    cores = cpu.usable_cores
    rates = []
    for threads in sorted({1, cores // 2} - {0, cores}):
        rate = None
        if tree.live and measure:
            rate = bandwidth.measured_bandwidth(
                cpu.brand, threads, memory.total_bytes, memory.available_bytes, quick=True
            )
        elif tree.live:
            rate = bandwidth.cached_bandwidth(cpu.brand, threads, memory.total_bytes)
        rates.append(ThreadRate(threads, rate or bandwidth.guessed_bandwidth(threads)))
    return (*rates, ThreadRate(cores, cpu.bandwidth))


def _filesystem(tree: Tree, model: Path | None) -> tuple[Filesystem | None, tuple[Finding, ...]]:
    if model is None:
        return None, ()
    mount = filesystem.find_mount(model, tree)
    if mount is None:
        return None, (_unread("what the model lies on is unknown: this system lists no mounts"),)
    rate = filesystem.cached_read_rate(model, tree)
    note = filesystem.filesystem_note(mount)
    return Filesystem(mount.kind, mount.point, mount.device, rate), (note,) if note else ()


def _system_notes(tree: Tree, known: Known) -> tuple[Finding, ...]:
    """What this system has no files for."""
    if not known.elsewhere:
        return ()
    system = host.system_name(tree)
    caches = "" if known.facts else "caches, "
    return (_unread(f"on {system}, {caches}{_UNREAD_ELSEWHERE} are not read"),)


def _unread(message: str) -> Finding:
    return Finding(Rule.PROBE_FAILED, message)
