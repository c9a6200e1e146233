"""AMD's graphics from file trees and from recorded answers of `rocm-smi`: field reports B34, B58 and B71."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.fingerprint.amd import read_amd
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.rocm_smi import parse_rocm_smi
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Memory
from magnitude_tune.processes import Completed

MIB = 1 << 20
GIB = 1 << 30
HOST = Memory(total_bytes=64 * GIB, available_bytes=50 * GIB, host_total_bytes=64 * GIB)
DRM = "sys/class/drm"
NODES = "sys/class/kfd/kfd/topology/nodes"
IDS = """# List of AMDGPU IDs
1.0.0
744C,\tC8,\tAMD Radeon RX 7900 XTX
744C,\tCC,\tAMD Radeon RX 7900 XT
15BF,\tC1,\tAMD Radeon 780M
73DF,\tC1,\tAMD Radeon RX 6700 XT
"""
PCI = """1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t7480  Navi 33 [Radeon RX 7600/7600 XT/7600M XT/7600S/7700S / PRO W7600]
\t73bf  Navi 21 [Radeon RX 6800]
1a03  ASPEED Technology, Inc.
\t7480  Not this one [Nor this]
"""


def a_card(number, device, revision, *, vram=None, used=0, gtt=32 * GIB, slot="03:00.0", render=None, **more):
    """The files of one card; `vram` None leaves the driver's memory files out."""
    card = f"{DRM}/card{number}/device"
    files = {
        f"{card}/vendor": "0x1002\n",
        f"{card}/device": f"{device}\n",
        f"{card}/revision": f"{revision}\n",
        f"{card}/uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME=0000:{slot}\n",
        f"{card}/max_link_speed": "16.0 GT/s PCIe\n",
        f"{card}/max_link_width": "16\n",
        f"{DRM}/card{number}-DP-1/status": "connected\n",
        "usr/share/libdrm/amdgpu.ids": IDS,
    }
    if vram is not None:
        files |= {f"{card}/mem_info_vram_total": f"{vram}\n", f"{card}/mem_info_vram_used": f"{used}\n"}
        files |= {f"{card}/mem_info_gtt_total": f"{gtt}\n", f"{card}/mem_info_gtt_used": "0\n"}
    if render is not None:
        files[f"{card}/drm/renderD{render}/dev"] = "226:128\n"
    return files | {f"{card}/{name}": text for name, text in more.items()}


def a_node(number, version, *, location=0x300, render=128):
    """One node of the compute topology; version 0 is a CPU's."""
    gpu = f"simd_count {192 if version else 0}\ngfx_target_version {version}\nlocation_id {location}\ndomain 0\n"
    text = f"cpu_cores_count {0 if version else 16}\n{gpu}drm_render_minor {render}\nvendor_id 4098\n"
    return {f"{NODES}/{number}/properties": text}


XTX = a_card(1, "0x744c", "0xc8", vram=25753026560, used=4300 * MIB, render=128)
BMC = {f"{DRM}/card0/device/vendor": "0x1a03\n", f"{DRM}/card0/device/device": "0x2000\n"}


def read(grow, files, environment=None, run=None):
    """The devices of a tree."""
    return read_amd(Tree(grow(files)), run, HOST, environment or {})


def test_a_card_by_the_drivers_files(grow):
    """Free is total less used (B34), the name libdrm's, the architecture the compute topology's; a BMC is no card."""
    version = {"opt/rocm/.info/version": "6.4.1-83\n", "proc/sys/kernel/osrelease": "6.8.0-60-generic\n"}
    facts = read(grow, XTX | BMC | a_node(0, 0) | a_node(1, 110000) | version)
    (device,) = facts.devices
    assert (device.name, device.backend, device.pool) == ("ROCm0", "rocm", "rocm0")
    assert device.description == "AMD Radeon RX 7900 XTX"
    assert (device.total_bytes, device.free_bytes) == (25753026560, 25753026560 - 4300 * MIB)
    assert facts.pools[0].available_bytes == device.free_bytes
    assert device.compute_capability == "gfx1100"
    assert device.bandwidth.value == 960e9
    assert device.bus == "PCIe 4.0 x16"
    assert (device.driver, device.runtime) == ("amdgpu of Linux 6.8.0-60-generic", "ROCm 6.4.1-83")
    assert not device.unified
    assert not device.integrated
    assert facts.notes == ()


@pytest.mark.parametrize(
    ("version", "gfx"),
    [(90010, "gfx90a"), (90402, "gfx942"), (100302, "gfx1032"), (110501, "gfx1151"), (90012, "gfx90c")],
)
def test_the_architecture_is_written_as_compilers_write_it(grow, version, gfx):
    """The last two places are hexadecimal digits: 9.0.10 is gfx90a."""
    facts = read(grow, XTX | a_node(1, version))
    assert facts.devices[0].compute_capability == gfx


def test_a_slot_narrower_than_the_card_counts(grow):
    """The card's own bridge may say x16 while the slot above it has four lanes."""
    files = XTX | {
        f"{DRM}/card1/max_link_speed": "8.0 GT/s PCIe\n",
        f"{DRM}/card1/max_link_width": "4\n",
    }
    (device,) = read(grow, files).devices
    assert device.bus == "PCIe 3.0 x4"


APU = a_card(0, "0x15bf", "0xc1", vram=512 * MIB, used=100 * MIB, gtt=31 * GIB, slot="c4:00.0", render=128)
APU_NODE = a_node(1, 110003, location=0xC400, render=128)


def test_graphics_on_the_die_share_the_hosts_memory(grow):
    """An APU has no pool of its own: one pool, up to the driver's limit (GTT), never carve-out plus RAM."""
    fingerprint = collect(root=grow(APU | APU_NODE))
    (device,) = fingerprint.devices
    assert (device.unified, device.integrated, device.pool) == (True, True, HOST_POOL)
    assert (device.total_bytes, device.cap_bytes, device.free_bytes) == (31 * GIB, 31 * GIB, 31 * GIB)
    assert [(pool.name, pool.kind, pool.total_bytes) for pool in fingerprint.pools] == [
        (HOST_POOL, "unified", 64 * GIB)
    ]
    assert device.bandwidth.source == "device table: AMD Radeon 780M"
    assert device.link_bandwidth is None


def test_a_large_carve_out_is_a_pool_of_its_own(grow):
    """Where firmware sets more aside than the limit of the rest, engines take that: the host's total is without it."""
    files = a_card(0, "0x1586", "0xc1", vram=96 * GIB, gtt=16 * GIB, product_name="AMD Radeon 8060S Graphics\n")
    facts = read(grow, files | a_node(1, 110501))
    (device,) = facts.devices
    assert (device.unified, device.integrated, device.pool) == (False, True, "rocm0")
    assert facts.pools[0].total_bytes == 96 * GIB


def test_integrated_beside_discrete_brings_no_memory(grow):
    """B71: 8 GiB discrete beside graphics on the die with 8 GiB set aside: one pool of 8 GiB, never 16."""
    card = a_card(1, "0x73df", "0xc1", vram=8 * GIB, slot="03:00.0", render=129)
    apu = a_card(0, "0x15bf", "0xc1", vram=8 * GIB, gtt=31 * GIB, slot="c4:00.0", render=128)
    nodes = a_node(1, 100301, location=0x300, render=129) | a_node(2, 110003, location=0xC400, render=128)
    facts = read(grow, card | apu | nodes)
    assert [(device.name, device.integrated) for device in facts.devices] == [("ROCm0", False), ("ROCm1", True)]
    assert [pool.total_bytes for pool in facts.pools] == [8 * GIB]


TWO = (
    a_card(1, "0x744c", "0xc8", vram=24 * GIB, slot="03:00.0", render=128, unique_id="aaaa000000000001\n")
    | a_card(2, "0x73df", "0xc1", vram=12 * GIB, slot="0b:00.0", render=129, unique_id="bbbb000000000002\n")
    | a_node(1, 100301, location=0xB00, render=129)
    | a_node(2, 110000, location=0x300, render=128)
)
XT, BIG = "AMD Radeon RX 6700 XT", "AMD Radeon RX 7900 XTX"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, [XT, BIG]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [BIG]),
        ({"ROCR_VISIBLE_DEVICES": "1,0"}, [BIG, XT]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-aaaa000000000001"}, [BIG]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [BIG]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [BIG]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [XT]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_devices_are_numbered_as_rocm_does(grow, environment, names):
    """The order is the compute topology's, not the kernel's of cards; the runtimes' variables choose among them."""
    facts = read(grow, TWO, environment)
    assert [device.description for device in facts.devices] == names
    assert [device.name for device in facts.devices] == [f"ROCm{i}" for i in range(len(names))]
    assert bool(facts.notes) == (len(names) < 2)


def test_a_card_that_rocm_does_not_know_is_vulkans(grow):
    """Without a node of the compute topology only Vulkan reaches the card."""
    (device,) = read(grow, XTX).devices
    assert (device.name, device.backend, device.pool) == ("Vulkan0", "vulkan", "vulkan0")


def test_names_come_from_what_there_is(grow):
    """The firmware's name, else libdrm's list, else the PCI list's, within the right vendor, else the number."""
    pci = {"usr/share/misc/pci.ids": PCI, "usr/share/libdrm/amdgpu.ids": ""}
    card = a_card(0, "0x73bf", "0xc1", vram=16 * GIB)
    assert read(grow, card | pci).devices[0].description == "AMD Radeon RX 6800"
    assert read(grow, card | pci).devices[0].bandwidth.source == "device table: AMD Radeon RX 6800"
    named = card | pci | {f"{DRM}/card0/device/product_name": "AMD Instinct MI210\n"}
    assert read(grow, named).devices[0].description == "AMD Instinct MI210"


def test_a_card_without_any_name_keeps_its_number(grow):
    """No list and no firmware name: the PCI number, and guessed rates."""
    (device,) = read(grow, a_card(0, "0xffff", "0x00", vram=16 * GIB)).devices
    assert device.description == "AMD graphics 0xffff"
    assert device.bandwidth.source.startswith("guessed")


LOW_POWER = "\n\nWARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
SMI_CARD = {
    "VRAM Total Memory (B)": "21458059264",
    "VRAM Total Used Memory (B)": "27856896",
    "Card Series": "Radeon RX 7900 XT",
    "Card Model": "0x744c",
    "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "GFX Version": "gfx1100",
}
CSV = (
    "device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B),"
    "Card Series,Card Model,Card Vendor,GFX Version\n"
    "card1,0,21458059264,27856896,Radeon RX 7900 XT,0x744c,Advanced Micro Devices Inc. [AMD/ATI],gfx1100\n"
)
LINES = """============================ ROCm System Management Interface ============================
GPU[1]\t\t: VRAM Total Memory (B): 21458059264
GPU[1]\t\t: VRAM Total Used Memory (B): 27856896
GPU[1]\t\t: Card Series: \t\tRadeon RX 7900 XT
GPU[1]\t\t: Card Model: \t\t0x744c
GPU[1]\t\t: GFX Version: \t\tgfx1100
================================== End of ROCm SMI Log ===================================
"""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"card1": SMI_CARD}),
        LOW_POWER + json.dumps({"card1": SMI_CARD, "system": {"Driver version": "6.8.0"}}) + "\nhint: {see above\n",
        json.dumps({"card0": {"Card Vendor": "ASPEED Technology, Inc.", "Card Series": "N/A"}, "card1": SMI_CARD}),
        json.dumps({"card1": dict(reversed(SMI_CARD.items()))}),
        CSV,
        LOW_POWER + CSV.replace("card1", "GPU[1]"),
        LINES,
    ],
    ids=["json", "warnings around json", "display chip", "other order", "csv", "csv rows with GPU", "lines"],
)
def test_every_shape_of_the_answer_is_read_by_its_labels(text):
    """B58: warnings before the JSON, rows that start with GPU, a display chip as card0: the same card each time."""
    (card,) = parse_rocm_smi(text)
    assert card.number == 1
    assert (card.total_bytes, card.used_bytes) == (21458059264, 27856896)
    assert (card.name, card.device_id, card.gfx) == ("Radeon RX 7900 XT", "0x744c", "gfx1100")


def test_used_is_not_read_as_free():
    """B58: columns are known by their labels, in any order; without labels they say nothing."""
    header = "device,VRAM Total Used Memory (B),VRAM Total Memory (B)\n"
    (card,) = parse_rocm_smi(header + "GPU[0],1073741824,17179869184\n")
    assert (card.total_bytes, card.used_bytes) == (16 * GIB, GIB)
    assert parse_rocm_smi("GPU[0],1073741824,17179869184\n") == ()
    (card,) = parse_rocm_smi("device,VRAM Free Memory (MiB),VRAM Total Memory (MiB)\nGPU[0],15360,16384\n")
    assert (card.total_bytes, card.used_bytes) == (16 * GIB, GIB)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not what was expected",
        '{"card0": {"VRAM Total Memory (B)": "N/A", "VRAM Total Used Memory (B)": "N/A"}}',
        '{"card0": {"VRAM Total Memory (B)": "0"}}',
        '{"card0": {"VRAM Total Memory": "16"}}',
        '{"card0": {"VRAM%": "12"}}',
        "[1, 2]",
        '{"card0": 5}',
        "{" * 5000,
    ],
)
def test_what_cannot_be_read_is_unknown(text):
    """B58: no shape of answer makes a card of 0 MB."""
    assert all(card.total_bytes is None for card in parse_rocm_smi(text))


def test_rocm_smi_fills_in_what_the_driver_hides(grow, answers):
    """Where the driver's memory files are missing, the command is asked, within a time limit."""
    run = answers(LOW_POWER + json.dumps({"card1": SMI_CARD}))
    facts = read(grow, BMC | a_card(1, "0x744c", "0xcc", render=128) | a_node(1, 110000), run=run)
    (device,) = facts.devices
    assert (device.total_bytes, device.free_bytes) == (21458059264, 21458059264 - 27856896)
    assert device.source == "rocm-smi"
    ((argv, seconds),) = run.asked
    assert argv[0] == "rocm-smi"
    assert seconds == 10.0


def test_rocm_smi_is_not_asked_where_the_driver_tells(grow, answers):
    """Files are enough: no process is started."""
    run = answers("")
    read(grow, XTX, run=run)
    assert run.asked == []


def test_a_topology_of_processors_only_is_no_reason_to_ask(grow, answers):
    """The compute driver also lists CPUs: without a GPU among them no process is started."""
    run = answers(json.dumps({"card0": SMI_CARD}))
    assert read(grow, a_node(0, 0), run=run).devices == ()
    assert run.asked == []


def test_a_container_with_only_the_compute_device_uses_the_command(grow, answers):
    """Without the kernel's cards, `rocm-smi`'s are the list."""
    facts = read(grow, a_node(1, 110000), run=answers(json.dumps({"card0": SMI_CARD})))
    assert [(device.name, device.description) for device in facts.devices] == [("ROCm0", "Radeon RX 7900 XT")]
    assert facts.devices[0].bandwidth.value == 800e9


@pytest.mark.parametrize("answer", ["", "garbage", '{"card1": {"VRAM Total Memory (B)": "0"}}'])
def test_a_card_whose_memory_nobody_tells_is_left_out(grow, answers, answer):
    """B58: unknown is a note, never a card of 0 MB and never one that shares the host's memory."""
    facts = read(grow, a_card(1, "0x744c", "0xc8", render=128) | a_node(1, 110000), run=answers(answer, 1))
    assert (facts.devices, facts.pools) == ((), ())
    assert "how much memory AMD Radeon RX 7900 XTX has" in facts.notes[0].message


PROPERTIES = f"{NODES}/1/properties"
FILES = [name for name in XTX | APU if not name.endswith("vendor")] + [PROPERTIES, "usr/share/misc/pci.ids"]
CONTENT = (
    st.binary(max_size=40)
    | st.integers(-(1 << 70), 1 << 70).map(lambda number: str(number).encode())
    | st.sampled_from([b"", b"0\n", b"[N/A]\n", b"16.0 GT/s PCIe\n", b"simd_count 1\ngfx_target_version 110003\n"])
)
ANSWER = st.builds(
    Completed,
    st.sampled_from([0, 1, None, 127]),
    st.text() | st.sampled_from([CSV, LINES, LINES.replace("2145", "-2145"), json.dumps({"card0": {"a": [None]}})]),
    st.text(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(files=st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=12), answer=ANSWER, visible=st.text(max_size=6))
def test_any_bytes_make_sound_devices(grow, files, answer, visible):
    """Whatever the files and the command say, nothing is raised and no device has no memory or less."""
    tree = Tree(grow(XTX | APU | a_node(1, 110000) | files))
    facts = read_amd(tree, lambda *_: answer, HOST, {"HIP_VISIBLE_DEVICES": visible})
    for device in facts.devices:
        assert device.total_bytes is not None
        assert device.total_bytes > 0
        assert device.free_bytes is None or 0 <= device.free_bytes <= device.total_bytes
        assert device.pool == HOST_POOL or device.pool in {pool.name for pool in facts.pools}
    assert all(0 <= pool.available_bytes <= pool.total_bytes for pool in facts.pools)
    assert len({device.name for device in facts.devices}) == len(facts.devices)
