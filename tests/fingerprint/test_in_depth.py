"""Details of a machine: what each probe reads, what it leaves unsaid, and what other systems have instead."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from magnitude_tune.fingerprint import collect as collecting
from magnitude_tune.fingerprint import copy_rate
from magnitude_tune.fingerprint.activity import read_huge_pages, read_load, read_pressure, read_steal_share
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.copy_rate import Measured
from magnitude_tune.fingerprint.structure import cpu_list
from magnitude_tune.fingerprint.tree import Tree, parse_cpu_list
from magnitude_tune.fingerprint.virtual import read_container, read_virtual_machine

GIB = 1 << 30
MIB = 1 << 20


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
