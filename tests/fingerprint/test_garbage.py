"""Any bytes in any probed file, and any answer of any command, make a fingerprint and never an exception."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.stored import from_document, to_document
from magnitude_tune.processes import Completed
from magnitude_tune.report.fingerprint_text import fingerprint_page

FILES = (
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/version",
    "proc/self/cgroup",
    "proc/self/status",
    "proc/sys/kernel/hostname",
    "proc/device-tree/model",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/a/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory.high",
    "sys/fs/cgroup/memory.current",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "sys/fs/cgroup/memory/memory.stat",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/topology/core_id",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu0/cpu_capacity",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    "sys/devices/system/cpu/smt/active",
    "sys/devices/cpu_core/cpus",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node1/cpulist",
    "sys/devices/system/node/node1/meminfo",
    "sys/block/sda/queue/rotational",
    "sys/class/drm/card0/device/vendor",
    "sys/class/drm/card0/device/device",
    "sys/class/drm/card0/device/product_name",
    "sys/class/drm/card0/device/uevent",
    "sys/class/drm/card0/device/mem_info_vram_total",
    "sys/class/drm/card0/device/mem_info_vram_used",
    "sys/class/drm/card0/device/mem_info_gtt_total",
    "sys/class/drm/card0/device/resource",
    "sys/class/drm/card1/device/vendor",
    "sys/class/drm/card1/device/mem_info_vram_total",
    "sys/class/kfd/kfd/topology/nodes/1/properties",
    "proc/self/limits",
    "proc/self/mountinfo",
    "proc/loadavg",
    "proc/stat",
    "proc/pressure/cpu",
    "proc/pressure/memory",
    ".dockerenv",
    "run/systemd/container",
    "sys/class/dmi/id/sys_vendor",
    "sys/hypervisor/type",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/devices/system/cpu/cpu0/cache/index0/type",
    "sys/devices/system/cpu/cpu0/cache/index0/level",
    "sys/devices/system/cpu/cpu0/cache/index0/size",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu1/cpu_capacity",
    "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq",
)

NUMBER = st.integers(-(1 << 70), 1 << 70).map(lambda number: str(number).encode())
SHAPED = st.sampled_from(
    [
        b"MemTotal: 8 kB\nMemAvailable: 999999999999999 kB\n",
        b"MemTotal: 0 kB\n",
        b"model name : \x1b[2Jx\x00\nflags : avx512f\ncpu MHz : 0\n",
        b"processor : 1\nphysical id : 99999\ncore id : 3\nisa : rv64_\n",
        b"0::/../../etc\n9:memory,../x:/a\n",
        b"4:cpu,memory:/a/b/c\n",
        b"0-70000,5-2,,x\n",
        b"1 1\n",
        b"999999999999999 1\n",
        b"max\n",
        b"inactive_file 99999999999999999999\ntotal_inactive_file -5\n",
        b"hierarchical_memory_limit 1\n",
        b"Cpus_allowed_list: 9-1\n",
        "٣\n".encode(),
        b"1e9\n",
        b"Data\n",
        b"3\n",
        b"99999999M\n",
        b"Cpus_allowed_list: 0-3\nMems_allowed_list: 1,x\n",
        b"Node 1 MemTotal: 999999999999999 kB\nNode 1 MemFree: 1 kB\n",
        b"Max address space 0 0 bytes\nMax locked memory 9999999999999999999 unlimited bytes\n",
        b"Max address space 4096 unlimited bytes\n",
        b"99999999.99 1.0 2 1/2 3\n",
        b"cpu  1 2 3 4 5 6 7 99999999999999999999 9 10\n",
        b"cpu  1 2 3 4 5 6 7 8 9 10\n",
        b"some avg10=999.00 avg60=0.1.2 avg300=0.00 total=1\n",
        b"some avg10=999.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=1.00 avg300=0.00 total=7\n",
        b"CPU implementer : 0x41\nCPU part : 0xd05\nprocessor : 99999\n\nCPU part : \n",
        b"27 1 254:0 / / rw - ext4 /dev/\xff rw\n27 1 0:0 / \\999 rw - \n",
        b"\n\n\n",
        b"0x1002\n",
        b"0x8086\n",
        b"simd_count 1\ngfx_target_version 90010\nlocation_id 0\n",
    ]
)
CONTENT = st.binary(max_size=40) | NUMBER | SHAPED
LINE = st.lists(
    st.sampled_from(
        ["0", "1", "-1", "NVIDIA L4", "Orin (nvgpu)", "[N/A]", "24564", "999999999", "99", "16", "", "\x1b"]
    ),
    max_size=10,
).map(", ".join)
ANSWER = st.builds(
    Completed,
    st.sampled_from([0, 0, 0, None, 1, 127]),
    st.lists(LINE, max_size=3).map("\n".join) | st.text(),
    st.text(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(files=st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=20), answer=ANSWER)
def test_garbage_makes_a_fingerprint(tmp_path, files, answer):
    """Whatever the files and the commands say, the result hangs together, can be stored, read back and shown."""
    root = tmp_path / "machine"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    run = mock.Mock(return_value=answer)
    found = collect(root=root, run=run, in_depth=True, model=root / "model.gguf")
    assert 1 <= found.cpu.usable_cores <= found.cpu.performance_cores
    assert 0 <= found.memory.available_bytes <= found.memory.total_bytes
    assert from_document(json.loads(json.dumps(to_document(found))), "here") == replace(found, stored=True)
    page = fingerprint_page(found)
    assert all(char == "\n" or char.isprintable() for char in page)


def test_a_root_that_does_not_exist_is_an_empty_machine(tmp_path):
    """Nothing to read is nothing known: one core, no memory, and a note."""
    found = collect(root=tmp_path / "gone")
    assert found.cpu.usable_cores == 1
    assert found.notes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_or_a_folder_in_place_of_a_file_does_not_hang(tmp_path):
    """A copied tree may hold a pipe under any name: it is skipped, not waited for."""
    for name in ("proc/meminfo", "proc/self/cgroup"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    (tmp_path / "proc/cpuinfo").mkdir()
    assert collect(root=tmp_path).cpu.brand is None


def test_huge_files_are_read_in_part(tmp_path):
    """A file of any length costs at most 4 MiB."""
    path: Path = tmp_path / "proc" / "cpuinfo"
    path.parent.mkdir()
    with path.open("wb") as stream:
        stream.write(b"model name : A processor\n")
        stream.truncate(1 << 32)
    assert collect(root=tmp_path).cpu.brand == "A processor"
