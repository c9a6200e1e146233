"""The device table: whole, with sources, and found by the names that drivers and engines write."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from magnitude_tune.fingerprint import device_table
from magnitude_tune.fingerprint.device_table import known_device, least_variant, same_model

GIB = 1 << 30
TABLE = Path(device_table.__file__).with_name("devices.csv")


def rows():
    """The table's rows."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_row_has_rates_and_a_source():
    """Positive figures, a kind that is known, and where they come from; no row twice."""
    table = rows()
    assert len(table) > 300
    for row in table:
        assert row["kind"] in ("gpu", "igpu", "apple"), row
        assert float(row["bandwidth_gb_per_second"]) > 0, row
        assert float(row["tflops"]) > 0, row
        assert not row["memory_gib"] or float(row["memory_gib"]) > 0, row
        assert row["source"].strip(), row
    whole = [tuple(row.values()) for row in table]
    assert len(set(whole)) == len(whole)


def test_every_row_finds_itself():
    """A row's own name and memory find a row of that name, as fast or slower."""
    for row in rows():
        found = known_device(row["name"], int(float(row["memory_gib"]) * GIB) if row["memory_gib"] else None)
        assert found is not None, row
        assert found.bandwidth.value <= float(row["bandwidth_gb_per_second"]) * 1e9, row


@pytest.mark.parametrize(
    ("name", "gib", "row"),
    [
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 24, "AMD Radeon RX 7900 XTX"),
        ("Radeon RX 7900 XTX", 24, "AMD Radeon RX 7900 XTX"),
        ("AMD Radeon 780M Graphics (RADV PHOENIX)", 16, "AMD Radeon 780M"),
        ("Intel(R) Arc(TM) A770 Graphics (DG2)", 16, "Intel Arc A770"),
        ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12, "Intel Arc B580"),
        ("AMD Instinct MI210", 64, "AMD Instinct MI210"),
        ("Radeon 8060S Graphics (RADV GFX1151)", 64, "AMD Radeon 8060S"),
        ("AMD Radeon Graphics (RADV GFX1151)", 64, None),
        ("Apple M4 Max", None, "Apple M4 Max"),
    ],
)
def test_names_as_vulkan_and_rocm_write_them(name, gib, row):
    """What drivers put in brackets, and trade marks, do not hide a device."""
    found = known_device(name, None if gib is None else gib * GIB)
    assert (found.name if found else None) == row


def test_the_least_variant_of_a_chip_is_on_the_safe_side():
    """Chips sold with several GPUs: the slowest one."""
    found = least_variant("Apple M3 Max")
    assert found is not None
    assert found.name == "Apple M3 Max (30-core GPU)"
    assert least_variant("Apple M99") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090 (NVIDIA)", True),
        ("AMD Radeon RX 6800 XT", "AMD Radeon RX 6800", False),
        ("Orin (nvgpu)", "Orin", True),
        ("", "", False),
        ("NVIDIA", "AMD", False),
    ],
)
def test_two_names_of_one_model(one, other, same):
    """Vendors' words and brackets do not count; every other word does."""
    assert same_model(one, other) is same
