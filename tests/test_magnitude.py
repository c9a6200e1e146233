"""The scale: shares, caps, executed and needed magnitude, and every wrong way to write one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.errors import UsageError
from magnitude_tune.magnitude import (
    band,
    executed_for_cores,
    executed_for_pool,
    is_pool_short,
    magnitude_of_bytes,
    magnitude_of_threads,
    needed,
    parse_magnitude,
    pool_floor,
    share,
    thread_cap,
    usable_cores,
)
from magnitude_tune.units import GIB, MIB

magnitudes = st.floats(0.1, 6.0)
totals = st.integers(64 * MIB, 1 << 42)


@pytest.mark.parametrize(
    ("m", "percent", "left_of_24_gib"),
    [
        (1.0, 50, 12),
        (2.0, 75, 6),
        (3.0, 87.5, 3),
        (3.7, 92.3, 1.85),
        (4.0, 93.75, 1.5),
        (4.4, 95.3, 1.14),
        (5.0, 96.9, 0.75),
        (6.0, 98.4, 0.375),
    ],
)
def test_the_law(m: float, percent: float, left_of_24_gib: float) -> None:
    """The table of the scale: one step up halves what is left."""
    assert 100 * share(m) == pytest.approx(percent, abs=0.05)
    assert 24 * (1 - share(m)) == pytest.approx(left_of_24_gib, abs=0.005)


@given(magnitudes, magnitudes)
def test_share_grows_with_the_magnitude(one: float, two: float) -> None:
    """A higher magnitude never allows less."""
    low, high = sorted((one, two))
    assert share(low) <= share(high)
    assert low == high or high - low < 1e-12 or share(low) < share(high)


@given(magnitudes)
def test_share_and_its_inverse_agree(m: float) -> None:
    """The magnitude of a share is the magnitude it came from."""
    assert magnitude_of_bytes(share(m), 1.0) == pytest.approx(m, rel=1e-12, abs=1e-12)


@given(magnitudes, totals, st.integers(-(1 << 40), 1 << 42))
def test_executed_is_within_its_bounds(m: float, total: int, usable: int) -> None:
    """Executed never exceeds the request, and never leaves the scale below."""
    executed = executed_for_pool(m, total, usable)
    assert min(m, 0.1) <= executed <= m
    if 0 < usable < total and executed not in (0.1, m):
        assert share(executed) * total <= usable + 1e-3
        assert share(executed + 0.1) * total > usable - 1e-3


@given(magnitudes, st.integers(1, 256))
def test_thread_cap_is_within_the_cores(m: float, usable: int) -> None:
    """The cap is from one to all usable cores, and the cap's own magnitude is allowed."""
    cap = thread_cap(m, usable)
    assert 1 <= cap <= usable
    assert magnitude_of_threads(cap, usable) <= m + 1e-9
    if cap < usable:
        assert magnitude_of_threads(cap + 1, usable) > m - 1e-9


@pytest.mark.parametrize(
    ("usable", "m", "cap"),
    [(1, 4.0, 1), (2, 4.0, 2), (2, 1.0, 1), (4, 4.0, 4), (20, 4.0, 19), (8, 4.0, 8), (16, 4.0, 15)],
)
def test_thread_caps_round_half_up(usable: int, m: float, cap: int) -> None:
    """share * usable, rounded half up: 7.5 of 8 cores are 8 threads."""
    assert thread_cap(m, usable) == cap


@pytest.mark.parametrize(
    ("cores", "quota", "expected"), [(8, 4.0, 4), (2, 8.0, 2), (16, 2.0, 2), (8, 7.65, 7), (8, 0.5, 1), (8, None, 8)]
)
def test_usable_cores_take_the_tightest(cores: int, quota: float | None, expected: int) -> None:
    """B03: the quota is floored, and never gives less than one core."""
    assert usable_cores(cores, quota) == expected


def test_executed_of_the_documented_case() -> None:
    """2 GiB with 0.75 GiB available and 256 MiB floor execute at 0.4 of a requested 4.0."""
    floor = pool_floor("host", 2 * GIB)
    assert floor == 256 * MIB
    assert executed_for_pool(4.0, 2 * GIB, 768 * MIB - floor) == 0.4


@pytest.mark.parametrize(
    ("kind", "total", "floor"),
    [
        ("host", 3 * GIB, 256 * MIB),
        ("unified", 100 * GIB, 2 * GIB),
        ("remote", 100 * GIB, 2 * GIB),
        ("card", 512 * MIB, 64 * MIB),
        ("card", 24 * GIB, 24 * GIB // 100),
    ],
)
def test_floors(kind: str, total: int, floor: int) -> None:
    """Host and unified pools keep max(256 MiB, 2 %), a card's own max(64 MiB, 1 %)."""
    assert pool_floor(kind, total) == pytest.approx(floor, abs=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "total"), [("card", 512 * MIB), ("host", 3 * GIB)])
@given(m=magnitudes)
def test_an_empty_small_pool_is_not_short(kind: str, total: int, m: float) -> None:
    """The floor of a small pool is more than the magnitude leaves; that alone is no pressure."""
    assert not is_pool_short(m, total, total, pool_floor(kind, total))  # type: ignore[arg-type]


@pytest.mark.parametrize("usable", [1, 2, 4, 20])
@given(m=magnitudes)
def test_idle_cores_execute_as_requested(usable: int, m: float) -> None:
    """Nobody else busy: the magnitude stays."""
    assert executed_for_cores(m, usable, 0.0) == m


def test_busy_cores_scale_down() -> None:
    """Half the cores busy halve the machine: magnitude 1."""
    assert executed_for_cores(4.0, 8, 4.0) == 1.0


@given(magnitudes, st.floats(0, 8))
def test_needed_is_never_more_than_asked(m: float, mu: float) -> None:
    """Needed is a tenth that holds the plan, or the request itself."""
    value = needed(m, mu)
    assert value <= m
    assert value >= min(m, mu) - 1e-6


@pytest.mark.parametrize(("n_bytes", "expected"), [(0, 0.0), (-1, 0.0), (GIB, math.inf), (2 * GIB, math.inf)])
def test_magnitude_of_extreme_sizes(n_bytes: int, expected: float) -> None:
    """Nothing needs no magnitude; everything needs more than there is."""
    assert magnitude_of_bytes(n_bytes, GIB) == expected


def test_the_safe_band() -> None:
    """3.0 to 4.4, both ends included."""
    assert [band(m) for m in (2.9, 3.0, 4.4, 4.5)] == ["light", "safe", "safe", "overcommit"]


@pytest.mark.parametrize(("raw", "value"), [(4, 4.0), (4.2, 4.2), (0.1, 0.1), (6, 6.0), ("4.0", 4.0), (" 3 ", 3.0)])
def test_readable_magnitudes(raw: object, value: float) -> None:
    """Numbers in range, and plain decimals in quotes, which are noted."""
    parsed, note = parse_magnitude(raw, where="agent.yaml:2:12")
    assert parsed == value
    assert (note is not None) == isinstance(raw, str)


@pytest.mark.parametrize(
    "raw",
    [
        *(True, False, None, [4], {}, b"4"),
        *(math.nan, math.inf, -math.inf, 0, -1, 0.09, 6.01, 10, pytest.param(10**5000, id="huge")),
        *("4,0", "1e1", "4_0", "4.0f", "", "４.0", "four", "+4", "-4", ".5", "4.", "nan", "inf", "on", "0x4"),
    ],
)
def test_wrong_magnitudes_say_what_and_where(raw: object) -> None:
    """B40: every wrong form is an error that shows what was read, and its place."""
    with pytest.raises(UsageError) as caught:
        parse_magnitude(raw, where="agent.yaml:2:12")
    assert str(caught.value).startswith("agent.yaml:2:12: magnitude must be")
    assert caught.value.hint


def test_a_comma_is_explained() -> None:
    """4,0 is neither 40 nor 4: the hint shows the right form."""
    with pytest.raises(UsageError) as caught:
        parse_magnitude("4,0", where="--magnitude")
    assert caught.value.hint == "use a point: 4.0"
