"""Intel's graphics from file trees of the `xe` and `i915` drivers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.intel import read_intel
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Memory

MIB = 1 << 20
GIB = 1 << 30
HOST = Memory(total_bytes=64 * GIB, available_bytes=50 * GIB, host_total_bytes=64 * GIB)
DRM = "sys/class/drm"
PCI = """8086  Intel Corporation
\t5690  DG2 [Arc A770M]
\t56a0  DG2 [Arc A770]
\te20b  Battlemage G21 [Arc B580]
\ta7a0  Raptor Lake-P [Iris Xe Graphics]
\t7d55  Meteor Lake-P [Intel Arc Graphics]
"""
RESOURCE = """0x0000000080000000 0x0000000080ffffff 0x0000000000140204
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000006000000000 0x{end:016x} 0x000000000014220c
"""


def a_card(number, device, driver, **files):
    """The files of one device; names in `files` are below its folder."""
    card = f"{DRM}/card{number}/device"
    base = {
        f"{card}/vendor": "0x8086\n",
        f"{card}/device": f"{device}\n",
        f"{card}/uevent": f"DRIVER={driver}\nPCI_SLOT_NAME=0000:03:00.0\n",
        "usr/share/hwdata/pci.ids": PCI,
    }
    return base | {f"{card}/{name}": text for name, text in files.items()}


def test_xe_says_what_each_tile_has(grow):
    """Memory of a card by the xe driver; how much of it is free the kernel does not say, so nothing is promised."""
    files = a_card(1, "0xe20b", "xe", **{"tile0/physical_vram_size_bytes": "0x0000000300000000\n"})
    link = {f"{DRM}/card1/device/max_link_speed": "16.0 GT/s PCIe\n", f"{DRM}/card1/device/max_link_width": "8\n"}
    facts = read_intel(Tree(grow(files | link)), HOST)
    (device,) = facts.devices
    assert (device.name, device.backend, device.description) == ("Vulkan0", "vulkan", "Intel Arc B580")
    assert (device.total_bytes, device.free_bytes) == (12 * GIB, None)
    assert (device.driver, device.bus, device.unified) == ("xe", "PCIe 4.0 x8", False)
    assert device.bandwidth.value == 456e9
    assert facts.pools[0].available_bytes == 0
    assert "taken as full unless an engine says" in facts.notes[0].message


def test_i915_says_it_beside_the_device(grow):
    """Local memory of a card by i915, free memory included where it tells."""
    lmem = {
        f"{DRM}/card0/lmem_total_bytes": f"{16 * GIB}\n",
        f"{DRM}/card0/lmem_avail_bytes": f"{15 * GIB}\n",
    }
    facts = read_intel(Tree(grow(a_card(0, "0x56a0", "i915") | lmem)), HOST)
    assert (facts.devices[0].total_bytes, facts.devices[0].free_bytes) == (16 * GIB, 15 * GIB)
    assert facts.pools[0].available_bytes == 15 * GIB
    assert facts.notes == ()


@pytest.mark.parametrize(
    ("end", "total"), [(0x6000000000 + 8 * GIB - 1, 8 * GIB), (0x6000000000 + 256 * MIB - 1, 16 * GIB)]
)
def test_the_window_or_the_table_tells_where_the_driver_does_not(grow, end, total):
    """A window over all of the memory has its size; a small one has not, and the device table's is taken."""
    facts = read_intel(Tree(grow(a_card(0, "0x56a0", "i915", resource=RESOURCE.format(end=end)))), HOST)
    assert facts.devices[0].total_bytes == total


def test_integrated_graphics_share_the_hosts_memory(grow):
    """No memory of their own: the host's pool, counted once, and not worth a split with a card."""
    resource = RESOURCE.format(end=0x6000000000 + 256 * MIB - 1)
    fingerprint = collect(root=grow(a_card(0, "0xa7a0", "i915", resource=resource)))
    (device,) = fingerprint.devices
    assert (device.unified, device.integrated, device.pool) == (True, True, HOST_POOL)
    assert device.description == "Intel Iris Xe Graphics"
    assert [(pool.kind, pool.total_bytes) for pool in fingerprint.pools] == [("unified", 64 * GIB)]


def test_cards_come_before_integrated_graphics(grow):
    """B71: the discrete card is the first, the integrated graphics bring no memory."""
    card = a_card(1, "0x56a0", "i915") | {f"{DRM}/card1/lmem_total_bytes": f"{16 * GIB}\n"}
    facts = read_intel(Tree(grow(a_card(0, "0x7d55", "i915") | card)), HOST, first=2)
    assert [(device.name, device.description, device.integrated) for device in facts.devices] == [
        ("Vulkan2", "Intel Arc A770", False),
        ("Vulkan3", "Intel Arc Graphics", True),
    ]
    assert [pool.total_bytes for pool in facts.pools] == [16 * GIB]


def test_a_machine_without_lists_still_has_its_devices(grow):
    """Without the PCI list a device is its number."""
    files = {name: text for name, text in a_card(0, "0x9999", "xe").items() if "pci.ids" not in name}
    (device,) = read_intel(Tree(grow(files)), HOST).devices
    assert device.description == "Intel graphics 0x9999"


FILES = [
    f"{DRM}/card0/lmem_total_bytes",
    f"{DRM}/card0/lmem_avail_bytes",
    *(f"{DRM}/card0/device/{name}" for name in ("device", "uevent", "resource", "max_link_speed", "max_link_width")),
    f"{DRM}/card0/device/tile0/physical_vram_size_bytes",
    "usr/share/hwdata/pci.ids",
]
CONTENT = (
    st.binary(max_size=60)
    | st.integers(-(1 << 70), 1 << 70).map(lambda number: str(number).encode())
    | st.integers(0, 1 << 64).map(lambda number: hex(number).encode())
    | st.sampled_from([b"0x0\n", b"0x1 0x2 0x3\n" * 3, b"0x9 0x2 0x3\n" * 3, RESOURCE.format(end=1 << 40).encode()])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(files=st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=8))
def test_any_bytes_make_sound_devices(grow, files):
    """Whatever the files say, nothing is raised and no device has no memory or less."""
    empty = dict.fromkeys(FILES, "")
    facts = read_intel(Tree(grow(empty | a_card(0, "0x56a0", "i915") | files)), HOST)
    for device in facts.devices:
        assert device.total_bytes is not None
        assert device.total_bytes > 0
        assert device.free_bytes is None or 0 <= device.free_bytes <= device.total_bytes
    assert all(0 <= pool.available_bytes <= pool.total_bytes for pool in facts.pools)
