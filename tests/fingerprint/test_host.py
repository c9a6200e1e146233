"""What kind of system it is: field reports B50 and B69, and the processor's facts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.processor import brand_from_library, peak_flops, read_processor
from magnitude_tune.fingerprint.tree import Tree

GIB = 1 << 30


def test_wsl_plans_with_its_own_memory(grow):
    """B50: WSL's MemTotal of 15.5 GiB is the machine, and a note says what raises it."""
    meminfo = f"MemTotal: {31 * (1 << 20) // 2} kB\nMemAvailable: {12 << 20} kB\n"
    version = "Linux version 5.15.167.4-microsoft-standard-WSL2\n"
    fingerprint = collect(root=grow({"proc/meminfo": meminfo, "proc/version": version}))
    assert fingerprint.host_pool.total_bytes == 31 * GIB // 2
    (note,) = [note for note in fingerprint.notes if note.rule is Rule.MACHINE_LIMITED]
    assert "15.50 GiB" in note.message
    assert note.fix is not None
    assert ".wslconfig" in note.fix


def test_an_ordinary_linux_has_no_wsl_note(grow):
    """Only Microsoft's kernel is WSL."""
    fingerprint = collect(root=grow({"proc/version": "Linux version 6.12.9 (gcc 14)\n", "proc/cpuinfo": XEON}))
    assert fingerprint.notes == ()


XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor @ 2.60GHz
cpu MHz\t\t: 2599.998
flags\t\t: fpu SSE2 avx fma avx2 avx512f amx_int8
"""
PI = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\nModel\t\t: Raspberry Pi 5\n"
UNKNOWN_ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x99\nCPU part\t: 0x1\n"
RISCV = "processor\t: 0\nisa\t\t: rv64imafdcv_zicsr_zvfh\nuarch\t\t: spacemit,x60\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"proc/cpuinfo": XEON}, ("Intel(R) Xeon(R) Processor @ 2.60GHz", "x86_64", "sse2", 2.6e9)),
        ({"proc/cpuinfo": PI}, ("ARM Cortex-A76", "aarch64", "asimd", None)),
        (
            {"proc/cpuinfo": UNKNOWN_ARM, "proc/device-tree/model": "Radxa Dragon Q8B\0"},
            ("Radxa Dragon Q8B", "aarch64", "asimd", None),
        ),
        ({"proc/cpuinfo": RISCV}, ("spacemit,x60", "riscv64", "zvfh", None)),
        ({"proc/cpuinfo": UNKNOWN_ARM}, (None, "aarch64", "asimd", None)),
        ({}, (None, None, None, None)),
    ],
    ids=["x86", "arm part", "device tree", "risc-v", "unknown arm", "nothing"],
)
def test_the_kernel_names_the_processor(grow, files, said):
    """Brand, architecture, features and clock come from the kernel; what it does not say is None, never an error."""
    processor = read_processor(Tree(grow(files)))
    brand, architecture, feature, hertz = said
    assert (processor.brand, processor.architecture, processor.max_hertz) == (brand, architecture, hertz)
    assert feature is None or feature in processor.features


def test_cpufreq_knows_the_highest_clock(grow):
    """cpufreq's maximum wins over the clock of the moment."""
    path = "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    cpu = collect(root=grow({"proc/cpuinfo": XEON, path: "5700000\n"})).cpu
    assert cpu.max_hertz == 5.7e9
    assert dict(cpu.sources)["max_hertz"] == f"/{path}"


@pytest.mark.parametrize(
    ("features", "operations"),
    [({"avx512f", "fma", "avx"}, 64), ({"avx2", "fma", "avx"}, 32), ({"sse2"}, 8), ({"asimd"}, 16), (set(), 2)],
)
def test_peak_arithmetic_is_cores_times_clock_times_width(features, operations):
    """The figure is a guess, says so, and shows its factors."""
    fact = peak_flops(4, 3e9, frozenset(features))
    assert fact.value == 4 * 3e9 * operations
    assert fact.source.startswith(f"guessed: 4 cores x 3.00 GHz x {operations} operations")
    assert "clock unknown" in peak_flops(4, None, frozenset(features)).source


@pytest.mark.parametrize(
    ("stdout", "returncode", "brand"),
    [
        (json.dumps({"brand_raw": " Apple M1 "}), 0, "Apple M1"),
        (json.dumps({"arch": "ARM_8", "count": 4}), 0, None),
        (json.dumps({"brand_raw": 7}), 0, None),
        (json.dumps(["brand_raw"]), 0, None),
        ("Traceback: frozen", 1, None),
        ("", None, None),
        ("{" * 100000, 0, None),
    ],
    ids=["named", "no brand_raw", "not text", "not an object", "fails", "too slow", "nested"],
)
def test_the_cpu_library_is_bounded_and_asked_once(answers, stdout, returncode, brand):
    """B69: no KeyError without `brand_raw`, no waiting for a library that sleeps, and the answer is cached."""
    run = answers(stdout, returncode)
    assert brand_from_library(run) == brand
    assert brand_from_library(run) == brand
    assert len(run.asked) == 1
    argv, seconds = run.asked[0]
    assert argv == (sys.executable, "-m", "cpuinfo", "--json")
    assert seconds <= 10


def test_a_copied_machine_is_not_named_after_this_one(grow, answers):
    """The library would name this machine's processor, so it is not asked about another's; the note says unknown."""
    run = answers("")
    fingerprint = collect(root=grow({}), run=run)
    assert fingerprint.cpu.brand is None
    assert [argv[0] for argv, _ in run.asked] == ["nvidia-smi"]
    assert any("name is unknown" in note.message for note in fingerprint.notes)


def test_a_copied_machine_runs_none_of_this_machines_commands(grow):
    """Without a runner of its own, a tree has no accelerators, whatever this machine has."""
    fingerprint = collect(root=grow({"proc/sys/kernel/hostname": "far\n"}))
    assert fingerprint.stored
    assert fingerprint.devices == ()
    assert (fingerprint.hostname, fingerprint.system) == ("far", "Linux")
    assert fingerprint.cpu.bandwidth.source.startswith("guessed")


@pytest.mark.parametrize(
    ("files", "rate"),
    [
        ({"sys/block/nvme0n1/size": "1", "sys/block/loop0/size": "1"}, 2e9),
        ({"sys/block/nvme0n1/size": "1", "sys/block/sda/queue/rotational": "1\n"}, 1.5e8),
        ({"sys/block/vda/queue/rotational": "1\n"}, 5e8),
    ],
)
def test_the_slowest_kind_of_disk_is_guessed(grow, files, rate):
    """Where the model will lie is unknown: the slowest disk counts, and the fact says that it is a guess."""
    fact = collect(root=grow(files)).disk_bandwidth
    assert fact is not None
    assert fact.value == rate
    assert fact.source.startswith("guessed")


def test_no_disk_is_none(grow):
    """Absent is None."""
    assert collect(root=grow({})).disk_bandwidth is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems are read by psutil")
def test_this_machine_is_read_without_heavy_imports():
    """A warm look at this machine imports none of the libraries that make commands slow, on Linux not even psutil."""
    code = (
        "import sys\n"
        "from magnitude_tune.fingerprint.collect import collect\n"
        "found = collect(cached_only=True)\n"
        "heavy = {'psutil', 'cpuinfo', 'pydantic', 'numpy', 'ctypes', 'csv', 'typer', 'rich'} & set(sys.modules)\n"
        "assert found.cpu.usable_cores >= 1 and found.memory.total_bytes > 0\n"
        "has_cards = any(device.backend == 'cuda' for device in found.devices)\n"
        "print(sorted(heavy - ({'csv', 'ctypes'} if has_cards else set())))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
