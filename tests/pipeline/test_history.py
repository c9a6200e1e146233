"""What was measured here reaches the speed model: kept or worked out anew, it is the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bench.stand_ins import a_header, a_machine, an_engine
from observations.measured import measurement, samples

from magnitude_tune.observations.store import store, store_path
from magnitude_tune.pipeline.history import learn, remember
from magnitude_tune.pipeline.resolve import shipped_coefficients
from magnitude_tune.request import Settings, Workload
from magnitude_tune.throughput.model import PhysicsModel

PLAN = Settings(n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=1024)
OTHER = replace(PLAN, n_threads=1)


def a_run(tg: float, **changes: object) -> None:
    """Store a run of the stand-in's model on its machine, at that rate."""
    facts: dict[str, object] = {
        "machine_hash": a_machine().machine_hash,
        "model_hash": a_header().content_hash,
        "engine": an_engine().name,
        "engine_build": an_engine().build,
        "settings": PLAN,
        "tg_samples": samples(128, (tg, tg * 1.01, tg * 0.99)),
    }
    store(measurement(**(facts | changes)))


def a_model() -> PhysicsModel:
    """The speed model without any history."""
    return PhysicsModel(a_header(), a_machine(), an_engine(), shipped_coefficients())


def learned() -> PhysicsModel:
    """The speed model with what is stored."""
    speed = a_model()
    found = learn(speed, a_header(), a_machine(), an_engine(), workload=Workload(), coefficients=shipped_coefficients())
    assert found == ()
    return speed


def kept() -> None:
    """Work out and keep what is stored."""
    remember(a_header(), a_machine(), an_engine(), workload=Workload(), coefficients=shipped_coefficients())


def test_kept_or_not_the_prediction_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resolve` after a bench predicts what it would from the runs themselves, and reads none of them."""
    before = a_model().speed(OTHER, Workload())
    a_run(before.tg.value / 3)
    a_run(before.tg.value / 3, engine_build="older", settings=OTHER)
    from_runs = learned().speed(OTHER, Workload())
    kept()
    monkeypatch.setattr("magnitude_tune.observations.store.evidence_for", lambda *_, **__: pytest.fail("read"))
    from_kept = learned().speed(OTHER, Workload())
    assert from_kept == from_runs
    assert from_kept.tg.basis == "refined"
    assert from_kept.n_runs == 2
    assert from_kept.tg.value == pytest.approx(before.tg.value / 3, rel=0.1)


def test_other_models_on_this_machine_teach_a_little() -> None:
    """A model that was never measured profits from one that was; the figure says it rests on no run of its own."""
    slow = a_model().shipped_rate(PLAN, "tg") / 3
    a_run(slow)
    kept()
    other = replace(a_header(), content_hash="another model")
    speed = PhysicsModel(other, a_machine(), an_engine(), shipped_coefficients())
    learn(speed, other, a_machine(), an_engine(), workload=Workload(), coefficients=shipped_coefficients())
    found = speed.speed(OTHER, Workload())
    shipped = a_model().speed(OTHER, Workload())
    assert found.tg.value < shipped.tg.value
    assert found.tg.high / found.tg.low < shipped.tg.high / shipped.tg.low


def test_without_a_store_nothing_is_begun() -> None:
    """Nothing measured: as shipped, and no file appears."""
    assert learned().speed(PLAN, Workload()).tg.basis == "shipped"
    assert not store_path().exists()


def test_a_store_of_another_program_is_a_finding(tmp_path: Path) -> None:
    """Planning goes on without what cannot be read, and says so."""
    store_path().parent.mkdir(parents=True)
    store_path().write_text("no database at all, but long enough to be looked at" * 20)
    speed = a_model()
    found = learn(speed, a_header(), a_machine(), an_engine(), workload=Workload(), coefficients=shipped_coefficients())
    assert "planned without what was measured here" in found[0].message
    assert speed.speed(PLAN, Workload()).tg.basis == "shipped"
    kept()


def test_a_store_that_is_gone_meanwhile_changes_nothing() -> None:
    """What is kept goes with its store."""
    a_run(10.0)
    kept()
    shutil.rmtree(store_path().parent)
    assert learned().speed(OTHER, Workload()).tg.basis == "shipped"
