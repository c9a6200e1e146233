"""Apple's GPUs from recorded answers of `sysctl` and `system_profiler`."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.fingerprint.apple import read_apple
from magnitude_tune.fingerprint.values import HOST_POOL, Memory
from magnitude_tune.processes import Completed

GIB = 1 << 30
MIB = 1 << 20
ULTRA = {"machdep.cpu.brand_string": "Apple M2 Ultra", "hw.optional.arm64": "1", "iogpu.wired_limit_mb": "0"}


def host(total, available):
    """Memory without limits."""
    return Memory(total_bytes=total, available_bytes=available, host_total_bytes=total)


def displays(cores):
    """`system_profiler SPDisplaysDataType -json` of a Mac with one GPU."""
    gpu = {
        "_name": "kHW_AppleM2UltraItem",
        "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
        "spdisplays_vendor": "sppci_vendor_Apple",
        "sppci_bus": "spdisplays_builtin",
        "sppci_cores": cores,
        "sppci_device_type": "spdisplays_gpu",
        "sppci_model": "Apple M2 Ultra",
    }
    return json.dumps({"SPDisplaysDataType": [gpu]}, indent=2)


def test_an_apple_chip_shares_one_pool_up_to_a_limit(answers):
    """The GPU has no pool of its own, and may keep three quarters of 64 GiB; silence gives the chip's usual rates."""
    facts = read_apple(ULTRA, answers("", 127), host(64 * GIB, 60 * GIB))
    (device,) = facts.devices
    assert facts.pools == ()
    assert (device.name, device.backend, device.pool, device.unified) == ("MTL0", "metal", HOST_POOL, True)
    assert (device.cap_bytes, device.free_bytes) == (48 * GIB, 48 * GIB)
    assert (device.bandwidth.value, device.flops.value) == (800e9, 27.2e12)


@pytest.mark.parametrize(
    ("total", "limit", "cap"),
    [
        (16 * GIB, 0, 16 * GIB * 2 // 3),
        (32 * GIB, 0, 32 * GIB * 2 // 3),
        (36 * GIB, 0, 27 * GIB),
        (64 * GIB, 57344, 56 * GIB),
        (16 * GIB, 99999, 16 * GIB),
    ],
)
def test_the_working_set_limit_follows_memory_or_the_setting(answers, total, limit, cap):
    """Two thirds up to 32 GiB, three quarters above, or what the owner has set, never above the memory."""
    facts = ULTRA | {"iogpu.wired_limit_mb": str(limit)}
    (device,) = read_apple(facts, answers("", 127), host(total, total)).devices
    assert device.cap_bytes == cap


def test_the_number_of_gpu_cores_picks_the_row(answers):
    """A chip sold with several GPUs: the answer names the cores, and is asked for once."""
    run = answers(displays("60"))
    for _ in range(2):
        (device,) = read_apple(ULTRA, run, host(64 * GIB, GIB)).devices
        assert device.flops.value == 21.5e12
        assert device.flops.source == "device table: Apple M2 Ultra (60-core GPU)"
        assert device.runtime == "Metal 3"
    assert [argv for argv, _ in run.asked] == [("system_profiler", "SPDisplaysDataType", "-json")]


def test_a_chip_of_several_sizes_is_taken_for_the_least(answers):
    """Where the cores are unknown and the table has no row for the chip as such, the slower variant is planned with."""
    facts = ULTRA | {"machdep.cpu.brand_string": "Apple M2 Max"}
    (device,) = read_apple(facts, answers("", None), host(64 * GIB, GIB)).devices
    assert device.bandwidth.source == "device table: Apple M2 Max (30-core GPU)"


def test_an_unknown_chip_is_asked_nothing(answers):
    """Without variants in the table there is no reason to start a program; rates are guessed and say so."""
    run = answers(displays("10"))
    facts = ULTRA | {"machdep.cpu.brand_string": "Apple M99"}
    (device,) = read_apple(facts, run, host(64 * GIB, GIB)).devices
    assert run.asked == []
    assert device.bandwidth.source.startswith("guessed")


@pytest.mark.parametrize(
    "facts", [{}, {"machdep.cpu.brand_string": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz"}, {"hw.optional.arm64": "1"}]
)
def test_an_intel_mac_has_no_metal_device(answers, facts):
    """Its GPU has memory of its own that nothing here measures."""
    assert read_apple(facts, answers(displays("60")), host(16 * GIB, 8 * GIB)).devices == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    answer=st.text() | st.sampled_from(["{}", "[1]", '{"SPDisplaysDataType": 3}', "[" * 5000, displays("-1")]),
    limit=st.text(max_size=20) | st.integers(0, 10**15).map(str),
    total=st.integers(1, 1 << 45),
)
def test_any_answer_makes_a_device_of_some_memory(monkeypatch, tmp_path_factory, answer, limit, total):
    """Whatever the commands say, the limit is positive and within the memory."""
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path_factory.mktemp("home")))
    facts = ULTRA | {"iogpu.wired_limit_mb": limit}
    (device,) = read_apple(facts, lambda *_: Completed(0, answer, ""), host(total, total)).devices
    assert device.cap_bytes is not None
    assert 0 < device.cap_bytes <= total
    assert device.flops.value > 0
