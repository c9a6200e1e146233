"""macOS and Windows, from stored answers of `sysctl` and from psutil."""

from __future__ import annotations

import pytest

from magnitude_tune.fingerprint.elsewhere import (
    metal_device,
    read_sysctl,
    system_memory,
    system_processor,
    system_topology,
)
from magnitude_tune.fingerprint.values import HOST_POOL, Memory

GIB = 1 << 30
MIB = 1 << 20

M2_ULTRA = """machdep.cpu.brand_string: Apple M2 Ultra
hw.physicalcpu: 24
hw.logicalcpu: 24
hw.perflevel0.physicalcpu: 16
hw.memsize: 68719476736
hw.optional.arm64: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 1
iogpu.wired_limit_mb: 0
"""
INTEL_MAC = """machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
hw.physicalcpu: 6
hw.logicalcpu: 12
hw.cpufrequency_max: 2600000000
hw.optional.avx2_0: 1
"""


def host(total, available):
    """Memory without limits."""
    return Memory(total_bytes=total, available_bytes=available, host_total_bytes=total)


def test_an_apple_chip_has_one_pool_and_a_limit(answers):
    """Performance cores, features and the GPU with the default working-set limit of three quarters."""
    facts = read_sysctl(answers(M2_ULTRA, 1, "sysctl: unknown oid 'hw.cpufrequency_max'"))
    processor = system_processor(facts)
    assert processor.brand == "Apple M2 Ultra"
    assert {"asimd", "asimddp", "i8mm"} <= processor.features
    assert processor.max_hertz is None
    device = metal_device(facts, host(64 * GIB, 60 * GIB))
    assert device is not None
    assert (device.name, device.backend, device.pool, device.unified) == ("MTL0", "metal", HOST_POOL, True)
    assert (device.cap_bytes, device.free_bytes) == (48 * GIB, 48 * GIB)
    assert (device.bandwidth.value, device.flops.value) == (800e9, 27.2e12)


@pytest.mark.parametrize(
    ("total", "limit", "cap"),
    [
        (16 * GIB, 0, 16 * GIB * 2 // 3),
        (36 * GIB, 0, 27 * GIB),
        (64 * GIB, 57344, 56 * GIB),
        (16 * GIB, 99999, 16 * GIB),
    ],
)
def test_the_working_set_limit_follows_memory_or_the_setting(answers, total, limit, cap):
    """Two thirds up to 32 GiB, three quarters above, or what the owner has set, never above the memory."""
    facts = read_sysctl(answers(M2_ULTRA.replace("wired_limit_mb: 0", f"wired_limit_mb: {limit}")))
    device = metal_device(facts, host(total, total))
    assert device is not None
    assert device.cap_bytes == cap


def test_an_intel_mac_has_no_metal_device(answers):
    """Its GPU has memory of its own that nothing here measures."""
    facts = read_sysctl(answers(INTEL_MAC))
    assert metal_device(facts, host(16 * GIB, 8 * GIB)) is None
    processor = system_processor(facts)
    assert {"avx2", "fma"} <= processor.features
    assert processor.max_hertz == 2.6e9


@pytest.mark.parametrize(
    ("stdout", "returncode"), [("", None), ("nonsense\n", 0), ("hw.memsize: \x1b\n", 0), ("", 127)]
)
def test_sysctl_that_fails_says_nothing(answers, stdout, returncode):
    """No answer is no facts, and no error: the processor is then without a name."""
    facts = read_sysctl(answers(stdout, returncode))
    assert metal_device(facts, host(GIB, GIB)) is None


def test_psutil_stands_in_where_the_kernel_has_no_files():
    """Memory and cores by psutil are whole and in order, on any system."""
    memory = system_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
    topology = system_topology({})
    assert 1 <= topology.performance_cores <= len(topology.online)
    assert topology.allowed <= topology.online
