"""Time to ready spans a warm file to a cold one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.request import Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import speed_model
from magnitude_tune.throughput.values import Interval


def ready(build: Any, shipped: Coefficients, machine: Any = None, *buffers: str, **changes: Any) -> Interval:
    """Time to ready of the standard model."""
    model = speed_model(build.header(), machine or build.machine(), build.engine(*buffers), shipped)
    return model.speed(build.settings(**changes), Workload()).ready_seconds


def test_a_slow_disk_makes_the_worst_case_worse(build: Any, shipped: Coefficients) -> None:
    """The cold end waits for the disk; the warm end does not."""
    slow, fast = (
        ready(build, shipped, replace(build.machine(), disk_bandwidth=Fact(rate, "measured"))) for rate in (5e7, 5e9)
    )
    assert slow.low == fast.low
    assert slow.high - fast.high > 981e6 / 5e7 / 2


def test_an_unknown_disk_counts_as_the_shipped_one(build: Any, shipped: Coefficients) -> None:
    """Without a disk rate the stated one is taken."""
    known = replace(build.machine(), disk_bandwidth=Fact(shipped.ready.disk_bandwidth, "stated"))
    assert ready(build, shipped) == ready(build, shipped, known)


def test_repacking_copying_and_uploading_take_time(build: Any, shipped: Coefficients) -> None:
    """Repacked weights, load mode `none`, and weights that go over a slow link each take longer."""
    plain = ready(build, shipped)
    assert ready(build, shipped, None, "cpu_repack", repack=True).low > plain.low
    assert ready(build, shipped, load_mode="none").low > plain.low
    card = build.machine(build.accelerator(link_bandwidth=Fact(1e9, "stated")))
    assert ready(build, shipped, card, n_gpu_layers=17, devices=("CUDA0",)).low > plain.low + 0.5
