"""What runs come to, kept: comes back as it was, and only while it holds."""

from __future__ import annotations

import sqlite3

import pytest
from observations.measured import measurement

from magnitude_tune.observations.refinements import (
    Learned,
    RefinementKey,
    keep_refinement,
    kept_refinement,
    rows_of_other_models,
)
from magnitude_tune.observations.store import store, store_path
from magnitude_tune.throughput.posterior import Row, update
from magnitude_tune.throughput.refine import FEATURES, Calibration, Refined

KEY = RefinementKey("machine", "model", "llama_cpp_python", "0.3.36", 512, 128, "basis")
ROW = Row(tuple(1.0 if name in ("host", "model", "build") else 0.0 for name in FEATURES), -0.5, 0.01)


def learned() -> Learned:
    """One exact setting with its posterior; nothing about prompts."""
    exact = {("tg", 2, None, 0, ("RPC0",), (), True): (20.0, 19.0, 21.0)}
    refined = Refined(exact, update([ROW], (0.1,) * len(FEATURES), 0.002))
    return Learned(Calibration(tg=refined, ready={("ready", 0, "mmap", ()): (1.5, 2.0)}, n_runs=1), {"tg": [ROW]})


def test_what_is_kept_comes_back() -> None:
    """Keys, rates and the posterior are the same after the way through the store."""
    store(measurement())
    keep_refinement(KEY, learned())
    assert kept_refinement(KEY) == learned().calibration


def test_another_run_makes_it_stale() -> None:
    """A run that was stored since is not part of it: it is not used then."""
    keep_refinement(KEY, learned())
    assert kept_refinement(KEY) is not None
    store(measurement())
    assert kept_refinement(KEY) is None


@pytest.mark.parametrize("changes", [{"basis": "other"}, {"engine_build": "1"}, {"n_prompt": 64}, {"model_hash": "b"}])
def test_it_holds_for_its_own_subject(changes: dict[str, object]) -> None:
    """Other predictions, builds, workloads and models have none of it."""
    keep_refinement(KEY, learned())
    assert kept_refinement(KEY._replace(**changes)) is None  # type: ignore[arg-type]


def test_without_a_store_there_is_nothing() -> None:
    """Reading begins no store."""
    assert kept_refinement(KEY) is None
    assert rows_of_other_models(KEY) == {"tg": [], "pp": []}
    assert not store_path().exists()


def test_other_models_rows_come_as_groups() -> None:
    """Each other model of this machine, engine and prediction is a group; this model is none."""
    for model, basis in (("model", "basis"), ("one", "basis"), ("two", "basis"), ("three", "older")):
        keep_refinement(KEY._replace(model_hash=model, basis=basis), learned())
    assert rows_of_other_models(KEY) == {"tg": [(ROW,), (ROW,)], "pp": []}


@pytest.mark.parametrize(
    "document", ["[]", "{}", '{"tg": 1}', '{"tg": null, "pp": null, "ready": [[1, ["x"]]], "n_runs": 1}', "not JSON"]
)
def test_a_damaged_refinement_is_passed_over(document: str) -> None:
    """What cannot be read is as good as not there: the runs themselves are read then."""
    keep_refinement(KEY, learned())
    connection = sqlite3.connect(store_path())
    connection.execute("UPDATE refinements SET document = ?", (document,))
    connection.commit()
    connection.close()
    assert kept_refinement(KEY) is None
    assert rows_of_other_models(KEY._replace(model_hash="other")) == {"tg": [], "pp": []}
