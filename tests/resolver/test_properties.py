"""Properties of choosing, over many machines and models."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from resolver.stand_ins import A_MOE, a_header, a_machine, a_subject

from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.magnitude import magnitude_of_bytes, magnitude_of_threads, share
from magnitude_tune.request import Request
from magnitude_tune.resolver.candidates import Search, Table
from magnitude_tune.resolver.choose import best_turn, choose, limits_of
from magnitude_tune.resolver.concessions import wanted_shape
from magnitude_tune.resolver.pricing import build_table
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import GIB, MIB

magnitudes = st.floats(0.1, 6.0)
sizes = st.integers(256, 64 * 1024).map(lambda n: n * MIB)


@st.composite
def machines(draw: st.DrawFn) -> Fingerprint:
    total = draw(sizes)
    cards = []
    for _ in range(draw(st.integers(0, 2))):
        card = draw(sizes)
        cards.append((card, draw(st.integers(0, card))))
    return a_machine(
        cores=draw(st.sampled_from([1, 2, 4, 8, 20])),
        total=total,
        available=draw(st.integers(0, total)),
        cards=tuple(cards),
    )


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    header = a_header(draw(st.integers(1, 6)), moe=draw(st.sampled_from([None, A_MOE])))
    return a_subject(header, draw(machines()))


def table_of(subject: Subject, request: Request) -> Table:
    search = Search(subject=subject, workload=request.workload, pins={})
    return build_table(search, wanted_shape(request, subject.header))


@settings(max_examples=60, deadline=None)
@given(subjects(), st.lists(magnitudes, min_size=2, max_size=6))
def test_turn_time_never_rises_with_the_magnitude(subject: Subject, ms: list[float]) -> None:
    """More of the machine is never chosen to be slower."""
    table = table_of(subject, Request())
    limits = limits_of(subject.machine, table.pools, subject.footprint.devices)
    chosen = [row.turn_seconds for m in sorted(ms) if (row := choose(table, m, limits)) is not None]
    assert chosen == sorted(chosen, reverse=True)


@settings(max_examples=60, deadline=None)
@given(subjects(), magnitudes, st.floats(0, 1))
def test_less_memory_never_gives_a_better_best_turn(subject: Subject, m: float, part: float) -> None:
    """Taking available memory away cannot speed the best candidate up."""
    table = table_of(subject, Request())
    less = replace(
        subject.machine,
        pools=tuple(replace(p, available_bytes=int(p.available_bytes * part)) for p in subject.machine.pools),
    )
    much = best_turn(table, m, limits_of(subject.machine, table.pools, ()))
    little = best_turn(table, m, limits_of(less, table.pools, ()))
    assert little is None or (much is not None and little >= much)


@settings(max_examples=60, deadline=None)
@given(subjects(), magnitudes, st.integers(256, 65536))
def test_a_plan_fits_what_it_was_given(subject: Subject, m: float, n_ctx: int) -> None:
    """Whatever is chosen is within the magnitude, within what is free, and stable under repetition."""
    try:
        resolution = resolve(subject, Request(magnitude=m, n_ctx=n_ctx))
    except DoesNotFitError:
        return
    usable = subject.machine.cpu.usable_cores
    chosen = resolution.settings
    assert magnitude_of_threads(max(chosen.n_threads, chosen.n_threads_batch), usable) <= m + 1e-9
    assert 1 <= chosen.n_threads <= usable
    assert 1 <= chosen.n_ubatch <= chosen.n_batch <= chosen.n_ctx
    for use in resolution.pools:
        assert use.reserved_bytes <= use.available_bytes - use.floor_bytes or use.reserved_bytes == 0
        assert magnitude_of_bytes(use.reserved_bytes, use.total_bytes) <= m + 1e-9
        assert 0.1 <= use.executed <= m or use.executed == m
    assert resolution.magnitude.needed <= m
    assert resolve(subject, Request(magnitude=m, n_ctx=n_ctx)) == resolution


@settings(max_examples=40, deadline=None)
@given(subjects(), magnitudes)
def test_the_needed_magnitude_is_enough(subject: Subject, m: float) -> None:
    """Asking for no more than was needed gives a plan as fast."""
    try:
        resolution = resolve(subject, Request(magnitude=m))
    except DoesNotFitError:
        return
    needed = max(0.1, resolution.magnitude.needed)
    again = resolve(subject, Request(magnitude=needed))
    assert again.predicted.turn_seconds.value <= resolution.predicted.turn_seconds.value * 1.03 + 1e-12


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 20]),
    st.sampled_from([3 * GIB, 8 * GIB]),
    st.sampled_from([512 * MIB, 8 * GIB]),
    magnitudes,
)
def test_a_free_machine_is_never_under_pressure(cores: int, ram: int, card: int, m: float) -> None:
    """Small pools and few cores give no false pressure: with everything free, executed is requested."""
    subject = a_subject(a_header(4), a_machine(cores=cores, total=ram, cards=((card, card),)))
    try:
        resolution = resolve(subject, Request(magnitude=m))
    except DoesNotFitError:
        return
    assert resolution.magnitude.executed == m
    assert share(m) > 0
