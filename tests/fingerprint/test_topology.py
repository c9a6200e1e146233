"""Cores that may be used: field reports B03, B24, B60, B84 and what is near them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.host import cap_to_group
from magnitude_tune.fingerprint.topology import read_nodes, read_topology
from magnitude_tune.fingerprint.tree import Tree, parse_cpu_list

CPU = "sys/devices/system/cpu"


def cores(n_cores, threads_per_core=1, *, adjacent=True, first_cpu=0):
    """Topology files of that many cores; siblings are neighbours, or a whole package apart."""
    files = {}
    for core in range(n_cores):
        if adjacent:
            siblings = [first_cpu + core * threads_per_core + t for t in range(threads_per_core)]
        else:
            siblings = [first_cpu + core + t * n_cores for t in range(threads_per_core)]
        for cpu in siblings:
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, siblings)) + "\n"
    return files


def online(n):
    """The list of online CPUs."""
    return {f"{CPU}/online": f"0-{n - 1}\n" if n > 1 else "0\n"}


@pytest.mark.parametrize(
    ("files", "usable", "quota"),
    [
        ({**online(8), "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4, 4.0),
        ({**online(8), "sys/fs/cgroup/cpuset.cpus.effective": "0-3\n"}, 4, None),
        ({**online(8), "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3\n"}, 4, None),
        (
            {**online(8), "sys/fs/cgroup/cpu.max": "800000 100000\n", "proc/self/status": "Cpus_allowed_list:\t2-3\n"},
            2,
            8.0,
        ),
        ({**online(16), **cores(8, 2), "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2, 2.0),
    ],
    ids=["quota", "cpuset", "affinity", "quota 8 and two CPUs", "16 threads and quota 2"],
)
def test_quota_cpuset_and_affinity_cut_the_cores(grow, files, usable, quota):
    """B03: cores = min(physical cores, affinity, floor(quota / period))."""
    cpu = collect(root=grow(files)).cpu
    assert cpu.usable_cores == usable
    assert cpu.quota_cores == quota


@pytest.mark.parametrize(
    ("text", "usable", "quota"),
    [
        ("150000 100000", 1, 1.5),
        ("765000 100000", 7, 7.65),
        ("50000 100000", 1, 0.5),
        ("max 100000", 8, None),
        ("0 100000", 8, None),
        ("100000 0", 8, None),
        ("100000", 8, None),
        ("-5 100000", 8, None),
    ],
)
def test_fractional_quotas_are_kept_and_whole_cores_are_used(grow, text, usable, quota):
    """A quota of 7.65 CPUs is 7 cores, of half a CPU still one; text that is no quota is none."""
    cpu = collect(root=grow({**online(8), "sys/fs/cgroup/cpu.max": text + "\n"})).cpu
    assert (cpu.usable_cores, cpu.quota_cores) == (usable, quota)


def test_the_tightest_quota_of_all_ancestors_counts_in_both_versions(grow):
    """A parent's quota binds its children; version 1 and 2 may both be mounted."""
    v1 = "sys/fs/cgroup/cpu,cpuacct"
    root = grow(
        {
            **online(16),
            "proc/self/cgroup": "3:cpu,cpuacct:/a/b\n0::/c/d\n",
            "sys/fs/cgroup/unified/c/d/cpu.max": "1200000 100000\n",
            "sys/fs/cgroup/unified/c/cpu.max": "max 100000\n",
            f"{v1}/a/b/cpu.cfs_quota_us": "-1\n",
            f"{v1}/a/b/cpu.cfs_period_us": "100000\n",
            f"{v1}/a/cpu.cfs_quota_us": "250000\n",
            f"{v1}/a/cpu.cfs_period_us": "50000\n",
        }
    )
    cpu = collect(root=root).cpu
    assert (cpu.usable_cores, cpu.quota_cores) == (5, 5.0)
    assert dict(cpu.sources)["quota"] == f"/{v1}/a/cpu.cfs_quota_us"


@pytest.mark.parametrize(
    "files",
    [
        {
            **online(20),
            **cores(20),
            "sys/devices/cpu_core/cpus": "0-7\n",
            "sys/devices/cpu_atom/cpus": "8-19\n",
        },
        {
            **online(32),
            **cores(8, 2),
            **cores(16, first_cpu=16),
            "sys/devices/cpu_core/cpus": "0-15\n",
            "sys/devices/cpu_atom/cpus": "16-31\n",
        },
        {**online(20), "sys/devices/cpu_core/cpus": "0-7\n", "sys/devices/cpu_atom/cpus": "8-19\n"},
    ],
    ids=["20 CPUs, one thread a core", "32 CPUs, SMT on the fast cores", "no topology files"],
)
def test_hybrid_processors_count_each_performance_core_once(grow, files):
    """B24: eight cores on both boxes; not 20, 4, 16 or 32."""
    assert collect(root=grow(files)).cpu.usable_cores == 8


def test_a_process_bound_to_efficiency_cores_has_those(grow):
    """Without a single performance core in the affinity, the efficiency cores count."""
    files = {**online(20), **cores(20), "sys/devices/cpu_core/cpus": "0-7\n", "sys/devices/cpu_atom/cpus": "8-19\n"}
    root = grow({**files, "proc/self/status": "Cpus_allowed_list:\t8-11\n"})
    assert collect(root=root).cpu.usable_cores == 4


def test_little_cores_of_arm_are_left_out(grow):
    """A Tensor G1: two prime, two middle and four little cores make four."""
    ratings = [250, 250, 250, 250, 762, 762, 1024, 1024]
    files = {f"{CPU}/cpu{cpu}/cpu_capacity": f"{rating}\n" for cpu, rating in enumerate(ratings)}
    cpu = collect(root=grow({**online(8), **files})).cpu
    assert cpu.usable_cores == 4
    assert dict(cpu.sources)["performance_cores"] == "cpu_capacity"


def two_sockets(n_cores, threads):
    """Two packages whose core numbers repeat; siblings lie half the machine apart, as kernels number them."""
    files = {}
    per_thread = 2 * n_cores
    for cpu in range(per_thread * threads):
        package, core = divmod(cpu % per_thread, n_cores)
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = f"{package}\n"
        files[f"{CPU}/cpu{cpu}/topology/core_id"] = f"{core}\n"
    return {**online(per_thread * threads), **files}


def test_cores_of_two_sockets_are_told_apart(grow):
    """B60: two packages of 18 cores with two threads each are 36 cores, not 18 or 72."""
    cpu = collect(root=grow(two_sockets(18, 2))).cpu
    assert (cpu.usable_cores, cpu.logical_cpus, cpu.smt) == (36, 72, True)


def test_two_memory_nodes_suggest_one(grow):
    """B60: two nodes of 16 cores: a note names one node's cores and the command that keeps to it."""
    files = {
        **two_sockets(16, 1),
        "sys/devices/system/node/node0/cpulist": "0-15\n",
        "sys/devices/system/node/node1/cpulist": "16-31\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       33554432 kB\n",
    }
    fingerprint = collect(root=grow(files))
    note = next(note for note in fingerprint.notes if "memory nodes" in note.message)
    assert "16 cores and 32.00 GiB" in note.message
    assert note.fix is not None
    assert "numactl --cpunodebind=0 --membind=0 with 16 threads" in note.fix


def test_one_memory_node_is_no_news(grow):
    """Nodes outside the affinity do not count."""
    files = {
        **two_sockets(16, 1),
        "proc/self/status": "Cpus_allowed_list:\t0-15\n",
        "sys/devices/system/node/node0/cpulist": "0-15\n",
        "sys/devices/system/node/node1/cpulist": "16-31\n",
    }
    tree = Tree(grow(files))
    assert [node.number for node in read_nodes(tree, read_topology(tree))] == [0]
    assert not any("memory nodes" in note.message for note in collect(root=tree.root).notes)


def test_windows_schedules_in_groups_of_64():
    """B84: 128 logical CPUs in two groups are all seen; plans use one group's 64, and a note says so."""
    usable, note = cap_to_group(128, 128, windows=True)
    assert usable == 64
    assert note is not None
    assert "128 logical CPUs" in note.message
    assert cap_to_group(64, 128, windows=True) == (64, None)
    assert cap_to_group(128, 128, windows=False) == (128, None)


def test_wsl_with_256_cpus_stays_within_one_group(grow):
    """B84: 256 logical CPUs in WSL2 never lead to more than 64 threads."""
    version = "Linux version 5.15.167.4-microsoft-standard-WSL2 (gcc 11)\n"
    cpu = collect(root=grow({**online(256), "proc/version": version})).cpu
    assert (cpu.logical_cpus, cpu.usable_cores) == (256, 64)


@pytest.mark.parametrize("threads", [2, 8])
def test_siblings_are_one_core_however_they_are_numbered(grow, threads):
    """SMT2 and SMT8 (B04's 16 cores with 128 threads), siblings apart."""
    cpu = collect(root=grow({**online(16 * threads), **cores(16, threads, adjacent=False)})).cpu
    assert (cpu.usable_cores, cpu.smt) == (16, True)


def test_cpuinfo_tells_cores_where_there_is_no_topology(grow):
    """A tree with `/proc/cpuinfo` alone still counts cores."""
    blocks = [f"processor\t: {cpu}\nphysical id\t: 0\ncore id\t\t: {cpu // 2}\n" for cpu in range(8)]
    assert collect(root=grow({"proc/cpuinfo": "\n".join(blocks)})).cpu.usable_cores == 4


def test_smt_is_unknown_where_nobody_says(grow):
    """Absent is not no: without any topology SMT is None."""
    assert collect(root=grow(online(4))).cpu.smt is None
    assert collect(root=grow({**online(4), **cores(4)})).cpu.smt is False


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}),
        ("0", {0}),
        ("", set()),
        ("3-1", set()),
        ("0-2,x,5", {0, 1, 2, 5}),
        ("99999999-999999999", set()),
    ],
)
def test_cpu_lists(text, cpus):
    """Kernel lists are read, nonsense is left out, and huge numbers cost nothing."""
    assert parse_cpu_list(text) == cpus


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity to compare with")
def test_this_machines_affinity_is_used():
    """On this machine the affinity of this process counts, and cores lie within it."""
    topology = read_topology(Tree(Path("/")))
    assert topology.allowed == os.sched_getaffinity(0)
    assert 1 <= topology.performance_cores <= len(topology.allowed)
