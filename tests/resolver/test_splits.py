"""Layers shared out over devices, and that the engine shares them out the same way."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resolver.real_subjects import a_model, a_real_subject
from resolver.stand_ins import a_machine

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.footprint.placement import place_layers
from magnitude_tune.magnitude import magnitude_of_bytes
from magnitude_tune.request import Request, Settings, layers_per_device
from magnitude_tune.resolver.candidates import Search, Shape, candidate_families
from magnitude_tune.resolver.choose import limits_of
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.units import GIB, MIB


def single(number: float) -> float:
    """The nearest number in single precision."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def engine_counts(n_layers: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Layers per device as the engine has it, in its precision: the first cumulative share above i / n."""
    sums = [single(reached) for reached in accumulate(shares)]
    points = [single(reached / sums[-1]) for reached in sums]
    of_layer = [bisect_right(points, single(layer / n_layers)) for layer in range(n_layers)]
    return tuple(of_layer.count(device) for device in range(len(shares)))


@settings(max_examples=300)
@given(st.lists(st.integers(1, 200), min_size=2, max_size=8))
def test_the_engine_reproduces_counts_exactly(counts: list[int]) -> None:
    """Layer counts as shares come out as these counts: in the engine's arithmetic and in ours."""
    n_layers = sum(counts)
    assert engine_counts(n_layers, counts) == tuple(counts)
    assert layers_per_device(n_layers, counts) == tuple(counts)
    spans = place_layers(n_layers - 1, n_layers, list(range(1, len(counts) + 1)), counts, ()).spans
    assert [span.end - span.first + span.holds_output for span in spans] == counts


def test_every_split_of_a_few_layers_is_reproduced() -> None:
    """All splits of up to 90 layers over two devices, and of 33 over three."""
    for n_layers in range(2, 91):
        for first in range(1, n_layers):
            assert engine_counts(n_layers, (first, n_layers - first)) == (first, n_layers - first)
    for first in range(1, 32):
        for second in range(1, 33 - first):
            counts = (first, second, 33 - first - second)
            assert engine_counts(33, counts) == counts


def splits_of(cards: tuple[tuple[int, int], ...], sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Splits of all layers over all cards that are offered."""
    subject = a_real_subject(a_model(sizes), a_machine(total=64 * GIB, cards=cards))
    search = Search(subject, Request().workload, {})
    offered: set[tuple[int, ...]] = set()
    for family in candidate_families(search, Shape(4096, 1, False)):
        for several in (each for batches in family for each in batches):
            offered |= {s.tensor_split for s in several if len(s.devices) == len(cards)}
    return {split for split in offered if sum(split) == len(sizes) + 1}


def test_splits_follow_what_each_card_has_left() -> None:
    """By total the first card takes most layers; as it is nearly full, another split is offered that fits."""
    offered = splits_of(((24 * GIB, 6 * GIB), (12 * GIB, 12 * GIB)), [300 * MIB] * 40)
    assert any(first > second for first, second in offered)
    assert any(first < second for first, second in offered)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(100, 900), min_size=6, max_size=24),
    st.lists(st.tuples(st.integers(2048, 16384), st.sampled_from([1.0, 0.8, 0.3])), min_size=2, max_size=2),
)
def test_a_full_offload_is_found_if_any_split_gives_one(mibs: list[int], cards: list[tuple[int, float]]) -> None:
    """With real layers of any size: whenever some split of all layers fits two cards, a full offload is chosen."""
    machine = a_machine(total=64 * GIB, cards=tuple((total * MIB, int(total * MIB * part)) for total, part in cards))
    subject = a_real_subject(a_model([mib * MIB for mib in mibs]), machine)
    limits = limits_of(machine, subject.footprint.pools, subject.footprint.devices)
    n_all = subject.header.all_layers
    both = Settings(
        n_gpu_layers=n_all,
        n_threads=1,
        n_threads_batch=1,
        n_batch=512,
        n_ubatch=512,
        n_ctx=8192,
        devices=("CUDA0", "CUDA1"),
    )
    splits = [replace(both, tensor_split=(first, n_all - first)) for first in range(1, n_all)]
    totals = [pool.total_bytes for pool in machine.pools]

    def fits(plan: Settings) -> bool:
        reserved = subject.footprint.reserved(plan)
        return limits.hold_bytes(reserved) and max(map(magnitude_of_bytes, reserved, totals)) <= 6.0

    if any(map(fits, splits)):
        assert resolve(subject, Request(magnitude=6.0)).settings.n_gpu_layers == n_all


@pytest.mark.parametrize("fast", [0, 1])
def test_the_faster_card_is_filled_first(fast: int) -> None:
    """Of two cards that hold the model together, the one with more bandwidth gets all that it can hold."""
    machine = a_machine(total=64 * GIB, cards=((16 * GIB, 16 * GIB), (16 * GIB, 16 * GIB)))
    devices = list(machine.devices)
    devices[1 - fast] = replace(devices[1 - fast], bandwidth=Fact(2e11, "stated"))
    machine = replace(machine, devices=tuple(devices))
    resolution = resolve(a_real_subject(a_model([500 * MIB] * 40), machine), Request())
    assert resolution.settings.n_gpu_layers == 41
    assert resolution.settings.tensor_split[fast] > 1.5 * resolution.settings.tensor_split[1 - fast]


def test_bounds_are_ordered_whatever_the_bytes() -> None:
    """A block larger than a card still gives counts that add up."""
    for split in splits_of(((4 * GIB, 3 * GIB), (24 * GIB, 24 * GIB)), [8 * GIB] + [100 * MIB] * 10):
        assert sum(split) == 12
        assert all(one <= two for one, two in pairwise((0, *accumulate(split))))
