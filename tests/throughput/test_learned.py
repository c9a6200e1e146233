"""The learned correction: words of devices, gains, and intervals that widen where training saw nothing alike."""

from __future__ import annotations

import math
import timeit
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.header.values import Role
from magnitude_tune.request import Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.features import NUMBERS, device_words, is_feature
from magnitude_tune.throughput.learned import AS_STATED, OTHER
from magnitude_tune.throughput.model import PhysicsModel, speed_model


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("NVIDIA GeForce RTX 4090", "gpu", {"family:ada", "vendor:nvidia"}),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "gpu", {"family:ada", "vendor:nvidia", "is:laptop"}),
        ("NVIDIA A100-SXM4-80GB", "gpu", {"family:ampere", "vendor:nvidia", "is:stacked"}),
        ("NVIDIA RTX A6000", "gpu", {"family:ampere", "vendor:nvidia", "is:workstation"}),
        ("NVIDIA H100 80GB HBM3", "gpu", {"family:hopper", "vendor:nvidia", "is:stacked"}),
        ("NVIDIA GeForce RTX 5090", "gpu", {"family:blackwell", "vendor:nvidia"}),
        ("Tesla P40", "gpu", {"family:pascal", "vendor:nvidia", "is:workstation"}),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "gpu", {"family:rdna3", "vendor:amd"}),
        ("AMD Instinct MI210", "gpu", {"family:cdna", "vendor:amd", "is:stacked"}),
        ("Intel(R) Arc(TM) A770 Graphics", "gpu", {"family:xe_hpg", "vendor:intel"}),
        ("Apple M4 Max", "apple", {"family:apple", "family:m4"}),
        ("Apple M2 Ultra (76-core GPU)", "apple", {"family:apple", "family:m2"}),
        ("Abacus 9000", "gpu", set()),
        ("", "gpu", set()),
    ],
)
def test_a_device_is_known_by_its_name(build: Any, name: str, kind: str, words: set[str]) -> None:
    """Names as drivers and tables give them lead to family, vendor and what sets the device apart."""
    found = device_words(build.accelerator(description=name), kind)
    assert found == words | {f"kind:{kind}", "backend:cuda"}


@given(st.text(max_size=300))
def test_any_name_gives_features(build: Any, name: str) -> None:
    """Whatever a driver calls its device, its words are features."""
    assert all(is_feature(word) for word in device_words(build.accelerator(description=name), "gpu"))


def _model(build: Any, shipped: Coefficients, name: str, **changes: Any) -> PhysicsModel:
    card = build.accelerator(description=name)
    return speed_model(build.header(**changes), build.machine(card), build.engine(), shipped)


def _width(build: Any, shipped: Coefficients, name: str, **changes: Any) -> float:
    offloaded = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    figure = _model(build, shipped, name, **changes).speed(offloaded, Workload()).tg
    return figure.high / figure.low


def test_an_unknown_device_has_the_widest_interval(build: Any, shipped: Coefficients) -> None:
    """A card whose family training did not see is predicted with more doubt than any that it saw."""
    known = _width(build, shipped, "NVIDIA GeForce RTX 3090")
    unknown = _width(build, shipped, "Abacus 9000")
    assert unknown > 1.2 * known
    assert shipped.learned is not None
    for correction in (shipped.learned.tg, shipped.learned.pp):
        assert correction.spreads[OTHER] == max(correction.spreads.values())


def test_a_model_unlike_any_in_training_has_a_wider_interval(build: Any, shipped: Coefficients) -> None:
    """A thousand times smaller than every model of the table: more doubt on the same card."""
    blocks = tuple(build.group(i, Role.DENSE_FFN, 1000) for i in range(16))
    assert _width(build, shipped, "NVIDIA GeForce RTX 3090", groups=blocks) > 1.2 * _width(
        build, shipped, "NVIDIA GeForce RTX 3090"
    )


def test_what_was_learned_changes_the_value(build: Any, shipped: Coefficients) -> None:
    """The same data sheet under another family's name is another speed; without what was learned it is the same."""
    settings = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    names = ("NVIDIA GeForce RTX 4090", "AMD Radeon Pro VII")
    one, other = (_model(build, shipped, name).tg_seconds(settings, 8) for name in names)
    assert other > 1.1 * one
    stated = shipped._replace(learned=None)
    one, other = (_model(build, stated, name).tg_seconds(settings, 8) for name in names)
    assert one == other


def test_a_device_over_rpc_is_not_corrected(build: Any, shipped: Coefficients) -> None:
    """Training saw no such device: the stated efficiencies and intervals stand."""
    card = build.accelerator("RPC0", backend="rpc", description="NVIDIA GeForce RTX 4090")
    model = speed_model(build.header(), build.machine(card), build.engine(), shipped)
    settings = build.settings(n_gpu_layers=17, devices=("RPC0",))
    figure = model.speed(settings, Workload()).tg
    assert figure.high / figure.value == pytest.approx(shipped.kinds["rpc"].tg_factor_90, rel=0.05)
    assert AS_STATED.tg == AS_STATED.pp == 1.0


@given(
    st.sampled_from(("NVIDIA GeForce RTX 3090", "AMD Radeon RX 7600", "Apple M4", "Intel Arc A770", "Abacus")),
    st.tuples(st.floats(1e9, 4e12), st.floats(1e11, 1e15)),
    st.floats(1.0, 30.0),
)
def test_a_better_data_sheet_is_never_slower(
    build: Any, shipped: Coefficients, name: str, sheet: tuple[float, float], gain: float
) -> None:
    """On the same family of devices more bandwidth, and more arithmetic, never cost time."""
    settings = build.settings(n_gpu_layers=17, devices=("CUDA0",))

    def seconds(*rates: float) -> tuple[float, float]:
        facts = [Fact(rate, "device table") for rate in rates]
        card = replace(build.accelerator(description=name), bandwidth=facts[0], flops=facts[1])
        model = speed_model(build.header(), build.machine(card), build.engine(), shipped)
        return model.tg_seconds(settings, 8), model.pp_seconds(settings, 8, 512)

    bandwidth, flops = sheet
    before = seconds(bandwidth, flops)
    for after in (seconds(bandwidth * gain, flops), seconds(bandwidth, flops * gain)):
        assert all(new <= old * (1 + 1e-9) for new, old in zip(after, before, strict=True))


def test_features_of_the_shipped_file_are_known(shipped: Coefficients) -> None:
    """Every term is a product of names that some device or model can have, and every number has a range."""
    assert shipped.learned is not None
    assert len(shipped.learned.ranges) == len(NUMBERS)
    for correction in (shipped.learned.tg, shipped.learned.pp):
        assert all(is_feature(name) for term in correction.terms for name in term.factors)
        assert all(math.isfinite(term.coefficient) for term in correction.terms)


def test_one_prediction_is_cheap_beside_the_preparation(build: Any, shipped: Coefficients) -> None:
    """A setting that was priced before costs a small part of preparing the model: the regression runs once."""
    model = _model(build, shipped, "NVIDIA GeForce RTX 3090")
    settings = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    model.speed(settings, Workload())
    again = min(timeit.repeat(lambda: model.tg_seconds(settings, 8), number=200, repeat=5)) / 200
    prepare = min(timeit.repeat(lambda: _model(build, shipped, "NVIDIA GeForce RTX 3090"), number=3, repeat=5)) / 3
    assert again < prepare / 5
