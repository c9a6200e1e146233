"""Comparing two runs: what keeps them apart, how far they are from each other, what is noise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observations.measured import QUIET, SETTINGS, measurement, samples

from magnitude_tune.engines.values import Sample
from magnitude_tune.errors import UsageError
from magnitude_tune.observations.compare import LEAST_NOISE, compare_runs, noise_between_runs
from magnitude_tune.observations.history import StoredRun, StoredTest, Timed, runs
from magnitude_tune.observations.statistics import summarise
from magnitude_tune.observations.store import store

PAIR = (replace(SETTINGS, n_threads=1), SETTINGS)


def stored(**changes: object) -> StoredRun:
    """A run with these changes, by way of the store."""
    store(measurement(**changes))
    return runs()[0]


def timed(rates: list[float]) -> StoredTest:
    """A test of 128 generated tokens at those rates."""
    taken = tuple(Sample(128, 128 / rate) for rate in rates)
    summary = summarise(rates)
    return StoredTest(Timed(0, 128, 0), taken, 0, summary, summary.stable)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine_hash": "elsewhere", "cpu_info": "Another CPU"}, "machine: A CPU .* and Another CPU"),
        ({"model_hash": "other", "model_type": "qwen3 0.6B Q8_0"}, "model: gemma3 .* and qwen3 0.6B Q8_0"),
        ({"engine": "llama_server"}, "engine: llama_cpp_python 0.3.36 and llama_server 0.3.36"),
        ({"engine_build": "0.3.37"}, "engine: llama_cpp_python 0.3.36 and llama_cpp_python 0.3.37"),
        ({"n_prompt": 64, "pp_samples": samples(64, (200.0, 201.0, 202.0))}, "workload: pp512, tg128 and pp64, tg128"),
    ],
)
def test_unlike_runs_are_refused_by_what_differs(changes: dict[str, object], named: str) -> None:
    """Machine, model, engine with its build, and workload must be the same; the refusal shows both sides."""
    with pytest.raises(UsageError, match=named) as caught:
        compare_runs(stored(), stored(**changes))
    assert caught.value.exit_code == 2


def test_everything_that_differs_is_named_at_once() -> None:
    """A refusal does not come piece by piece."""
    with pytest.raises(UsageError) as caught:
        compare_runs(stored(), stored(machine_hash="elsewhere", engine="llama_server", model_hash="other"))
    assert all(word in str(caught.value) for word in ("machine:", "model:", "engine:"))


def test_a_clear_difference_is_stated_with_its_interval() -> None:
    """Twice the threads at 1.39 times the rate: beyond noise for writing, and nothing for reading."""
    slow, fast = (
        stored(settings=settings, tg_samples=samples(128, rates))
        for settings, rates in zip(PAIR, ((29.0, 29.5, 30.0), (40.0, 41.0, 42.0)), strict=True)
    )
    found = compare_runs(slow, fast)
    assert found.settings == (("n_threads", 1, 2),)
    reading, writing = found.tests
    assert (reading.ratio, reading.verdict) == (1.0, "within noise")
    assert writing.ratio == pytest.approx(41 / 29.5)
    assert writing.low is not None
    assert writing.high is not None
    assert 1.2 < writing.low < writing.ratio < writing.high < 1.6
    assert writing.verdict == "faster"
    assert compare_runs(fast, slow).tests[1].verdict == "slower"


def test_a_small_sure_difference_is_still_noise_between_runs() -> None:
    """Samples that agree within a run say nothing of the next run: 2 % between two runs is no difference."""
    a, b = (stored(tg_samples=samples(128, [rate] * 5)) for rate in (40.0, 40.8))
    writing = compare_runs(a, b).tests[1]
    assert writing.low is not None
    assert writing.low > 1
    assert writing.noise == LEAST_NOISE
    assert writing.verdict == "within noise"


def test_repeated_runs_tell_the_noise_of_this_machine() -> None:
    """Where runs of one setting differ by a tenth, a difference of a tenth is noise; disturbed runs do not count."""
    for rate in (36.0, 40.0, 44.0, 38.0):
        stored(tg_samples=samples(128, [rate] * 5))
    stored(tg_samples=samples(128, [4.0] * 5), disturbance=replace(QUIET, notes=("others were busy",)))
    stored(tg_samples=samples(128, [5.0] * 5), complete=False)
    noise = noise_between_runs(runs())
    logs = [math.log(rate) for rate in (36.0, 40.0, 44.0, 38.0)]
    mean = sum(logs) / 4
    sigma = math.sqrt(sum((value - mean) ** 2 for value in logs) / 3)
    assert noise["tg"] == pytest.approx(math.expm1(1.6449 * math.sqrt(2) * sigma), rel=1e-3)
    assert noise["pp"] == LEAST_NOISE
    a, b = (
        stored(settings=settings, tg_samples=samples(128, [rate] * 5))
        for settings, rate in zip(PAIR, (40.0, 44.0), strict=True)
    )
    assert compare_runs(a, b, runs()).tests[1].verdict == "within noise"
    assert compare_runs(a, b).tests[1].verdict == "faster"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disturbance": replace(QUIET, notes=("others were busy",))}, "B was disturbed"),
        ({"tg_samples": samples(128, (50.0, 51.0, 52.0)), "complete": False}, "B was interrupted"),
        ({"tg_samples": samples(128, (50.0, 51.0))}, "B is unstable"),
        ({"tg_samples": samples(128, (50.0,))}, "B is unstable"),
        ({"tg_samples": samples(128, (60.0, 20.0, 40.0))}, "B is unstable"),
    ],
)
def test_doubtful_runs_get_figures_and_no_verdict(changes: dict[str, object], reason: str) -> None:
    """A disturbed, interrupted or unstable run is shown beside the other; what to think of it is left open."""
    writing = compare_runs(stored(), stored(**changes)).tests[1]
    assert writing.ratio > 0
    assert writing.verdict == "undecided"
    assert reason in writing.reason


def test_one_sample_has_no_interval() -> None:
    """A single sample tells nothing of its own width: the ratio is shown without one."""
    writing = compare_runs(stored(), stored(tg_samples=samples(128, (50.0,)))).tests[1]
    assert (writing.low, writing.high) == (None, None)
    assert writing.ratio == pytest.approx(50 / 41)


def test_a_test_that_one_run_lacks_is_named() -> None:
    """An interrupted run is compared by what it has."""
    found = compare_runs(stored(), stored(tg_samples=(), complete=False))
    assert [str(difference.key) for difference in found.tests] == ["pp512"]
    assert found.only == ("B has no tg128",)


@given(
    a=st.lists(st.floats(10, 100), min_size=3, max_size=9),
    b=st.lists(st.floats(10, 100), min_size=3, max_size=9),
    factor=st.floats(0.5, 2.0),
)
def test_the_ratio_lies_in_its_interval_turns_around_and_has_no_unit(
    a: list[float], b: list[float], factor: float
) -> None:
    """low <= ratio <= high; B against A is one over A against B; a common factor changes nothing."""
    base = StoredRun(
        *("id", "measured", "", "m", "", "", "h", "f", "t", "e", "1", {}, (), True, True, {}, None, None, None, None)
    )
    one, other = (base._replace(tests=(timed(rates),)) for rates in (a, b))
    scaled = [base._replace(tests=(timed([factor * rate for rate in rates]),)) for rates in (a, b)]
    (there,), (back,), (again,) = (
        compare_runs(*pair).tests for pair in ((one, other), (other, one), (scaled[0], scaled[1]))
    )
    assert there.low is not None
    assert there.high is not None
    assert back.low is not None
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high)
    assert again.low == pytest.approx(there.low)
