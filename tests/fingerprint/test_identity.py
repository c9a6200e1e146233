"""The name of a machine for stored measurements: what changes it and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from magnitude_tune.fingerprint.details import Details
from magnitude_tune.fingerprint.identity import machine_hash
from magnitude_tune.fingerprint.stored import load_machine
from magnitude_tune.fingerprint.values import Fact

MACHINES = Path(__file__).parent.parent / "machines"
GIB = 1 << 30
MIB = 1 << 20


def test_the_hash_names_the_machine_not_its_state():
    """Load, free memory, host name, measured rates and engines do not change it; hardware and limits do."""
    machine = load_machine(str(MACHINES / "dual-gpu.json"))
    same = (
        replace(machine, hostname="other", engines=(), notes=(), disk_bandwidth=None),
        replace(machine, memory=replace(machine.memory, available_bytes=1, swap_free_bytes=7)),
        replace(machine, memory=replace(machine.memory, total_bytes=machine.memory.total_bytes - 9 * MIB)),
        replace(machine, cpu=replace(machine.cpu, bandwidth=Fact(1.0, "measured"), affinity_cpus=3)),
        replace(machine, cpu=replace(machine.cpu, features=machine.cpu.features | {"ibrs", "ssbd"})),
        replace(machine, details=Details(load=(9.0, 9.0, 9.0), steal_share=0.5)),
        replace(machine, memory=replace(machine.memory, locked_bytes=65536)),
        replace(machine, devices=tuple(replace(device, free_bytes=0) for device in machine.devices)),
        replace(machine, devices=(*machine.devices, replace(machine.devices[0], name="RPC0", backend="rpc"))),
    )
    different = (
        replace(machine, memory=replace(machine.memory, total_bytes=machine.memory.total_bytes // 2)),
        replace(machine, memory=replace(machine.memory, address_space_bytes=8 * GIB)),
        replace(machine, memory=replace(machine.memory, address_space_bytes=4 * GIB)),
        replace(machine, cpu=replace(machine.cpu, quota_cores=2.0, usable_cores=2)),
        replace(machine, cpu=replace(machine.cpu, quota_cores=2.5, usable_cores=2)),
        replace(machine, cpu=replace(machine.cpu, features=machine.cpu.features | {"avx512f"})),
        replace(machine, cpu=replace(machine.cpu, brand="Another")),
        replace(machine, devices=machine.devices[:1]),
    )
    assert {machine_hash(other) for other in same} == {machine.machine_hash}
    hashes = {machine_hash(other) for other in different}
    assert len(hashes) == len(different)
    assert machine.machine_hash not in hashes
