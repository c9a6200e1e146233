"""macOS and Windows as a whole: recorded answers of `sysctl`, and psutil's, through `collect`."""

from __future__ import annotations

import sys

import pytest

from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint import copy_rate, host
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.elsewhere import read_sysctl
from magnitude_tune.fingerprint.elsewhere_details import system_caches, system_structure, system_virtual_machine
from magnitude_tune.fingerprint.tree import Tree

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

M1_PRO = """machdep.cpu.brand_string: Apple M1 Pro
hw.physicalcpu: 10
hw.logicalcpu: 10
hw.packages: 1
hw.perflevel0.physicalcpu: 8
hw.perflevel1.physicalcpu: 2
hw.memsize: 17179869184
hw.optional.arm64: 1
hw.perflevel0.l1dcachesize: 131072
hw.perflevel0.l2cachesize: 12582912
hw.perflevel0.cpusperl2: 4
hw.l1dcachesize: 65536
hw.l2cachesize: 4194304
kern.hv_vmm_present: 0
"""
INTEL_MAC = """machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
hw.physicalcpu: 6
hw.logicalcpu: 12
hw.packages: 1
hw.l1dcachesize: 32768
hw.l2cachesize: 262144
hw.l3cachesize: 12582912
kern.hv_vmm_present: 1
"""


def test_an_apple_chip_has_two_kinds_of_cores_and_its_fast_ones_caches(answers):
    """Two levels of cores; caches are those of the level that work is planned for."""
    facts = read_sysctl(answers(M1_PRO, 1, "sysctl: unknown oid 'hw.l3cachesize'"))
    assert tuple(system_structure(facts)) == (1, 10, 2, 1)
    assert [tuple(cache) for cache in system_caches(facts)] == [
        (1, "data", 128 * KIB, 8, 1),
        (2, "unified", 12 * MIB, 2, 4),
    ]
    assert system_virtual_machine(facts)[0] == "none"


def test_an_intel_mac_has_one_kind_of_core(answers):
    """Two threads a core, a shared last level, and a hypervisor where the kernel says so."""
    facts = read_sysctl(answers(INTEL_MAC))
    assert tuple(system_structure(facts)) == (1, 6, 0, 2)
    assert [tuple(cache) for cache in system_caches(facts)][-1] == (3, "unified", 12 * MIB, 1, 6)
    assert system_virtual_machine(facts)[0] == "unknown"


class Psutil:
    """What psutil says on a Windows machine of 8 cores with 16 threads and 32 GiB."""

    class Sizes:
        def __init__(self, **sizes):
            self.__dict__ |= sizes

    class Process:
        def cpu_affinity(self):
            return list(range(8))

    @staticmethod
    def cpu_count(logical=True):
        return 16 if logical else 8

    @staticmethod
    def virtual_memory():
        return Psutil.Sizes(total=32 * GIB, available=20 * GIB)

    @staticmethod
    def swap_memory():
        return Psutil.Sizes(total=8 * GIB, free=7 * GIB)


@pytest.fixture
def elsewhere(monkeypatch, answers):
    """Put a system without `/proc` in this one's place."""

    def put(system, sysctl="", psutil=None):
        monkeypatch.setattr(host, "system_name", lambda _: system)
        monkeypatch.setattr(Tree, "text", lambda *_: None)
        monkeypatch.setattr(Tree, "children", lambda *_: ())
        monkeypatch.setattr(copy_rate, "measure", lambda *_, **__: None)
        if psutil is not None:
            monkeypatch.setitem(sys.modules, "psutil", psutil)
        return answers(sysctl)

    return put


def test_windows_shows_what_psutil_says_and_notes_the_rest(elsewhere):
    """Cores within the affinity, memory and swap are read; what has no source is None and a note, never zero."""
    found = collect(run=elsewhere("Windows", psutil=Psutil), in_depth=True)
    assert (found.system, found.cpu.usable_cores, found.cpu.logical_cpus) == ("Windows", 4, 16)
    memory = found.memory
    assert (memory.total_bytes, memory.available_bytes, memory.swap_free_bytes) == (32 * GIB, 20 * GIB, 7 * GIB)
    assert (memory.address_space_bytes, memory.locked_bytes) == (None, None)
    details = found.details
    assert details is not None
    assert (details.packages, details.physical_cores, details.efficiency_cores) == (None, 8, None)
    assert (details.caches, details.nodes, details.pressure) == ((), (), ())
    assert (details.huge_pages, details.steal_share, details.virtual_machine) == (None, None, None)
    (note,) = [note for note in found.notes if "are not read" in note.message]
    assert note.rule is Rule.PROBE_FAILED
    assert note.message.startswith("on Windows, caches, memory nodes")


def test_windows_with_two_processor_groups_is_seen_whole(elsewhere):
    """B84: 128 logical CPUs in two groups are counted, though a process sees 64; plans stay within one group."""

    class TwoGroups(Psutil):
        cpu_count = staticmethod(lambda **_: 128)

    found = collect(run=elsewhere("Windows", psutil=TwoGroups))
    assert (found.cpu.logical_cpus, found.cpu.performance_cores, found.cpu.usable_cores) == (128, 128, 64)
    (note,) = [note for note in found.notes if "in one group" in note.message]
    assert "128 logical CPUs" in note.message


def test_macos_shows_what_sysctl_says_and_notes_the_rest(elsewhere):
    """Fast cores are usable, both kinds are counted, caches are known and so not in the note."""
    found = collect(run=elsewhere("Darwin", M1_PRO), in_depth=True)
    assert found.cpu.usable_cores <= 8
    details = found.details
    assert details is not None
    assert (details.physical_cores, details.efficiency_cores) == (10, 2)
    assert len(details.caches) == 2
    (note,) = [note for note in found.notes if "are not read" in note.message]
    assert note.message.startswith("on Darwin, memory nodes")
