"""What measurements here change, and how sure they make us."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.request import Settings, Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import speed_model
from magnitude_tune.throughput.refine import exact_key
from magnitude_tune.throughput.values import Evidence, Speed


def measured(settings: Settings, pp: float | None, tg: float | None, ready: float | None = None) -> Evidence:
    """A measurement with intervals of 2 %."""
    around = lambda rate: None if rate is None else (rate, 0.98 * rate, 1.02 * rate)  # noqa: E731
    return Evidence(settings=settings, pp=around(pp), tg=around(tg), ready_seconds=ready)


def ask(build: Any, shipped: Coefficients, settings: Settings, *evidence: Evidence, devices: Any = ()) -> Speed:
    """The speed of a setting with that evidence."""
    model = speed_model(build.header(), build.machine(*devices), build.engine(), shipped, evidence)
    return model.speed(settings, Workload())


def test_the_measured_setting_is_as_measured(build: Any, shipped: Coefficients) -> None:
    """The exact setting keeps its measured rates, whatever cache_ram is, in predictions and in choices."""
    settings = build.settings()
    model = speed_model(
        build.header(), build.machine(), build.engine(), shipped, (measured(settings, 200.0, 20.0, 3.0),)
    )
    for same in (settings, replace(settings, cache_ram=1024)):
        speed = model.speed(same, Workload())
        assert (speed.pp.value, speed.tg.value) == pytest.approx((200.0, 20.0))
        assert speed.turn_seconds.value == pytest.approx(512 / 200 + 128 / 20)
        assert {speed.pp.basis, speed.tg.basis, speed.turn_seconds.basis, speed.ready_seconds.basis} == {"measured"}
        assert speed.ready_seconds.value == 3.0
        assert speed.n_runs == 1
        assert model.tg_seconds(same, 8) == pytest.approx(1 / 20)
        assert model.pp_seconds(same, 8, 300) == pytest.approx(300 / 200)


def test_every_setting_but_cache_ram_makes_another_key(build: Any) -> None:
    """Each setting that may change a rate makes it another setting; the other phase's threads do not."""
    base = build.settings(devices=("CUDA0",))
    others: dict[str, Any] = {
        "n_gpu_layers": 3,
        "n_batch": 64,
        "n_ubatch": 64,
        "n_ctx": 512,
        "n_parallel": 2,
        "kv_unified": True,
        "flash_attn": False,
        "type_k": "q8_0",
        "type_v": "q8_0",
        "load_mode": "none",
        "repack": True,
        "n_cpu_moe": 1,
        "devices": (),
        "tensor_split": (1, 2),
        "main_gpu": 1,
    }
    named = {*others, "n_threads", "n_threads_batch", "cache_ram", "ctx_checkpoints"}
    assert named == set(Settings.__dataclass_fields__)
    key = exact_key(base, "tg", 8)
    unseen = {"tg": {"n_batch", "n_ubatch", "load_mode"}, "pp": {"load_mode"}, "ready": set()}
    for quantity, ignored in unseen.items():
        same = exact_key(base, quantity, 8)
        changed = {n for n, v in others.items() if exact_key(replace(base, **{n: v}), quantity, 8) != same}
        assert changed == set(others) - ignored
    assert exact_key(base, "tg", 7) != key
    assert exact_key(base, "pp", 8) != key
    assert exact_key(replace(base, cache_ram=8192), "tg", 8) == key


def test_other_settings_move_with_the_measured_one(build: Any, shipped: Coefficients) -> None:
    """A run at half the predicted rate halves other settings' too: none looks much better for not being measured."""
    base = build.settings()
    others = [build.settings(n_threads=n, n_threads_batch=n, n_ubatch=256) for n in (4, 6)]
    before = [ask(build, shipped, other) for other in (base, *others)]
    evidence = measured(base, before[0].pp.value / 2, before[0].tg.value / 2)
    after = [ask(build, shipped, other, evidence) for other in others]
    factors = [new.tg.value / old.tg.value for new, old in zip(after, before[1:], strict=True)]
    assert factors[0] == pytest.approx(factors[1], rel=0.01)
    assert factors[0] == pytest.approx(0.5, rel=0.15)
    factors = [new.pp.value / old.pp.value for new, old in zip(after, before[1:], strict=True)]
    assert factors[0] == pytest.approx(factors[1], rel=0.01)
    assert factors[0] == pytest.approx(0.5, rel=0.15)
    for new, old in zip(after, before[1:], strict=True):
        assert new.tg.basis == new.pp.basis == new.turn_seconds.basis == "refined"
        assert new.tg.high / new.tg.low < old.tg.high / old.tg.low
        assert new.pp.high / new.pp.low < old.pp.high / old.pp.low


def test_agreeing_runs_narrow_and_contradicting_ones_widen(build: Any, shipped: Coefficients) -> None:
    """Three settings off by the same factor leave less doubt than one; three that disagree leave more."""
    settings = [build.settings(n_ctx=n) for n in (512, 1024, 2048)]
    rates = [ask(build, shipped, item).tg.value for item in settings]
    other = build.settings(n_ctx=8192)

    def width(*factors: float) -> float:
        evidence = [
            measured(item, None, rate * factor) for item, rate, factor in zip(settings, rates, factors, strict=False)
        ]
        tg = ask(build, shipped, other, *evidence).tg
        return tg.high / tg.low

    assert width(0.7, 0.7, 0.7) < width(0.7)
    assert width(0.3, 0.7, 1.6) > width(0.7)


def test_one_wild_run_does_not_rule(build: Any, shipped: Coefficients) -> None:
    """One run ten times too fast among three is held back: the others keep it within a tenth."""
    settings = [build.settings(n_threads=n) for n in (2, 4, 8)]
    rates = [ask(build, shipped, item).tg.value for item in settings]
    other = build.settings(n_threads=1)
    calm = [measured(item, None, rate) for item, rate in zip(settings, rates, strict=True)]
    wild = [calm[0], measured(settings[1], None, 10 * rates[1]), calm[2]]
    expected = ask(build, shipped, other).tg.value
    assert ask(build, shipped, other, *wild).tg.value == pytest.approx(expected, rel=0.1)


def test_several_runs_of_one_setting_count_once(build: Any, shipped: Coefficients) -> None:
    """Runs of one setting join to their median and the hull of their intervals; all of them are counted."""
    base = build.settings()
    runs = [measured(base, 100.0, rate, 2.0) for rate in (10.0, 11.0, 14.0)]
    speed = ask(build, shipped, base, *runs)
    assert speed.tg.value == pytest.approx(11.0)
    assert speed.tg.low <= 9.8
    assert speed.tg.high >= 14.28
    assert speed.n_runs == 3


def test_a_measurement_without_prompts_changes_only_generation(build: Any, shipped: Coefficients) -> None:
    """Where only tg was measured, pp stays as shipped, and so does the basis of the turn."""
    base = build.settings()
    speed = ask(build, shipped, base, measured(base, None, 5.0))
    assert speed.tg.basis == "measured"
    assert speed.pp == ask(build, shipped, base).pp
    assert speed.turn_seconds.basis == "shipped"


def test_a_run_on_the_host_says_little_about_a_card(build: Any, shipped: Coefficients) -> None:
    """A run on the CPU at a tenth of the prediction moves a card's by less than half; its interval stays wide."""
    card = build.accelerator()
    offloaded = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    before = ask(build, shipped, offloaded, devices=(card,))
    host = ask(build, shipped, build.settings(), devices=(card,)).tg.value
    after = ask(build, shipped, offloaded, measured(build.settings(), 50.0, host / 10), devices=(card,))
    assert before.tg.value / 2 < after.tg.value < before.tg.value
    assert after.tg.high / after.tg.low > (before.tg.high / before.tg.low) ** 0.8
    assert after.tg.basis == "refined"


def test_a_run_on_the_card_sharpens_the_card(build: Any, shipped: Coefficients) -> None:
    """A run of everything offloaded moves and narrows other plans by how much of their time the card takes."""
    card = build.accelerator()
    measured_plan, other, host = (build.settings(n_gpu_layers=n, devices=("CUDA0",) if n else ()) for n in (17, 12, 0))
    before = {plan: ask(build, shipped, plan, devices=(card,)).tg for plan in (measured_plan, other, host)}
    run = measured(measured_plan, None, before[measured_plan].value / 2)
    after = {plan: ask(build, shipped, plan, run, devices=(card,)).tg for plan in (other, host)}
    moved = {plan: after[plan].value / before[plan].value for plan in after}
    assert moved[other] < 0.9
    assert moved[other] < moved[host] <= 1
    assert after[host].high / after[host].low > 0.9 * before[host].high / before[host].low


def test_runs_at_a_depth_teach_other_depths(build: Any, shipped: Coefficients) -> None:
    """A run after 4,096 tokens is no fact about depth 0, but moves what is predicted there."""
    base = build.settings()
    model = speed_model(build.header(), build.machine(), build.engine(), shipped)
    deep = measured(base, None, model.shipped_rate(base, "tg", 4096) / 2)._replace(depth=4096)
    model.learn([deep])
    assert model.rate_interval(base, "tg").basis == "refined"
    assert model.rate_interval(base, "tg", 4096).value < 0.6 * model.shipped_rate(base, "tg", 4096)
    assert 0.5 < model.rate_interval(base, "tg").value / model.shipped_rate(base, "tg") < 0.75


def test_another_build_counts_less_and_is_no_fact(build: Any, shipped: Coefficients) -> None:
    """An older build's run refines, less than today's would, and the same setting is still a prediction."""
    base = build.settings()
    before = ask(build, shipped, base).tg
    old = measured(base, None, before.value / 2)._replace(same_build=False)
    now = ask(build, shipped, base, old).tg
    other = ask(build, shipped, build.settings(n_ctx=512), measured(base, None, before.value / 2)).tg
    assert now.basis == "refined"
    assert before.value / 2 < now.value < before.value * 0.7
    assert other.high / other.low < now.high / now.low < before.high / before.low


def test_other_models_count_less_however_many_runs(build: Any, shipped: Coefficients) -> None:
    """Another model's runs on this machine refine; ten of them leave the doubt about what is this model's own."""
    base = build.settings()
    model = speed_model(build.header(), build.machine(), build.engine(), shipped)
    before = model.rate_interval(base, "tg")
    runs = [measured(build.settings(n_threads=8, n_ctx=512 + i), None, before.value / 2) for i in range(10)]
    rows = model.rows(runs, "tg")
    widths, values = [], []
    for count in (1, 10):
        model.learn((), {"tg": [rows[:count]]})
        after = model.rate_interval(base, "tg")
        assert after.basis == "refined"
        widths.append(after.high / after.low)
        values.append(after.value)
    assert before.value / 2 < values[1] <= values[0] < 0.75 * before.value
    model.learn(runs)
    own = model.rate_interval(build.settings(n_ctx=8192), "tg")
    assert own.high / own.low < widths[1] <= widths[0] < before.high / before.low


def test_runs_on_devices_that_are_gone_do_not_count(build: Any, shipped: Coefficients) -> None:
    """A measurement with a device that this machine has no more is left out."""
    gone = build.settings(n_gpu_layers=17, devices=("RPC0",))
    base = build.settings()
    assert ask(build, shipped, base, measured(gone, 1.0, 1.0)) == ask(build, shipped, base)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_are_no_evidence(build: Any, shipped: Coefficients, rate: float) -> None:
    """Zero, negative and infinite rates leave the prediction as shipped."""
    base = build.settings()
    speed = ask(build, shipped, base, measured(base, rate, rate, rate))
    assert (speed.tg, speed.pp) == (ask(build, shipped, base).tg, ask(build, shipped, base).pp)
    assert speed.ready_seconds.basis == "shipped"


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(1e-12, 1e12)), min_size=1, max_size=8))
def test_figures_stay_figures(build: Any, shipped: Coefficients, runs: list[tuple[int, float]]) -> None:
    """Whatever was measured, every rate is finite and above 0 and lies in its interval."""
    evidence = tuple(measured(build.settings(n_threads=n, n_ctx=512), 1000 * f, 10 * f) for n, f in runs)
    model = speed_model(build.header(), build.machine(), build.engine(), shipped, evidence)
    for n in range(1, 9):
        speed = model.speed(build.settings(n_threads=n), Workload())
        for figure in (speed.pp, speed.tg, speed.ttft_seconds, speed.turn_seconds, speed.ready_seconds):
            assert 0 < figure.low <= figure.value <= figure.high
            assert math.isfinite(figure.high)
