"""Details of a machine: what each probe reads, what it leaves unsaid, and what other systems have instead."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint import collect as collecting
from magnitude_tune.fingerprint import copy_rate, host
from magnitude_tune.fingerprint.activity import read_huge_pages, read_load, read_pressure, read_steal_share
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.copy_rate import Measured
from magnitude_tune.fingerprint.elsewhere import read_sysctl
from magnitude_tune.fingerprint.elsewhere_details import system_caches, system_structure, system_virtual_machine
from magnitude_tune.fingerprint.structure import cpu_list
from magnitude_tune.fingerprint.tree import Tree, parse_cpu_list
from magnitude_tune.fingerprint.virtual import read_container, read_virtual_machine

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


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (
            {"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9)\n"},
            "qemu",
        ),
        ({"sys/class/dmi/id/product_name": "KVM\n", "sys/class/dmi/id/sys_vendor": "Red Hat\n"}, "kvm"),
        ({"sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"}, "vmware"),
        (
            {"sys/class/dmi/id/product_name": "VirtualBox\n", "sys/class/dmi/id/sys_vendor": "innotek GmbH\n"},
            "virtualbox",
        ),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
                "sys/class/dmi/id/product_name": "Virtual Machine\n",
            },
            "hyper-v",
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n", "sys/class/dmi/id/product_name": "Surface\n"},
            "none",
        ),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "c5.metal\n"}, "none"),
        (
            {"sys/class/dmi/id/sys_vendor": "Google\n", "sys/class/dmi/id/product_name": "Google Compute Engine\n"},
            "google",
        ),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "kvm"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor avx\n"}, "unknown"),
        ({"proc/cpuinfo": "flags\t: fpu avx\n"}, "none"),
        ({}, None),
    ],
)
def test_each_hypervisor_leaves_its_trace(grow, files, kind):
    """Firmware names, Xen's file, the device tree and the processor's flag; without any of them nothing is said."""
    assert read_virtual_machine(Tree(grow(files)))[0] == kind


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": 'engine="podman"\n'}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-1.scope\n"}, "kubernetes"),
        ({"proc/self/cgroup": "12:cpu:/docker/4f2a\n"}, "docker"),
        ({"proc/self/cgroup": "0::/user.slice/dockerlike\n"}, None),
        ({}, None),
    ],
)
def test_each_container_leaves_its_trace(grow, files, kind):
    """Files and group names tell a container; names that only look alike do not."""
    assert read_container(Tree(grow(files)))[0] == kind


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/loadavg": "\n", "proc/stat": "cpu 1 2\n", "proc/pressure/cpu": "some avg10=x\n"},
        {"proc/loadavg": "1.. 2 3 \n", "proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\n", "proc/pressure/io": "full avg10=1\n"},
        {"proc/loadavg": "nan nan nan 1\n", "proc/stat": "intr 1 2 3 4 5 6 7 8 9 10\n"},
    ],
    ids=["nothing", "short", "odd", "others"],
)
def test_activity_that_nobody_tells_is_unknown(grow, files):
    """Absent and odd files are None or empty, never zero and never an error."""
    tree = Tree(grow({"proc/meminfo": "MemTotal: 8 kB\n", **files}))
    assert read_load(tree) is None
    assert read_steal_share(tree) is None
    assert read_pressure(tree) == ()
    assert read_huge_pages(tree) is None


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3,5-6", "0-15,32-47"])
def test_cpu_lists_are_written_as_kernels_write_them(text):
    """Reading and writing a list of CPUs gives the list."""
    assert cpu_list(parse_cpu_list(text)) == text


def test_bandwidths_of_fewer_threads_are_measured_once_each(monkeypatch):
    """One, half and all usable cores, each once, with a date; the second look asks nothing."""
    asked = []

    def measure(threads, _, *, quick=False):
        asked.append((threads, quick))
        return Measured(threads * 1e10, False)

    monkeypatch.setattr(copy_rate, "measure", measure)
    monkeypatch.setattr(collecting, "usable_cores", lambda *_: 8)
    first, second = collect(in_depth=True), collect(in_depth=True)
    assert asked == [(8, False), (1, True), (4, True)]
    for found in (first, second):
        assert found.details is not None
        assert [(one.threads, one.rate.value) for one in found.details.bandwidths] == [(1, 1e10), (4, 4e10), (8, 8e10)]
        assert all(one.rate.source.startswith("measured ") for one in found.details.bandwidths)


def test_a_failed_measurement_is_not_repeated_at_once(monkeypatch):
    """Where memory or cores are too few to measure, nobody waits for it again until ten minutes later."""
    asked = []
    monkeypatch.setattr(copy_rate, "measure", lambda threads, *_, **__: asked.append(threads))
    for _ in range(3):
        assert collect().cpu.bandwidth.source.startswith("guessed")
    assert len(asked) == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 700)
    collect()
    assert len(asked) == 2


def test_planning_reads_no_details(monkeypatch):
    """Without being asked, nothing is read that no plan needs."""
    assert collect(cached_only=True).details is None
    script = (
        "import sys; from magnitude_tune.fingerprint.collect import collect; collect(cached_only=True);"
        "print([name for name in sys.modules if name.startswith('magnitude_tune.fingerprint.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for name in ("details", "in_depth", "structure", "virtual", "activity", "read_rate", "copy_rate", "schema"):
        assert f"'magnitude_tune.fingerprint.{name}'" not in done.stdout


LIMITED = """
import os, resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), hard))
os.execv(sys.executable, [sys.executable, "-m", "magnitude_tune", "fingerprint", "--json"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is read from /proc")
def test_this_process_s_own_limit_is_read():
    """`ulimit -v` in the shell that calls us bounds what is available, and makes another machine of it."""
    limit = 2 * GIB
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    memory = document["memory"]
    assert memory["address_space_bytes"] == limit
    assert memory["available_bytes"] <= limit - 512 * MIB
    unlimited = collect(cached_only=True)
    if unlimited.memory.address_space_bytes is None:
        assert document["hash"] != unlimited.machine_hash
        assert memory["total_bytes"] == unlimited.memory.total_bytes
