"""What the compute buffer of an architecture without a recipe is taken to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_models

from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Term
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import ModelHeader


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelHeader]:
    """A small model of every architecture that has a recipe."""
    folder = tmp_path_factory.mktemp("models")
    return [read_model(tiny_models.write(name, "small", folder)) for name in tiny_models.ARCHITECTURES]


def _computes(make: SimpleNamespace, header: ModelHeader) -> Iterator[Term]:
    devices = {0: (), header.block_count + 1: ("RPC0",)}
    machine = make.machine([make.device("RPC0", "rpc", "ram")])
    model = footprint_model(header, machine, None)
    for n_gpu_layers, names in devices.items():
        for flash_attn in {True, False} if header.flash_attn else {False}:
            settings = make.settings(n_gpu_layers=n_gpu_layers, devices=names, flash_attn=flash_attn)
            yield from (term for term in model.footprint(settings).terms if term.name == "compute")


def test_nine_in_ten_architectures_lie_in_the_interval_of_an_unknown_one(
    make: SimpleNamespace, models: list[ModelHeader]
) -> None:
    """Each architecture under a name that nobody knows: its own figure lies in the interval, and within budgets."""
    within = []
    for header in models:
        real = list(_computes(make, header))
        unknown = list(_computes(make, replace(header, architecture="somebody-else")))
        assert {term.certainty for term in real} == {"exact"}
        assert {term.certainty for term in unknown} == {"estimated"}
        for told, guessed in zip(real, unknown, strict=True):
            assert guessed.reserved_bytes == guessed.high_bytes
            assert guessed.low_bytes < guessed.high_bytes
            within.append(guessed.low_bytes <= told.resident_bytes <= guessed.high_bytes)
    assert sum(within) >= 0.9 * len(within)
