"""NVIDIA's management library, from a stand-in for the `pynvml` module."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.fingerprint import accelerators
from magnitude_tune.fingerprint import nvml as nvml_module
from magnitude_tune.fingerprint.nvidia import read_nvidia
from magnitude_tune.fingerprint.nvml import ask_nvml
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Memory

MIB = 1 << 20
GIB = 1 << 30
HOST = Memory(total_bytes=128501256192, available_bytes=59 * GIB, host_total_bytes=128501256192)


class NVMLError(Exception):
    """The library's own refusal."""


class Nvml:
    """A stand-in for `pynvml`: cards as dictionaries; what a dictionary lacks is refused as not supported."""

    def __init__(self, *cards, driver="575.57.08", cuda=12090):
        self.cards = cards
        self.driver = driver
        self.cuda = cuda
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return self.cuda

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):  # noqa: N802
        try:
            return card["instances"][index]
        except IndexError:
            raise NVMLError("Not Found") from None

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def ask(card):
            if name not in card:
                raise NVMLError("Not Supported")
            return card[name]

        return ask


def a_card(name, total_mib, free_mib, **more):
    """A card as the library answers for it."""
    return {
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=total_mib * MIB, free=free_mib * MIB),
        "nvmlDeviceGetUUID": f"GPU-{name[-4:]}-{total_mib}",
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        **more,
    }


def never(argv, seconds):
    """A runner for tests in which no command may run."""
    raise AssertionError(argv)


def test_a_card_by_the_library():
    """B34: 24576 MiB of which 4300 are used: the plan gets the free 20276, and no command is run."""
    nvml = Nvml(a_card("NVIDIA GeForce RTX 4090", 24576, 24576 - 4300))
    facts = read_nvidia(never, HOST, {}, nvml)
    (device,) = facts.devices
    assert (device.name, device.pool, device.source) == ("CUDA0", "cuda0", "NVML")
    assert (device.total_bytes, device.free_bytes) == (24576 * MIB, 20276 * MIB)
    assert facts.pools[0].available_bytes == 20276 * MIB
    assert (device.compute_capability, device.driver, device.runtime) == ("8.9", "575.57.08", "CUDA 12.9")
    assert device.bus == "PCIe 4.0 x16"
    assert device.link_bandwidth is not None
    assert device.link_bandwidth.value == pytest.approx(31.5e9, rel=0.01)
    assert nvml.open == 0


def test_a_unified_part_refuses_the_question_for_memory():
    """B09: GB10 has the host's memory, counted once, as with `nvidia-smi`."""
    card = a_card("NVIDIA GB10", 1, 1)
    del card["nvmlDeviceGetMemoryInfo"]
    facts = read_nvidia(never, HOST, {}, Nvml(card))
    (device,) = facts.devices
    assert (device.unified, device.pool, facts.pools) == (True, HOST_POOL, ())
    assert (device.total_bytes, device.free_bytes) == (HOST.total_bytes, HOST.available_bytes)
    assert device.link_bandwidth is None


def test_older_bindings_give_bytes():
    """Text may come as bytes, whatever they hold."""
    nvml = Nvml(a_card(b"Tesla T4", 15360, 15000), driver=b"450.\xff")
    (device,) = read_nvidia(never, HOST, {}, nvml).devices
    assert device.description == "Tesla T4"
    assert device.bandwidth.value == 320e9
    assert device.driver == "450.\ufffd"


def test_a_divided_card_is_its_instances():
    """With MIG the device is an instance, with its memory and its share of the rates; CUDA shows a process one."""
    instances = [
        a_card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096, 20089, nvmlDeviceGetUUID="MIG-aaa"),
        a_card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 4861, nvmlDeviceGetUUID="MIG-bbb"),
    ]
    whole = a_card(
        "NVIDIA A100-SXM4-40GB",
        40960,
        36000,
        nvmlDeviceGetMigMode=(1, 1),
        nvmlDeviceGetMaxMigDeviceCount=7,
        instances=instances,
    )
    listed = ask_nvml(Nvml(whole))
    assert listed is not None
    assert [(card.name, card.total_bytes) for card in listed] == [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096 * MIB),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB),
    ]
    facts = read_nvidia(never, HOST, {}, Nvml(whole))
    (device,) = facts.devices
    assert (device.name, device.total_bytes, device.free_bytes) == ("CUDA0", 20096 * MIB, 20089 * MIB)
    assert device.bandwidth.value == pytest.approx(1555e9 * 20096 / 40960, rel=0.01)
    assert device.flops.value == pytest.approx(312e12 * 3 / 7, rel=0.01)
    assert "divided by MIG into 2 instances" in facts.notes[0].message
    (chosen,) = read_nvidia(never, HOST, {"CUDA_VISIBLE_DEVICES": "MIG-bbb"}, Nvml(whole)).devices
    assert (chosen.description, chosen.total_bytes) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB)


def test_a_divided_card_without_instances_is_left_out():
    """MIG without an instance runs nothing: neither the whole card nor a unified part."""
    whole = a_card("NVIDIA A100-SXM4-40GB", 40960, 36000, nvmlDeviceGetMigMode=(1, 1), instances=[])
    facts = read_nvidia(never, HOST, {}, Nvml(whole))
    assert (facts.devices, facts.pools) == ((), ())
    assert "divided by MIG" in (facts.notes[0].fix or "")


def test_a_library_that_fails_leaves_it_to_the_command(answers):
    """Without the driver's library, or with one of another version, `nvidia-smi` is asked."""

    class Broken(Nvml):
        def nvmlInit(self):  # noqa: N802
            raise NVMLError("Driver/library version mismatch")

    (device,) = read_nvidia(answers("0, NVIDIA L4, 23034, 22000"), HOST, {}, Broken()).devices
    assert device.source == "nvidia-smi"


def test_a_library_that_hangs_is_left_behind(monkeypatch):
    """A driver that does not answer costs its time limit, not the run, and once: the command would hang too."""
    import threading

    monkeypatch.setattr(nvml_module, "ANSWER_SECONDS", 0.05)
    forever = threading.Event()

    class Hanging(Nvml):
        def nvmlInit(self):  # noqa: N802
            forever.wait(30)

    try:
        facts = read_nvidia(never, HOST, {}, Hanging())
        assert facts.devices == ()
        assert "NVML did not answer" in facts.notes[0].message
    finally:
        forever.set()


def test_the_library_is_asked_first_where_the_driver_is(grow, monkeypatch):
    """On this machine, with a driver and the module of the extra `nvidia`: NVML, and no command."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(a_card("NVIDIA L4", 23034, 22000)))
    monkeypatch.setattr(accelerators, "run_command", never)
    tree = Tree(grow({"proc/driver/nvidia/version": "NVRM version: 575.57\n"}))
    tree.live = True
    (device,) = accelerators.read_accelerators(tree, {}, None, HOST).devices
    assert (device.source, device.description) == ("NVML", "NVIDIA L4")


def test_the_module_is_not_imported_without_a_driver(grow, monkeypatch):
    """No sign of NVIDIA: not even an import."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(accelerators, "_nvml", lambda: never("import", 0))
    monkeypatch.setattr(accelerators.sys, "platform", "linux")
    tree = Tree(grow({}))
    tree.live = True
    assert accelerators.read_accelerators(tree, {}, None, HOST).devices == ()


def test_a_module_that_cannot_be_imported_is_done_without(monkeypatch):
    """Whatever the import raises, there is just no library."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_module.load_nvml() is None


ANYTHING = st.none() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=8) | st.binary(max_size=8)
MEMORY = st.builds(SimpleNamespace, total=ANYTHING, free=ANYTHING) | ANYTHING


@settings(max_examples=100, deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "nvmlDeviceGetName": ANYTHING | st.sampled_from(["NVIDIA L4", "NVIDIA GB10", "A MIG 9g.1gb"]),
            "nvmlDeviceGetMemoryInfo": MEMORY,
            "nvmlDeviceGetUUID": ANYTHING,
            "nvmlDeviceGetCudaComputeCapability": ANYTHING | st.tuples(ANYTHING, ANYTHING),
            "nvmlDeviceGetMaxPcieLinkGeneration": ANYTHING,
            "nvmlDeviceGetMaxPcieLinkWidth": ANYTHING,
            "nvmlDeviceGetMigMode": ANYTHING | st.just((1, 1)),
            "nvmlDeviceGetMaxMigDeviceCount": ANYTHING,
        },
    ),
    driver=ANYTHING,
    cuda=ANYTHING,
)
def test_any_answer_makes_sound_devices(fields, driver, cuda):
    """Whatever the library says, nothing is raised and no device has no memory or less."""

    def gone(argv, seconds):
        from magnitude_tune.processes import Completed

        return Completed(127, "", "")

    facts = read_nvidia(gone, HOST, {}, Nvml({**fields, "instances": []}, driver=driver, cuda=cuda))
    for device in facts.devices:
        assert device.total_bytes is not None
        assert device.total_bytes > 0
        assert device.free_bytes is None or 0 <= device.free_bytes <= device.total_bytes
    assert all(0 <= pool.available_bytes <= pool.total_bytes for pool in facts.pools)
