"""The page of a machine: every fact on a line of its own, with its source behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fingerprint.trees import TREES, plant

from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.details import Details, Filesystem
from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.report.fingerprint_text import fingerprint_page


@pytest.fixture
def lines(tmp_path):
    """The page of a tree as lines by their labels."""

    def show(name):
        page = fingerprint_page(collect(root=plant(TREES[name], tmp_path), in_depth=True))
        return {line[2:19].strip(): line[19:] for line in page.splitlines() if line.startswith("  ")}

    return show


def test_a_server_s_page_tells_what_it_is_built_of(lines):
    """Cores, nodes, caches, huge pages, load and stalls of the two-socket server, each with where it was read."""
    page = lines("two-sockets")
    for label, said, source in (
        ("All cores", "36 physical in 2 packages, 2 threads each at most", "/sys/devices/system/cpu"),
        ("Affinity", "CPUs 0-71", "/proc/self/status"),
        ("L1d cache", "36 x 32.0 KiB, each for 2 CPUs", "/sys/devices/system/cpu"),
        ("L3 cache", "2 x 24.8 MiB, each for 36 CPUs", "/sys/devices/system/cpu"),
        ("- 18 threads", "72.0 GB/s", "guessed"),
        ("Node 1", "18 cores, 96.00 GiB, 90.00 GiB free", "/sys/devices/system/node"),
        ("Huge pages", "transparent: always, 512 x 2.0 MiB reserved, 512 free", "/proc/meminfo"),
        ("Locked memory", "64.0 MiB at most", "RLIMIT_MEMLOCK"),
        ("Virtual machine", "no", "no trace of a hypervisor"),
        ("Load", "0.10 0.20 0.30 (1, 5, 15 min)", "/proc/loadavg"),
        ("Stolen time", "0.30%", "/proc/stat"),
        ("Stalls, cpu", "1.5% of 10 s, 0.8% of 60 s", "/proc/pressure"),
    ):
        assert page[label].startswith(said), label
        assert source in page[label], label
    assert "Address space" not in page


def test_other_machines_show_what_only_they_have(lines):
    """Efficiency cores of a laptop, a limit of address space, a node that is out of reach."""
    assert "14 physical, 8 of them for efficiency, 2 threads" in lines("laptop-hybrid")["All cores"]
    bound = lines("bound-to-a-node")
    assert "40.00 GiB at most" in bound["Address space"]
    assert "not for this process" in bound["Node 0"]
    assert "not for this process" not in bound["Node 1"]


def test_wsl_and_containers_are_named(lines):
    """What runs the kernel, and what surrounds the process."""
    assert "Windows Subsystem" in lines("wsl")["Runs in"]
    assert "docker" in lines("container")["Container"]


def test_the_disk_under_a_model_is_shown(tmp_path):
    """Device, type and mount point, and the measured rate."""
    machine = collect(root=plant(TREES["wsl"], tmp_path), in_depth=True)
    under = Filesystem("ext4", "/data", "/dev/sdb1", Fact(2e9, "measured"))
    page = fingerprint_page(replace(machine, details=Details(filesystem=under), disk_bandwidth=under.read_rate))
    assert "/dev/sdb1 (ext4) at /data" in page
    assert "2.0 GB/s" in page


def test_a_machine_without_details_has_a_page(tmp_path):
    """Stored machines of earlier versions, and those that know nothing more, leave the lines out."""
    machine = collect(root=plant(TREES["two-sockets"], tmp_path))
    plain = fingerprint_page(machine)
    assert "All cores" not in plain
    assert "\nSystem" not in plain
    assert "\nSystem" not in fingerprint_page(replace(machine, details=Details()))
