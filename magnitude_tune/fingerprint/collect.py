"""This machine, or a copied `/proc` and `/sys`, as one fingerprint: every probe tolerant, every failure a note."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint import bandwidth, cgroups, host
from magnitude_tune.fingerprint.accelerators import read_accelerators
from magnitude_tune.fingerprint.disk import disk_bandwidth
from magnitude_tune.fingerprint.identity import machine_hash
from magnitude_tune.fingerprint.limits import address_space_note
from magnitude_tune.fingerprint.memory import read_memory
from magnitude_tune.fingerprint.processor import Processor, brand_from_library, peak_flops, read_processor
from magnitude_tune.fingerprint.runner import CommandRunner, run_command
from magnitude_tune.fingerprint.topology import Topology, read_nodes, read_topology
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Cpu, Fact, Fingerprint, Memory, Pool
from magnitude_tune.magnitude import usable_cores

__all__ = ["CommandRunner", "collect"]

_UNREADABLE: Final = Memory(
    total_bytes=1, available_bytes=0, host_total_bytes=1, sources=(("total", "unknown"), ("available", "unknown"))
)
"""Stands in for memory that no probe could read: nothing fits into it, and a note says why."""


def collect(
    *,
    root: Path = Path("/"),
    run: CommandRunner | None = None,
    cached_only: bool = False,
    in_depth: bool = False,
    model: Path | None = None,
    measure_disk: bool = False,
) -> Fingerprint:
    """Everything about the machine but its engines.

    Args:
        root: where `/proc` and `/sys` are read. A root other than `/` is another machine: neither this process's
            affinity nor this machine's commands and measurements say anything about it.
        run: runs commands such as `nvidia-smi`; where None, this machine's, and none for another root.
        cached_only: do not measure what has not been measured yet; it is guessed then.
        in_depth: also read the details that no plan needs.
        model: a model file of this machine: its disk's rate is the one measured earlier.
        measure_disk: that rate is measured now where it has not been.

    Returns:
        The fingerprint; what a probe could not say is None, or a guess that says so, with a note.
    """
    tree = Tree(root)
    facts = _elsewhere_facts(tree, run)
    notes: list[Finding] = []
    memory = read_memory(tree) or _system_memory(tree)
    if memory is None:
        memory = _UNREADABLE
        notes.append(_failed("the host's memory cannot be read: /proc/meminfo gives no total, so nothing will fit"))
    processor, topology = _processor(tree, facts)
    cpu, cpu_notes = _cpu(tree, _named(tree, run, processor), topology, memory, cached_only)
    devices, pools, device_notes = read_accelerators(tree, facts, run, memory)
    notes += [*cpu_notes, *device_notes]
    if (limit_note := address_space_note(memory)) is not None:
        notes.append(limit_note)
    if host.is_wsl(tree):
        notes.append(host.wsl_note(memory.total_bytes))
    shared = any(device.pool == HOST_POOL for device in devices)
    host_pool = Pool(HOST_POOL, "unified" if shared else "host", memory.total_bytes, memory.available_bytes)
    fingerprint = Fingerprint(
        hostname=host.host_name(tree),
        system=host.system_name(tree),
        cpu=cpu,
        memory=memory,
        pools=(host_pool, *pools),
        devices=devices,
        disk_bandwidth=disk_bandwidth(tree, model, measure=measure_disk and not cached_only),
        notes=tuple(notes),
        stored=not tree.live,
    )
    fingerprint = replace(fingerprint, machine_hash=machine_hash(fingerprint))
    if not in_depth:
        return fingerprint
    from magnitude_tune.fingerprint.in_depth import Known, read_details

    known = Known(topology, cpu, memory, facts, _is_elsewhere(tree))
    depth = read_details(tree, known, measure=not cached_only, model=model)
    return replace(fingerprint, details=depth.details, notes=(*fingerprint.notes, *depth.notes))


def _failed(message: str) -> Finding:
    return Finding(Rule.PROBE_FAILED, message)


def _is_elsewhere(tree: Tree) -> bool:
    return tree.live and host.system_name(tree) != "Linux"


def _elsewhere_facts(tree: Tree, run: CommandRunner | None) -> dict[str, str]:
    if not (tree.live and host.system_name(tree) == "Darwin"):
        return {}
    from magnitude_tune.fingerprint.elsewhere import read_sysctl

    return read_sysctl(run or run_command)


def _system_memory(tree: Tree) -> Memory | None:
    if not _is_elsewhere(tree):
        return None
    from magnitude_tune.fingerprint.elsewhere import system_memory

    return system_memory()


def _cpu(
    tree: Tree, processor: Processor, topology: Topology, memory: Memory, cached_only: bool
) -> tuple[Cpu, list[Finding]]:
    quota = cgroups.cpu_quota(tree)
    cores = usable_cores(topology.performance_cores, quota[0] if quota else None)
    windows = host.is_wsl(tree) or host.system_name(tree) == "Windows"
    cores, group_note = host.cap_to_group(cores, len(topology.online), windows=windows)
    notes = [group_note, host.node_note(read_nodes(tree, topology))]
    if processor.brand is None:
        notes.append(_failed("the processor's name is unknown"))
    rate = _bandwidth(tree, processor, cores, memory, cached_only)
    if tree.live and not cached_only and rate.source.startswith("guessed"):
        notes.append(
            _failed("memory bandwidth could not be measured, too little memory or no core is free; it is guessed")
        )
    cpu = Cpu(
        brand=processor.brand,
        architecture=host.architecture(tree, processor.architecture),
        usable_cores=cores,
        performance_cores=topology.performance_cores,
        logical_cpus=len(topology.online),
        affinity_cpus=len(topology.allowed),
        smt=topology.smt,
        quota_cores=quota[0] if quota else None,
        features=processor.features,
        max_hertz=processor.max_hertz,
        bandwidth=rate,
        flops=peak_flops(cores, processor.max_hertz, processor.features),
        sources=(*processor.sources, *topology.sources, ("quota", quota[1] if quota else "no limit")),
    )
    return cpu, [note for note in notes if note is not None]


def _processor(tree: Tree, facts: dict[str, str]) -> tuple[Processor, Topology]:
    if not _is_elsewhere(tree):
        return read_processor(tree), read_topology(tree)
    from magnitude_tune.fingerprint.elsewhere import system_processor, system_topology

    return system_processor(facts), system_topology(facts)


def _named(tree: Tree, run: CommandRunner | None, processor: Processor) -> Processor:
    """The processor with the name the library has, where the kernel has none and the machine is this one."""
    if processor.brand is not None or not tree.live:
        return processor
    brand = brand_from_library(run or run_command)
    sources = tuple((name, "py-cpuinfo" if name == "brand" else source) for name, source in processor.sources)
    return processor if brand is None else processor._replace(brand=brand, sources=sources)


def _bandwidth(tree: Tree, processor: Processor, cores: int, memory: Memory, cached_only: bool) -> Fact:
    found = None
    if tree.live and cached_only:
        found = bandwidth.cached_bandwidth(processor.brand, cores, memory.total_bytes)
    elif tree.live:
        found = bandwidth.measured_bandwidth(processor.brand, cores, memory.total_bytes, memory.available_bytes)
    return found or bandwidth.guessed_bandwidth(cores)
