"""Memory as control groups leave it: field report B11 and what is near it."""

from __future__ import annotations

import pytest

from magnitude_tune.fingerprint.collect import collect

GIB = 1 << 30
SENTINEL = 9223372036854771712

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"


def test_reclaimable_pages_do_not_count_as_used(grow):
    """B11: available = max - (current - inactive_file) = 6.5 GiB, not 0.5 and not the host's 50."""
    root = grow(
        {
            f"{V2}/memory.max": f"{8 * GIB}\n",
            f"{V2}/memory.current": f"{15 * GIB // 2}\n",
            f"{V2}/memory.stat": f"anon {GIB}\nfile {6 * GIB}\ninactive_file {6 * GIB}\nactive_file 0\n",
        }
    )
    memory = collect(root=root).memory
    assert memory.available_bytes == 13 * GIB // 2
    assert memory.total_bytes == 8 * GIB
    assert memory.host_total_bytes == 64 * GIB
    assert memory.limit_source == "/sys/fs/cgroup/memory.max"


@pytest.mark.parametrize(
    "files",
    [
        {f"{V2}/memory.max": "max\n", f"{V2}/memory.current": f"{GIB}\n"},
        {f"{V1}/memory.limit_in_bytes": f"{SENTINEL}\n", f"{V1}/memory.usage_in_bytes": f"{GIB}\n"},
        {f"{V1}/memory.limit_in_bytes": "9223372036854710272\n", f"{V1}/memory.usage_in_bytes": f"{GIB}\n"},
        {f"{V1}/memory.limit_in_bytes": "-1\n"},
        {},
    ],
    ids=["max", "v1 sentinel", "v1 sentinel of 64 KiB pages", "minus one", "no cgroup files"],
)
def test_no_limit_leaves_the_hosts_figures(grow, files):
    """B11: `max` and version 1's sentinel, whatever the page size, are no limit."""
    memory = collect(root=grow(files)).memory
    assert (memory.total_bytes, memory.available_bytes) == (64 * GIB, 50 * GIB)
    assert memory.limit_source is None


def test_a_small_limit_is_the_total(grow):
    """B11: a 2 GiB limit on a 64 GiB host is a 2 GiB machine."""
    fingerprint = collect(root=grow({f"{V2}/memory.max": f"{2 * GIB}\n", f"{V2}/memory.current": "0\n"}))
    assert fingerprint.memory.total_bytes == 2 * GIB
    assert fingerprint.memory.available_bytes == 2 * GIB
    assert fingerprint.host_pool.total_bytes == 2 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_ancestor_counts(grow, version):
    """B11: a limit on a parent only, tighter for total at one level and for available at another, in both versions."""
    if version == 2:
        base, limit, usage, line = V2, "memory.max", "memory.current", "0::/user/job/step\n"
    else:
        base, limit, usage, line = V1, "memory.limit_in_bytes", "memory.usage_in_bytes", "7:memory:/user/job/step\n"
    root = grow(
        {
            "proc/self/cgroup": line,
            f"{base}/user/job/step/{limit}": "max\n" if version == 2 else f"{SENTINEL}\n",
            f"{base}/user/job/step/{usage}": f"{GIB}\n",
            f"{base}/user/job/{limit}": f"{4 * GIB}\n",
            f"{base}/user/job/{usage}": f"{GIB}\n",
            f"{base}/user/{limit}": f"{16 * GIB}\n",
            f"{base}/user/{usage}": f"{14 * GIB}\n",
        }
    )
    memory = collect(root=root).memory
    assert memory.total_bytes == 4 * GIB
    assert memory.limit_source == f"/{base}/user/job/{limit}"
    assert memory.available_bytes == 2 * GIB
    assert f"/{base}/user/{limit}" in dict(memory.sources)["available"]


def test_version_1_counts_descendants_pages_and_unseen_ancestors(grow):
    """Version 1: `total_inactive_file` wins over `inactive_file`; `hierarchical_memory_limit` is a limit too."""
    root = grow(
        {
            f"{V1}/memory.limit_in_bytes": f"{SENTINEL}\n",
            f"{V1}/memory.usage_in_bytes": f"{5 * GIB}\n",
            f"{V1}/memory.stat": "inactive_file 0\n"
            f"hierarchical_memory_limit {6 * GIB}\ntotal_inactive_file {2 * GIB}\n",
        }
    )
    memory = collect(root=root).memory
    assert (memory.total_bytes, memory.available_bytes) == (6 * GIB, 3 * GIB)


def test_a_path_that_only_the_host_sees_ends_at_the_mount(grow):
    """In a container without a cgroup namespace the path names folders that are not there; the mount is the group."""
    root = grow(
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n0::/docker/abc\n",
            f"{V1}/memory.limit_in_bytes": f"{3 * GIB}\n",
            f"{V1}/memory.usage_in_bytes": f"{GIB}\n",
        }
    )
    assert collect(root=root).memory.available_bytes == 2 * GIB


def test_a_path_cannot_leave_the_tree(grow, tmp_path):
    """`..` in the path, as a process outside its namespace's root has it, does not climb out of the mount."""
    (tmp_path / "memory.max").write_text("1\n")
    root = grow({"proc/self/cgroup": "0::/../../../../..\n", f"{V2}/memory.max": f"{8 * GIB}\n"})
    assert collect(root=root).memory.total_bytes == 8 * GIB


def test_memory_high_is_a_limit(grow):
    """A group above `memory.high` is slowed down until it frees memory, so nothing is planned above it."""
    root = grow({f"{V2}/memory.max": "max\n", f"{V2}/memory.high": f"{3 * GIB}\n", f"{V2}/memory.current": f"{GIB}\n"})
    memory = collect(root=root).memory
    assert (memory.total_bytes, memory.available_bytes) == (3 * GIB, 2 * GIB)
    assert memory.limit_source == "/sys/fs/cgroup/memory.high"


def test_usage_above_the_limit_leaves_nothing(grow):
    """More used than allowed is zero available, never less than zero."""
    root = grow({f"{V2}/memory.max": f"{2 * GIB}\n", f"{V2}/memory.current": f"{3 * GIB}\n"})
    assert collect(root=root).memory.available_bytes == 0


def test_available_is_never_above_the_limit_or_the_host(grow):
    """A large limit on a busy host leaves the host's MemAvailable."""
    root = grow({f"{V2}/memory.max": f"{60 * GIB}\n", f"{V2}/memory.current": "0\n"})
    memory = collect(root=root).memory
    assert (memory.total_bytes, memory.available_bytes) == (60 * GIB, 50 * GIB)


def test_old_kernels_have_no_mem_available(grow):
    """Without MemAvailable, free pages and the page cache stand in, and the source says so."""
    meminfo = "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nBuffers: 524288 kB\nCached: 2097152 kB\nSwapTotal: 0 kB\n"
    memory = collect(root=grow({"proc/meminfo": meminfo})).memory
    assert memory.available_bytes == 7 * GIB // 2
    assert "for want of MemAvailable" in dict(memory.sources)["available"]
    assert memory.swap_total_bytes == 0
    assert memory.swap_free_bytes is None


def test_memory_that_cannot_be_read_is_said(grow):
    """Without a total nothing is guessed: nothing will fit, and a note says why."""
    fingerprint = collect(root=grow({"proc/meminfo": "MemTotal: lots\n"}))
    assert fingerprint.memory.available_bytes == 0
    assert any("memory cannot be read" in note.message for note in fingerprint.notes)
