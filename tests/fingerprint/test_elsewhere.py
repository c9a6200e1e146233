"""macOS and Windows, from stored answers of `sysctl` and from psutil."""

from __future__ import annotations

import pytest

from magnitude_tune.fingerprint.elsewhere import (
    read_sysctl,
    system_memory,
    system_processor,
    system_topology,
)

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


def test_an_apple_chip_has_its_name_and_features(answers):
    """What the chip is called and can do; its GPU is a probe of its own."""
    facts = read_sysctl(answers(M2_ULTRA, 1, "sysctl: unknown oid 'hw.cpufrequency_max'"))
    processor = system_processor(facts)
    assert processor.brand == "Apple M2 Ultra"
    assert {"asimd", "asimddp", "i8mm"} <= processor.features
    assert processor.max_hertz is None


def test_an_intel_mac_has_its_clock_and_features(answers):
    """What Intel's Macs tell besides the name."""
    facts = read_sysctl(answers(INTEL_MAC))
    processor = system_processor(facts)
    assert {"avx2", "fma"} <= processor.features
    assert processor.max_hertz == 2.6e9


@pytest.mark.parametrize(
    ("stdout", "returncode"), [("", None), ("nonsense\n", 0), ("hw.memsize: \x1b\n", 0), ("", 127)]
)
def test_sysctl_that_fails_says_nothing(answers, stdout, returncode):
    """No answer is no facts, and no error: the processor is then without a name."""
    facts = read_sysctl(answers(stdout, returncode))
    assert set(facts) <= {"hw.memsize"}


def test_psutil_stands_in_where_the_kernel_has_no_files():
    """Memory and cores by psutil are whole and in order, on any system."""
    memory = system_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
    topology = system_topology({})
    assert 1 <= topology.performance_cores <= len(topology.online)
    assert topology.allowed <= topology.online
