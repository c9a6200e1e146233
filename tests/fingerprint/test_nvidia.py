"""NVIDIA's devices from `nvidia-smi`'s answers: field report B09 and what is near it."""

from __future__ import annotations

import os

import pytest

from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.device_table import known_device
from magnitude_tune.fingerprint.nvidia import read_nvidia
from magnitude_tune.fingerprint.nvidia_smi import QUERY_SECONDS
from magnitude_tune.fingerprint.runner import run_command
from magnitude_tune.fingerprint.values import HOST_POOL, Memory
from magnitude_tune.processes import Completed

MIB = 1 << 20
GIB = 1 << 30
HOST = Memory(total_bytes=64 * GIB, available_bytes=50 * GIB, host_total_bytes=64 * GIB)
SPARK_BYTES = 128501256192


@pytest.mark.parametrize(
    ("line", "name", "bandwidth"),
    [
        ("0, NVIDIA GB10, [N/A], [N/A], [N/A]", "NVIDIA GB10", 273.2e9),
        ("0, Orin (nvgpu), [N/A], [N/A]", "Orin (nvgpu)", 204.8e9),
    ],
)
def test_unified_parts_share_the_hosts_memory(grow, answers, line, name, bandwidth):
    """B09: the device is there, unified, with MemTotal and MemAvailable, and the pool is counted once."""
    available = SPARK_BYTES - 60 * GIB
    meminfo = f"MemTotal: {SPARK_BYTES // 1024} kB\nMemAvailable: {available // 1024} kB\n"
    fingerprint = collect(root=grow({"proc/meminfo": meminfo}), run=answers(line + "\n"))
    (device,) = fingerprint.devices
    assert device.description == name
    assert device.unified
    assert (device.total_bytes, device.free_bytes) == (SPARK_BYTES, available)
    assert device.bandwidth.value == bandwidth
    assert [(pool.name, pool.kind, pool.total_bytes) for pool in fingerprint.pools] == [
        (HOST_POOL, "unified", SPARK_BYTES)
    ]
    assert fingerprint.host_pool.name == device.pool
    assert round(SPARK_BYTES / GIB, 2) == 119.68


def test_a_card_has_a_pool_of_its_own(grow, answers):
    """A discrete card: its own memory, rates from the table, link, driver; the host's pool stays the host's."""
    line = "0, NVIDIA GeForce RTX 4090, 24564, 20264, 575.57, 8.9, 4, 16, GPU-1f"
    fingerprint = collect(root=grow({"proc/cpuinfo": "model name : A processor\n"}), run=answers(line))
    (device,) = fingerprint.devices
    assert (device.name, device.pool, device.unified) == ("CUDA0", "cuda0", False)
    assert (device.total_bytes, device.free_bytes) == (24564 * MIB, 20264 * MIB)
    assert (device.bandwidth.value, device.flops.value) == (1008e9, 330.3e12)
    assert device.bandwidth.source == "device table: NVIDIA GeForce RTX 4090"
    assert device.link_bandwidth is not None
    assert device.link_bandwidth.value == pytest.approx(31.5e9, rel=0.01)
    assert (device.compute_capability, device.driver) == ("8.9", "575.57")
    assert fingerprint.pool("cuda0").available_bytes == 20264 * MIB
    assert fingerprint.host_pool.kind == "host"
    assert not fingerprint.notes


def test_the_question_has_a_time_limit(answers):
    """The command is an argument list with a limit in seconds."""
    run = answers("")
    read_nvidia(run, HOST, {})
    argv, seconds = run.asked[0]
    assert argv[0] == "nvidia-smi"
    assert seconds == QUERY_SECONDS


@pytest.mark.parametrize(
    ("stdout", "returncode", "said"),
    [
        ("", None, "did not answer within 10 s"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9, "couldn't communicate"),
        ("", 255, "ended with 255"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "version mismatch"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 0, "cannot be read"),
        ("Segmentation fault, perhaps\n", 0, "cannot be read"),
    ],
    ids=["timeout", "no driver", "silent failure", "mismatch", "text in place of rows", "nonsense"],
)
def test_a_failure_is_a_note_and_no_device(answers, stdout, returncode, said):
    """A probe's failure never ends the fingerprint, and never makes a device of zero bytes."""
    facts = read_nvidia(answers(stdout, returncode), HOST, {})
    assert facts.devices == ()
    (note,) = facts.notes
    assert note.rule is Rule.PROBE_FAILED
    assert said in note.message


@pytest.mark.parametrize(
    ("stdout", "returncode"), [("", 127), ("No devices were found\n", 0), ("No devices were found\n", 6), ("", 0)]
)
def test_no_devices_is_no_failure(answers, stdout, returncode):
    """Neither a machine without the command nor one without cards has anything to note."""
    facts = read_nvidia(answers(stdout, returncode), HOST, {})
    assert (facts.devices, facts.notes) == ((), ())


def test_old_drivers_are_asked_for_less(answers):
    """A driver that does not know a field refuses the question; the basic one is asked then."""

    class OldDriver(answers):
        def __call__(self, argv, timeout_seconds):
            super().__call__(argv, timeout_seconds)
            knows = "compute_cap" not in argv[1]
            text = (
                "0, Tesla T4, 15360 MiB, 15000 MiB" if knows else 'Field "compute_cap" is not a valid field to query.'
            )
            return type(self.completed)(0 if knows else 2, text, "")

    run = OldDriver()
    (device,) = read_nvidia(run, HOST, {}).devices
    assert len(run.asked) == 2
    assert device.total_bytes == 15360 * MIB
    assert device.bandwidth.value == 320e9
    assert device.compute_capability is None


LIST = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaaaaaa-d33d-2b2c-524d-9e3d8d2b8a77)
"""
INSTANCE = """<mig_device><index>{0}</index><gpu_instance_id>{1}</gpu_instance_id>
<fb_memory_usage><total>{2} MiB</total><used>7 MiB</used><free>{3} MiB</free></fb_memory_usage>
<bar1_memory_usage><total>32767 MiB</total><used>0 MiB</used><free>32767 MiB</free></bar1_memory_usage></mig_device>
"""
XML = (
    '<nvidia_smi_log><driver_version>535.54</driver_version><gpu id="00000000:07:00.0">'
    "<fb_memory_usage><total>40960 MiB</total><free>40000 MiB</free></fb_memory_usage><mig_devices>"
    + INSTANCE.format(0, 2, 20096, 20089)
    + INSTANCE.format(1, 9, 4864, 4861)
    + '</mig_devices></gpu><gpu id="00000000:0F:00.0"><mig_devices>None</mig_devices></gpu></nvidia_smi_log>'
)
ROW = "{}, NVIDIA A100-SXM4-40GB, 40960, 40000, 535.54, 8.0, 4, 16, GPU-{}, {}\n"


class Divided:
    """`nvidia-smi` of a machine with one divided card and one whole one."""

    def __call__(self, argv, _seconds):
        if argv[1] == "-L":
            return Completed(0, LIST, "")
        if argv[1] == "-q":
            return Completed(0, XML, "")
        return Completed(0, ROW.format(0, "5d5b", "Enabled") + ROW.format(1, "aaaa", "Disabled"), "")


@pytest.mark.parametrize(
    ("environment", "name", "total"),
    [
        ({}, "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cba663e8"}, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, "NVIDIA A100-SXM4-40GB", 40960),
    ],
)
def test_an_instance_of_a_divided_card_is_a_device_of_its_own(environment, name, total):
    """MIG: the instance that CUDA shows has its own memory; another, or a whole card, by CUDA_VISIBLE_DEVICES."""
    facts = read_nvidia(Divided(), HOST, environment)
    (device,) = facts.devices
    assert (device.name, device.description, device.total_bytes) == ("CUDA0", name, total * MIB)
    assert facts.pools[0].total_bytes == total * MIB
    assert device.free_bytes is not None
    assert 0 < device.free_bytes < total * MIB
    assert device.bandwidth.value == pytest.approx(1555e9 * total / 40960, rel=0.01)


TWO = """0, NVIDIA GeForce RTX 3060, 12288, 12000, 575.57, 8.6, 4, 16, GPU-aaa
1, NVIDIA GeForce RTX 3090, 24576, 24000, 575.57, 8.6, 4, 16, GPU-bbb
"""


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3060"]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3090"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["NVIDIA GeForce RTX 3060"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["NVIDIA GeForce RTX 3090"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-b"}, ["NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3090"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, ["NVIDIA GeForce RTX 3090"]),
    ],
)
def test_devices_are_numbered_as_cuda_does(answers, environment, names):
    """CUDA puts the fastest first unless told otherwise, and shows what it is told to; CUDA0 is the engine's first."""
    facts = read_nvidia(answers(TWO), HOST, environment)
    devices = facts.devices
    assert [device.description for device in devices] == names
    assert [device.name for device in devices] == [f"CUDA{i}" for i in range(len(names))]
    hidden = [note.message for note in facts.notes]
    assert hidden == (
        [] if len(names) == 2 else [f"CUDA_VISIBLE_DEVICES hides {2 - len(names)} of 2 NVIDIA cards from the engine"]
    )


def test_a_card_that_hides_its_memory_is_left_out(answers):
    """A known card without a memory figure (MIG, permissions) is not taken for a unified part."""
    facts = read_nvidia(answers("0, NVIDIA A100-SXM4-80GB, [Insufficient Permissions], [N/A]"), HOST, {})
    assert (facts.devices, facts.pools) == ((), ())
    assert "does not say how much memory" in facts.notes[0].message


def test_free_memory_that_is_unknown_counts_as_none(answers):
    """A card whose free memory is not told is there, with a note, and nothing is planned into it."""
    facts = read_nvidia(answers("0, NVIDIA L4, 23034, [N/A]"), HOST, {})
    assert facts.devices[0].free_bytes is None
    assert facts.pools[0].available_bytes == 0
    assert "taken as full" in facts.notes[0].message


def test_an_unknown_card_is_guessed_and_says_so(answers):
    """A card that the table lacks gets modest rates whose source starts with `guessed`."""
    (device,) = read_nvidia(answers("0, NVIDIA GeForce RTX 9999, 32768, 32000"), HOST, {}).devices
    assert device.bandwidth.source.startswith("guessed")
    assert device.flops.source.startswith("guessed")


@pytest.mark.parametrize(
    ("name", "gib", "row"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", 40, "NVIDIA A100 SXM4 40GB"),
        ("NVIDIA A100 80GB PCIe", 80, "NVIDIA A100 PCIe 80GB"),
        ("Tesla V100-SXM2-16GB", 16, "NVIDIA Tesla V100 SXM2 16GB"),
        ("NVIDIA H100 80GB HBM3", 79.6, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce RTX 3060", 8, "NVIDIA GeForce RTX 3060 8GB"),
        ("Orin (nvgpu)", 61, "Orin (nvgpu)"),
        ("Apple M2 Ultra", None, "Apple M2 Ultra"),
    ],
)
def test_drivers_names_find_their_rows(name, gib, row):
    """Names as drivers write them find the right row of the table, by memory where sizes share a name."""
    found = known_device(name, None if gib is None else int(gib * GIB))
    assert found is not None
    assert found.name == row


@pytest.mark.parametrize("name", ["", "NVIDIA", "Graphics", "NVIDIA GeForce RTX 4091", "8GB"])
def test_names_that_say_nothing_find_nothing(name):
    """Vendor words and sizes alone are no name."""
    assert known_device(name, 8 * GIB) is None


def test_a_driver_without_its_command_is_noted(grow):
    """A copied tree with a driver but no list of cards says so instead of planning for the CPU silently."""
    fingerprint = collect(root=grow({"proc/driver/nvidia/version": "NVRM version: 575.57\n"}))
    assert fingerprint.devices == ()
    assert any("its cards are unknown" in note.message for note in fingerprint.notes)


def test_no_command_is_run_without_a_sign_of_the_driver(grow, monkeypatch):
    """A machine without NVIDIA's files or cards costs a few looks at the file system and no process."""
    from magnitude_tune.fingerprint import accelerators
    from magnitude_tune.fingerprint.tree import Tree

    def never(*_):
        raise AssertionError("a command ran")

    tree = Tree(grow({"sys/class/drm/card0/device/vendor": "0x1a03\n"}))
    tree.live = True
    monkeypatch.setattr(accelerators, "run_command", never)
    monkeypatch.setattr(accelerators, "_is_installed", lambda _: True)
    monkeypatch.setattr(accelerators.sys, "platform", "linux")
    assert accelerators.read_accelerators(tree, {}, None, HOST).devices == ()


def test_wsl_keeps_half_a_gibibyte_of_a_card_free(grow, answers):
    """B08: what exceeds a card under WSL becomes slow instead of failing, so 512 MiB more stay free, with a note."""
    files = {"proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2"}
    line = "0, NVIDIA GeForce RTX 4060, 8188, 7500, 560.94, 8.9, 4, 8, GPU-1"
    fingerprint = collect(root=grow(files), run=answers(line))
    assert fingerprint.devices[0].free_bytes == (7500 - 512) * MIB
    assert fingerprint.pool("cuda0").available_bytes == (7500 - 512) * MIB
    assert any("0.5 GiB of each card" in note.message for note in fingerprint.notes)
    plain = collect(root=grow({"proc/version": "Linux version 6.8.0"}), run=answers(line))
    assert plain.pool("cuda0").available_bytes == 7500 * MIB


def test_windows_moves_what_does_not_fit(grow, answers, monkeypatch):
    """B08: on Windows a plan above the card's memory is slow instead of failing; the note says so."""
    from magnitude_tune.fingerprint import accelerators
    from magnitude_tune.fingerprint.tree import Tree

    monkeypatch.setattr(accelerators, "system_name", lambda _: "Windows")
    run = answers("0, NVIDIA GeForce RTX 4060, 8188, 7500, 560.94, 8.9, 4, 8, GPU-1")
    facts = accelerators.read_accelerators(Tree(grow({})), {}, run, HOST)
    assert facts.pools[0].available_bytes == 7500 * MIB
    assert "moves what exceeds a card's memory" in facts.notes[-1].message


def test_the_name_of_the_machine_does_not_depend_on_the_probe(grow, answers):
    """Free memory and the driver change; the machine's hash does not."""
    one, other = (
        collect(root=grow({}), run=answers(f"0, NVIDIA L4, 23034, {free}, {driver}, 8.9, 4, 16, GPU-1"))
        for free, driver in ((22000, "550.1"), (100, "575.2"))
    )
    assert one.machine_hash == other.machine_hash


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Put an `nvidia-smi` on PATH that is a shell script."""
    if os.name != "posix":
        pytest.skip("stub programs are shell scripts")

    def make(body):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return make


def test_a_program_may_write_any_bytes(stub):
    """Names and messages need not be UTF-8: the card is there, with marks in place of what cannot be read."""
    stub(r"printf '0, NVIDIA GeForce RTX 4090 \351\377, 24564, 20264, 575.57, 8.9, 4, 16, GPU-1f, [N/A]\n'")
    (device,) = read_nvidia(run_command, HOST, {}).devices
    assert device.description == "NVIDIA GeForce RTX 4090 \ufffd\ufffd"
    assert device.total_bytes == 24564 * MIB


def test_a_program_that_hangs_is_ended(stub, monkeypatch):
    """The time limit ends the command, with whatever it started, and is a note."""
    from magnitude_tune.fingerprint import nvidia_smi

    monkeypatch.setattr(nvidia_smi, "QUERY_SECONDS", 0.3)
    stub("sleep 60")
    facts = read_nvidia(run_command, HOST, {})
    assert facts.devices == ()
    assert "did not answer" in facts.notes[0].message


def test_a_program_without_its_driver_says_so(stub):
    """B09's neighbour: the driver is gone, the message is on stdout, and the note carries it."""
    stub(
        "echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
        'latest NVIDIA driver is installed and running."; exit 9'
    )
    facts = read_nvidia(run_command, HOST, {})
    assert facts.devices == ()
    assert "couldn't communicate with the NVIDIA driver" in facts.notes[0].message
