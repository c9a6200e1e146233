"""What is not priced would not have been worth it: the table against every placement there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st
from resolver.real_subjects import a_model, a_real_subject
from resolver.stand_ins import A_MOE, a_machine

from magnitude_tune.fingerprint.values import Fact, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.magnitude import magnitude_of_bytes, thread_cap
from magnitude_tune.request import Settings, Workload
from magnitude_tune.resolver.candidates import Search, Shape
from magnitude_tune.resolver.choose import Limits, best_turn, limits_of
from magnitude_tune.resolver.pricing import build_table
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import GIB, MIB

WORKLOAD = Workload()
N_UBATCH = 256


@st.composite
def models(draw: st.DrawFn) -> ModelHeader:
    """Blocks with experts, the first ones dense, of any proportion of dense weights, experts and cache."""
    n_blocks = draw(st.integers(17, 24))
    dense, experts = draw(st.integers(5, 300)) * MIB, draw(st.integers(20, 1500)) * MIB
    first = draw(st.integers(0, 3))
    width = draw(st.sampled_from([128, 512, 1024, 4096]))
    return a_model(
        [dense + experts] * first + [dense] * (n_blocks - first),
        [0] * first + [experts] * (n_blocks - first),
        kv_width=width,
        moe=A_MOE,
    )


@st.composite
def machines(draw: st.DrawFn) -> Fingerprint:
    cards = []
    for _ in range(draw(st.integers(1, 2))):
        total = draw(st.integers(2048, 32768)) * MIB
        cards.append((total, int(total * draw(st.sampled_from([1.0, 0.97, 0.6, 0.2])))))
    machine = a_machine(cores=4, total=draw(st.integers(16, 128)) * GIB, cards=tuple(cards))
    rates = st.sampled_from([3e11, 9e11, 1.8e12])
    link = st.sampled_from([None, 3e9, 25e9])
    devices = [
        replace(
            device,
            bandwidth=Fact(draw(rates), "stated"),
            link_bandwidth=Fact(rate, "stated") if (rate := draw(link)) else None,
        )
        for device in machine.devices
    ]
    return replace(machine, devices=tuple(devices))


def splits(n_layers: int, n_devices: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each device at least one layer."""
    for ends in product(range(1, n_layers), repeat=n_devices - 1):
        if all(one < two for one, two in pairwise(ends)):
            yield tuple(two - one for one, two in pairwise((0, *ends, n_layers)))


def every_placement(subject: Subject, n_ctx: int) -> Iterator[Settings]:
    header, names = subject.header, [device.name for device in subject.machine.devices]
    groups = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    plain = Settings(
        n_gpu_layers=0, n_threads=1, n_threads_batch=1, n_batch=512, n_ubatch=N_UBATCH, n_ctx=n_ctx, load_mode="mmap"
    )
    yield plain
    for devices, n in product(groups, range(1, header.all_layers + 1)):
        on_host = header.all_layers - n
        for n_cpu_moe in (0, *range(on_host + 1, header.block_count + 1)):
            for split in splits(n, len(devices)) if len(devices) > 1 else [()]:
                yield replace(plain, n_gpu_layers=n, devices=devices, n_cpu_moe=n_cpu_moe, tensor_split=split)


def best_of_all(subject: Subject, n_ctx: int, m: float, limits: Limits) -> float | None:
    """The best turn time over every placement, with as many threads as the magnitude allows, in seconds."""
    totals = [subject.machine.pool(name).total_bytes for name in subject.footprint.pools]
    most = thread_cap(m, subject.machine.cpu.usable_cores)
    best = None
    for candidate in every_placement(subject, n_ctx):
        reserved = subject.footprint.reserved(candidate)
        if max(map(magnitude_of_bytes, reserved, totals)) > m + 1e-9 or not limits.hold_bytes(reserved):
            continue
        turn = subject.speed.pp_seconds(candidate, most, WORKLOAD.n_prompt)
        turn += WORKLOAD.n_gen * min(subject.speed.tg_seconds(candidate, n) for n in range(1, most + 1))
        best = turn if best is None else min(best, turn)
    return best


@settings(max_examples=8, deadline=None)
@given(models(), machines(), st.sampled_from([1.0, 3.0, 4.0, 4.4]), st.sampled_from([4096, 32768, 131072]))
def test_no_placement_left_out_is_much_faster(header: ModelHeader, machine: Fingerprint, m: float, n_ctx: int) -> None:
    """Whatever the model, the machine and the context: the table's best is within 3 % of the best of all placements."""
    subject = a_real_subject(header, machine)
    limits = limits_of(machine, subject.footprint.pools, subject.footprint.devices)
    search = Search(subject, WORKLOAD, {"n_ubatch": N_UBATCH})
    table = build_table(search, Shape(n_ctx, 1, False))
    ours, best = best_turn(table, m, limits), best_of_all(subject, n_ctx, m, limits)
    assert (ours is None) == (best is None)
    if ours is not None and best is not None:
        assert ours <= best * 1.03


def test_pairs_stay_few_whatever_the_header_says() -> None:
    """A thousand blocks of experts give hundreds of pairs, not a million; everything offloaded is one of them."""
    subject = a_real_subject(a_model([MIB] * 1000, [MIB] * 1000, moe=A_MOE), a_machine(cards=((24 * GIB, 24 * GIB),)))
    table = build_table(Search(subject, WORKLOAD, {"n_ubatch": N_UBATCH}), Shape(4096, 1, False))
    pairs = {(base.settings.n_gpu_layers, base.settings.n_cpu_moe) for base in table.bases}
    assert (1001, 0) in pairs
    assert len(pairs) < 1000
