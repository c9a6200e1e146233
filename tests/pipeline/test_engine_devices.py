"""Cards that probes found, matched to what engines list: field reports B34 and B71."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolver.stand_ins import a_machine, an_engine

from magnitude_tune.engines.rpc import parse_devices
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import Device, EngineDevice, Fact, Fingerprint, Pool
from magnitude_tune.pipeline.engine_choice import choose_engine, machine_for_engine
from magnitude_tune.pipeline.engine_devices import with_engine_devices
from magnitude_tune.resolver.placements import device_groups
from magnitude_tune.units import GIB, MIB

VULKAN_LIST = """ggml_vulkan: Found 2 Vulkan devices:
ggml_vulkan: 0 = AMD Radeon RX 7600 (RADV NAVI33) (radv) | uma: 0 | fp16: 1 | bf16: 0 | warp size: 64
ggml_vulkan: 1 = AMD Radeon 780M (RADV PHOENIX) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 64
Available devices:
  Vulkan0: AMD Radeon RX 7600 (RADV NAVI33) (8192 MiB, 8000 MiB free)
  Vulkan1: AMD Radeon 780M (RADV PHOENIX) (8192 MiB, 8100 MiB free)
"""


def a_device(name: str, backend: str, description: str, total: int, **changes: Any) -> Device:
    """A card with a pool of its own, all of it free."""
    device = Device(
        name=name,
        backend=backend,
        pool=name.lower(),
        description=description,
        total_bytes=total,
        free_bytes=total,
        bandwidth=Fact(1e11, "profile"),
        flops=Fact(1e13, "profile"),
    )
    return replace(device, **changes)


def with_devices(*devices: Device) -> Fingerprint:
    """A host with these devices."""
    machine = a_machine()
    pools = [Pool(d.pool, "card", d.total_bytes or 1, d.free_bytes or 0) for d in devices if d.pool != "ram"]
    return replace(machine, devices=devices, pools=(*machine.pools, *pools))


def listed(machine: Fingerprint, *found: EngineDevice, **engine: Any) -> Fingerprint:
    """The machine once an engine has listed its devices."""
    return with_engine_devices(replace(machine, engines=(an_engine(devices=found, **engine),)))


def used(machine: Fingerprint) -> list[str]:
    """Names of all devices that some group of them holds, with the machine's only engine."""
    usable = machine_for_engine(machine, machine.engines[0])
    return sorted({name for group in device_groups(usable, {}) for name in group.names})


def test_integrated_graphics_beside_a_card_are_not_used() -> None:
    """B71: 8 GiB discrete, 8 GiB integrated by `uma: 1`: the card's 8 GiB are planned with, never 16."""
    devices = parse_devices(VULKAN_LIST)
    assert [device.integrated for device in devices] == [False, True]
    machine = listed(a_machine(), *devices, backends=("cpu", "vulkan"))
    assert [(device.name, device.integrated, device.pool) for device in machine.devices] == [
        ("Vulkan0", False, "vulkan0"),
        ("Vulkan1", True, "ram"),
    ]
    assert [(pool.name, pool.kind, pool.total_bytes) for pool in machine.pools] == [
        ("ram", "unified", 32 * GIB),
        ("vulkan0", "card", 8 * GIB),
    ]
    assert used(machine) == ["Vulkan0"]
    alone = listed(a_machine(), devices[1], backends=("cpu", "vulkan"))
    assert used(alone) == ["Vulkan1"]
    assert alone.devices[0].cap_bytes == 8 * GIB


def test_older_builds_write_uma_otherwise() -> None:
    """`Vulkan0: ... | uma: 1 |` in place of `ggml_vulkan: 0 = ...`, in the log instead of the list."""
    log = "Vulkan0: AMD Radeon(TM) Graphics (AMD proprietary driver) | uma: 1 | fp16: 1 | warp size: 64\n"
    (device,) = parse_devices("  Vulkan0: AMD Radeon(TM) Graphics (16000 MiB, 15000 MiB free)\n", log)
    assert device.integrated


def test_the_engines_order_counts() -> None:
    """CUDA put the cards the other way round than we thought: each keeps its own memory and speed."""
    cards = (
        a_device("CUDA0", "cuda", "NVIDIA GeForce RTX 3090", 24 * GIB),
        a_device("CUDA1", "cuda", "NVIDIA GeForce RTX 3060", 12 * GIB),
    )
    machine = listed(
        with_devices(*cards),
        EngineDevice("CUDA0", "NVIDIA GeForce RTX 3060", 12 * GIB - 200 * MIB, 11 * GIB),
        EngineDevice("CUDA1", "NVIDIA GeForce RTX 3090", 24 * GIB - 200 * MIB, 23 * GIB),
    )
    assert [(d.name, d.description, d.pool) for d in machine.devices] == [
        ("CUDA0", "NVIDIA GeForce RTX 3060", "cuda1"),
        ("CUDA1", "NVIDIA GeForce RTX 3090", "cuda0"),
    ]
    assert machine.pool("cuda1").available_bytes == 11 * GIB


def test_a_card_hidden_from_the_engine_does_not_stay_under_its_name() -> None:
    """The engine sees only the second of two cards, as its first: one device is left, with the second's memory."""
    cards = (
        a_device("CUDA0", "cuda", "NVIDIA GeForce RTX 3090", 24 * GIB),
        a_device("CUDA1", "cuda", "NVIDIA GeForce RTX 3060", 12 * GIB),
    )
    seen = EngineDevice("CUDA0", "NVIDIA GeForce RTX 3060", 12 * GIB, 11 * GIB)
    assert [(d.name, d.description) for d in listed(with_devices(*cards), seen).devices] == [
        ("CUDA0", "NVIDIA GeForce RTX 3060")
    ]


def test_two_cards_of_one_model_keep_their_order() -> None:
    """The nth of a model is the nth of that model."""
    cards = [a_device(f"CUDA{i}", "cuda", "Tesla T4", 15 * GIB, free_bytes=(15 - i) * GIB) for i in range(2)]
    found = [EngineDevice(f"Vulkan{i}", "Tesla T4", 15 * GIB, 15 * GIB) for i in range(2)]
    machine = listed(with_devices(*cards), *found)
    assert [(d.name, d.pool) for d in machine.devices if d.backend == "vulkan"] == [
        ("Vulkan0", "cuda0"),
        ("Vulkan1", "cuda1"),
    ]
    assert machine.pool("cuda1").available_bytes == 14 * GIB


def test_a_card_under_another_name_is_found_by_vendor_and_size() -> None:
    """The kernel's name of a card need not be Vulkan's: vendor and size tell, and never a card of another size."""
    card = a_device("ROCm0", "rocm", "AMD graphics 0x744c", 24 * GIB, free_bytes=20 * GIB)
    same = EngineDevice("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24 * GIB - 500 * MIB, 23 * GIB)
    machine = listed(with_devices(card), same)
    assert [(d.name, d.pool, d.free_bytes) for d in machine.devices] == [
        ("ROCm0", "rocm0", 20 * GIB),
        ("Vulkan0", "rocm0", 20 * GIB),
    ]
    other = EngineDevice("Vulkan0", "AMD Radeon RX 7600", 8 * GIB, 8 * GIB)
    assert [pool.name for pool in listed(with_devices(card), other).pools] == ["ram", "rocm0", "vulkan0"]


def test_a_card_that_two_backends_of_one_engine_list_is_used_once() -> None:
    """A build with CUDA and Vulkan lists each card twice; a split over both would count its memory twice."""
    card = a_device("CUDA0", "cuda", "Tesla T4", 15 * GIB)
    both = [EngineDevice(name, "Tesla T4", 15 * GIB, 15 * GIB) for name in ("CUDA0", "Vulkan0")]
    machine = listed(with_devices(card), *both, backends=("cpu", "cuda", "vulkan"))
    assert used(machine) == ["CUDA0"]


def test_the_only_reading_of_free_memory_counts() -> None:
    """The kernel did not say how much is free, the engine does."""
    card = a_device("Vulkan0", "vulkan", "Intel Arc B580", 12 * GIB, free_bytes=None)
    machine = with_devices(card)
    assert machine.pool("vulkan0").available_bytes == 0
    seen = listed(machine, EngineDevice("Vulkan0", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12 * GIB, 11 * GIB))
    assert seen.pool("vulkan0").available_bytes == 11 * GIB


def test_rocm_overstates_what_is_free() -> None:
    """B34: 126 to 176 MiB too much: the smaller of two sources counts, and a margin where ROCm is the only one."""
    seen = EngineDevice("ROCm0", "AMD Radeon RX 7900 XTX", 24 * GIB, 20 * GIB)
    card = a_device("ROCm0", "rocm", "AMD Radeon RX 7900 XTX", 24 * GIB, free_bytes=20 * GIB - 150 * MIB)
    assert listed(with_devices(card), seen).pool("rocm0").available_bytes == 20 * GIB - 150 * MIB
    assert listed(a_machine(), seen).pool("rocm0").available_bytes == 20 * GIB - 176 * MIB


def test_unified_parts_that_only_an_engine_lists_share_the_pool() -> None:
    """The device table knows that GB10 has no memory of its own."""
    machine = listed(a_machine(), EngineDevice("CUDA0", "NVIDIA GB10", 119 * GIB, 100 * GIB))
    assert [(d.unified, d.integrated, d.pool) for d in machine.devices] == [(True, False, "ram")]
    assert [pool.name for pool in machine.pools] == ["ram"]


def test_an_engines_card_does_not_take_the_pool_of_another() -> None:
    """The engine counts a card first that no probe found: ours moves up a number and keeps its memory."""
    ours = a_device("Vulkan0", "vulkan", "Intel Arc B580", 12 * GIB)
    found = (
        EngineDevice("Vulkan0", "Some Card", 4 * GIB, 3 * GIB),
        EngineDevice("Vulkan1", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12 * GIB, 11 * GIB),
    )
    machine = listed(with_devices(ours), *found)
    totals = {device.name: machine.pool(device.pool).total_bytes for device in machine.devices}
    assert totals == {"Vulkan0": 4 * GIB, "Vulkan1": 12 * GIB}


def test_a_device_without_a_size_is_left_out() -> None:
    """0 MiB means unknown: no pool of nothing is made."""
    machine = listed(a_machine(), EngineDevice("Vulkan0", "llvmpipe", 0, 0))
    assert (machine.devices, len(machine.pools)) == ((), 1)
    assert machine.notes[-1].rule is Rule.PROBE_FAILED


@pytest.mark.parametrize(
    ("capability", "archs", "usable"),
    [
        ("3.7", (500, 610, 700, 750, 800, 860, 890), False),
        ("6.1", (500, 610, 700), True),
        ("12.0", (500, 890), True),
        ("7.5", (750,), True),
        ("7.0", (750, 860), False),
        ("3.7", (), True),
        (None, (500,), True),
        ("?", (500,), True),
    ],
)
def test_a_build_without_code_for_a_card_is_a_finding(capability, archs, usable) -> None:
    """The engine says what it was compiled for: a card older than all of it stays unused, and that is said."""
    card = a_device("CUDA0", "cuda", "Tesla K80", 11 * GIB, compute_capability=capability)
    machine = listed(with_devices(card), EngineDevice("CUDA0", "Tesla K80", 11 * GIB, 11 * GIB), cuda_archs=archs)
    engine, findings = choose_engine(machine, None)
    assert bool(machine_for_engine(machine, engine).devices) is usable
    assert [finding.rule for finding in findings] == ([] if usable else [Rule.ENGINE_WITHOUT_GPU])
    if not usable:
        assert f"CUDA0 (Tesla K80), which is {capability}" in findings[0].message


def test_unknown_integrated_graphics_are_not_missed() -> None:
    """A CPU build on a laptop is no fault worth a warning; on a known fast one it is."""
    guessed = Fact(1e12, "guessed: unknown")
    small = a_device("Vulkan0", "vulkan", "Intel UHD", 8 * GIB, integrated=True, flops=guessed, pool="ram")
    cpu_only = an_engine(gpu_offload=False, backends=("cpu",))
    assert choose_engine(replace(with_devices(small), engines=(cpu_only,)), None)[1] == ()
    known = replace(small, flops=Fact(5e13, "device table: AMD Radeon 8060S"))
    (finding,) = choose_engine(replace(with_devices(known), engines=(cpu_only,)), None)[1]
    assert finding.rule is Rule.ENGINE_WITHOUT_GPU


NAMES = st.sampled_from(["CUDA0", "CUDA1", "ROCm0", "Vulkan0", "Vulkan1", "Metal", "RPC0", "X", ""])
DESCRIPTIONS = st.sampled_from(["NVIDIA L4", "AMD Radeon RX 7900 XTX", "NVIDIA GB10", "127.0.0.1:5", "", "(x)"])
SIZES = st.integers(-1, 1 << 40)


@given(
    st.lists(st.builds(EngineDevice, NAMES, DESCRIPTIONS, SIZES, SIZES, st.booleans()), max_size=5),
    st.lists(st.tuples(NAMES, DESCRIPTIONS, st.integers(1, 1 << 40)), max_size=4, unique_by=lambda row: row[0].lower()),
)
def test_whatever_an_engine_lists_the_machine_stays_whole(found, own) -> None:
    """Names stay distinct, every device has its pool, no pool has more than its total."""
    cards = [a_device(name or "Y0", "cuda", text, total) for name, text, total in own]
    machine = listed(with_devices(*cards), *found)
    names = [device.name for device in machine.devices]
    assert len(set(names)) == len(names)
    for device in machine.devices:
        assert machine.pool(device.pool).total_bytes > 0
        assert device.free_bytes is None or device.free_bytes >= 0
    assert all(0 <= pool.available_bytes <= pool.total_bytes for pool in machine.pools)
