"""Whole machines through the console: `fingerprint --sysroot` finds the cores and the memory of each."""

from __future__ import annotations

import json
from functools import cache

import pytest
from cli.console import run
from fingerprint.trees import TREES, plant

from magnitude_tune.fingerprint.collect import collect

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The JSON that the console prints for a tree, asked once."""

    @cache
    def ask(name):
        root = plant(TREES[name], tmp_path_factory.mktemp(name))
        done = run("fingerprint", "--sysroot", root, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


@pytest.mark.parametrize(
    ("name", "usable", "total", "available"),
    [
        ("laptop-hybrid", 6, 16 * GIB - 512 * MIB, 9 * GIB),
        ("two-sockets", 36, 192 * GIB, 180 * GIB),
        ("container", 2, 8 * GIB, 13 * GIB // 2),
        ("cgroup-v1", 4, 3 * GIB, 5 * GIB // 2),
        ("arm-board", 4, 8 * GIB - 128 * MIB, 7 * GIB),
        ("arm-unrated", 4, 8 * GIB - 128 * MIB, 7 * GIB),
        ("arm-clocked", 3, 8 * GIB - 128 * MIB, 7 * GIB),
        ("wsl", 8, 31 * GIB // 2, 14 * GIB),
        ("bound-to-a-node", 18, 96 * GIB, 40 * GIB - 512 * MIB),
    ],
)
def test_a_tree_gives_its_usable_cores_and_memory(shown, name, usable, total, available):
    """Cores that a thread is worth, memory after every limit, and what of it may still be had."""
    document = shown(name)
    assert document["cpu"]["usable_cores"] == usable
    assert document["memory"]["total_bytes"] == total
    assert document["memory"]["available_bytes"] == available
    (pool,) = [pool for pool in document["pools"] if pool["name"] == "ram"]
    assert (pool["total_bytes"], pool["available_bytes"]) == (total, available)


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("laptop-hybrid", (1, 14, 8, 2)),
        ("two-sockets", (2, 36, 0, 2)),
        ("container", (1, 16, 0, 2)),
        ("arm-board", (1, 8, 4, 1)),
        ("arm-unrated", (1, 8, 4, 1)),
        ("arm-clocked", (1, 8, 5, 1)),
        ("wsl", (1, 8, 0, 2)),
        ("bound-to-a-node", (2, 36, 0, 2)),
    ],
)
def test_packages_cores_of_each_kind_and_threads(shown, name, built):
    """All cores of the machine are told, whatever the affinity and the quota leave of them."""
    details = shown(name)["details"]
    keys = ("packages", "physical_cores", "efficiency_cores", "threads_per_core")
    assert tuple(details[key] for key in keys) == built
    assert details["sources"]["structure"]


def test_caches_by_level_kind_and_size(shown):
    """Each cache is counted once; two kinds of cores have two sizes; instruction caches are left out."""
    caches = [tuple(cache.values()) for cache in shown("laptop-hybrid")["details"]["caches"]]
    kib = 1024
    assert caches == [
        (1, "data", 32 * kib, 8, 1),
        (1, "data", 48 * kib, 6, 2),
        (2, "unified", 1280 * kib, 8, 4),
        (3, "unified", 24576 * kib, 1, 20),
    ]


def test_memory_nodes_and_the_advice_for_them(shown):
    """B60: two nodes of 18 cores; a note names one node's cores and memory; a process bound to one gets no advice."""
    document = shown("two-sockets")
    nodes = [tuple(node.values()) for node in document["details"]["nodes"]]
    assert nodes == [(0, 18, 96 * GIB, 90 * GIB, True), (1, 18, 96 * GIB, 90 * GIB, True)]
    (note,) = [note for note in document["notes"] if "memory nodes" in note["message"]]
    assert "18 cores and 96.00 GiB" in note["message"]
    assert "numactl --cpunodebind=0 --membind=0 with 18 threads" in note["fix"]
    bound = shown("bound-to-a-node")
    assert not [note for note in bound["notes"] if "memory nodes" in note["message"]]
    assert [node["allowed"] for node in bound["details"]["nodes"]] == [False, True]


def test_limits_that_a_process_inherits(shown):
    """RLIMIT_AS bounds what is available with a margin, leaves the total, and is a note; RLIMIT_MEMLOCK is told."""
    document = shown("bound-to-a-node")
    memory = document["memory"]
    assert (memory["address_space_bytes"], memory["locked_bytes"]) == (40 * GIB, 64 * MIB)
    assert "RLIMIT_AS" in memory["sources"]["available"]
    assert "node" in memory["limit_source"]
    (note,) = [note for note in document["notes"] if "RLIMIT_AS" in note["message"]]
    assert "40.00 GiB" in note["message"]
    assert shown("two-sockets")["memory"]["address_space_bytes"] is None


@pytest.mark.parametrize(
    ("name", "machine", "container"),
    [
        ("laptop-hybrid", "none", None),
        ("two-sockets", "none", None),
        ("container", "amazon", "docker"),
        ("wsl", "hyper-v", None),
        ("arm-board", "none", None),
    ],
)
def test_virtual_machines_and_containers_are_named(shown, name, machine, container):
    """Firmware, the hypervisor flag and a container's own traces tell; hardware has none of them."""
    details = shown(name)["details"]
    assert (details["virtual_machine"], details["container"]) == (machine, container)
    assert details["wsl"] is (name == "wsl")


def test_activity_and_huge_pages_are_told(shown):
    """Load, stolen time as a share since boot, stalls as shares, and huge pages, with sources."""
    details = shown("two-sockets")["details"]
    assert details["load"] == [0.1, 0.2, 0.3]
    assert details["steal_share"] == pytest.approx(0.003)
    cpu, memory = details["pressure"]
    assert (cpu["resource"], cpu["some_10s"], cpu["full_10s"], cpu["some_seconds"]) == ("cpu", 0.015, None, 2.5)
    assert (memory["resource"], memory["full_10s"]) == ("memory", 0.0)
    pages = {"transparent": "always", "reserved": 512, "free": 512, "page_bytes": 2 * MIB}
    assert details["huge_pages"] == pages
    assert {"load", "steal_share", "pressure", "huge_pages"} <= set(details["sources"])


def test_bandwidth_at_one_half_and_all_cores(shown):
    """Three figures of a copied tree, all guessed and saying so, none of this machine."""
    rates = shown("two-sockets")["details"]["bandwidths"]
    assert [one["threads"] for one in rates] == [1, 18, 36]
    assert all(one["rate"]["source"].startswith("guessed") for one in rates)
    assert rates[-1]["rate"] == shown("two-sockets")["cpu"]["bandwidth"]


@pytest.mark.parametrize("name", list(TREES))
def test_a_tree_can_be_saved_and_planned_for(shown, name, tmp_path):
    """What the console prints of a tree is a machine that it reads back the same, and shows as a page."""
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(shown(name)))
    again = run("fingerprint", "--machine", path, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == shown(name)
    page = run("fingerprint", "--machine", path)
    assert page.returncode == 0
    assert "All cores" in page.stdout


BUSY = {
    "proc/loadavg": "31.00 28.00 20.00 40/900 99\n",
    "proc/stat": "cpu  900000 0 500 98000 100 0 100 70000 0 0\n",
    "proc/pressure/cpu": "some avg10=93.00 avg60=90.00 avg300=80.00 total=99999999\n",
    "proc/uptime": "12.0 1.0\n",
    "sys/fs/cgroup/memory.current": f"{8 * GIB}\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
}


@pytest.mark.parametrize("name", list(TREES))
def test_load_and_a_reboot_leave_the_hash(name, tmp_path):
    """Under load, with less free memory and after a reboot it is the same machine."""
    quiet = plant(TREES[name], tmp_path / "quiet")
    files = {**TREES[name], **BUSY}
    files["proc/meminfo"] = files["proc/meminfo"].replace("MemAvailable:   ", "MemAvailable:   1 kB\nWas: ")
    busy = plant(files, tmp_path / "busy")
    assert collect(root=busy).machine_hash == collect(root=quiet).machine_hash


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("container", {"sys/fs/cgroup/cpu.max": "250000 50000\n"}),
        ("container", {"sys/fs/cgroup/cpu.max": "260000 100000\n"}),
        ("container", {"sys/fs/cgroup/memory.max": f"{7 * GIB}\n"}),
        ("two-sockets", {"proc/self/status": "Mems_allowed_list:\t1\n"}),
        ("two-sockets", {"proc/self/status": "Cpus_allowed_list:\t0-17\n"}),
        ("two-sockets", {"proc/self/limits": TREES["bound-to-a-node"]["proc/self/limits"]}),
        ("laptop-hybrid", {"sys/devices/system/cpu/online": "0-18\n"}),
        ("laptop-hybrid", {"proc/cpuinfo": TREES["wsl"]["proc/cpuinfo"]}),
    ],
    ids=["quota", "quota by a tenth", "memory limit", "node", "affinity", "address space", "core off", "processor"],
)
def test_a_change_of_hardware_or_limits_is_another_machine(name, changed, tmp_path):
    """Each limit and each part has its say in the hash."""
    before = plant(TREES[name], tmp_path / "before")
    after = plant({**TREES[name], **changed}, tmp_path / "after")
    assert collect(root=before).machine_hash != collect(root=after).machine_hash
