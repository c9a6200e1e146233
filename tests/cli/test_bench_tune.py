"""`bench --tune`: the path, the winner, going on; on a stand-in engine, and once on a real one."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.stand_ins import FakeSession, a_machine, a_resolution
from cli.bench_command import a_resolved, n_stored
from cli.console import run

from magnitude_tune.cli.app import main
from magnitude_tune.engines.crashes import engine_crash
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.observations.history import runs
from magnitude_tune.pipeline.resolve import Resolved, ResolveOptions
from magnitude_tune.request import Settings

Tune = Callable[..., int]


def planned(options: ResolveOptions) -> Resolved:
    """What the pipeline would have given: the pins as they are; a batch of 512 does not fit."""
    plan = a_resolution()
    flags = dict(options.flags)
    if flags.get("n_ubatch") == "512":
        raise DoesNotFitError("ram lacks 1 GiB", where="n_ubatch", hint="name a smaller one")
    numbers: dict[str, Any] = {
        name: int(flags[name]) for name in ("n_threads", "n_threads_batch", "n_ubatch") if name in flags
    }
    settings = replace(plan.settings, **numbers, flash_attn=flags.get("flash_attn", "on") == "on")
    return a_resolved(resolution=plan._replace(settings=settings))


class Engine:
    """An engine whose rates depend on its settings; notes what was opened."""

    def __init__(self, factor: Callable[[Settings], float]) -> None:
        self.factor, self.opened = factor, list[Settings]()
        self.interrupt_at: int | None = None
        self.crash_at: int | None = None

    def __call__(self, _engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        number = len(self.opened)
        self.opened.append(launch.settings)
        if number == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        if number == self.crash_at:
            raise engine_crash("llama-server", -6, "GGML_ASSERT failed")
        factor = self.factor(launch.settings)
        rates = [factor * each for each in (1.0, 1.01, 0.99, 1.0)]
        session = FakeSession(pp_rates=[200 * each for each in rates], tg_rates=[40 * each for each in rates])
        return Opened(session, launch)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Runs `bench --tune` in this process on a stand-in engine; gives the exit code."""

    def command(engine: Engine, *arguments: str) -> int:
        monkeypatch.setattr("magnitude_tune.pipeline.resolve.resolve_request", planned)
        monkeypatch.setattr("magnitude_tune.pipeline.machine.find_machine", lambda **_: a_machine())
        monkeypatch.setattr("magnitude_tune.engines.sessions.open_or_without_repack", engine)
        monkeypatch.setattr("magnitude_tune.bench.disturbance.busy_cores", lambda *_, **__: 0.0)
        monkeypatch.setattr("magnitude_tune.bench.taking.doubts", lambda *_, **__: ())
        monkeypatch.setattr(sys, "argv", ["magnitude-tune", "bench", "model.gguf", "--tune", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    return command


def ran(document: dict[str, Any]) -> list[str]:
    """The points that were measured, in order."""
    return [step["point"] for step in document["path"] if step["turn_seconds"]]


def one_thread_is_faster(settings: Settings) -> float:
    """One thread generates and reads a fifth faster than the plan's two."""
    return 1.2 if settings.n_threads == 1 and settings.n_threads_batch == 1 else 0.9 if settings.n_threads > 2 else 1.0


def test_the_path_and_the_verdict_are_shown(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of the runs with reasons, a bar for each, a verdict; every run is stored."""
    engine = Engine(lambda _: 1.0)
    assert tune(engine, "--max-runs", "5") == 0
    text = capsys.readouterr().out
    assert "Path (each run a fresh process)" in text
    assert "the plan: everything is compared with it" in text
    assert "Turn by run" in text
    assert "####" in text
    assert "Keep the plan." in text
    assert text.isascii()
    assert text.count("ram lacks 1 GiB") <= len(engine.opened)
    assert len(engine.opened) <= 5
    assert n_stored() == 2 * len(engine.opened)
    assert {stored.complete for stored in runs()} == {True}


def test_a_faster_setting_wins_with_its_evidence(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting a fifth faster is found, measured again in turn, and recommended with its interval."""
    engine = Engine(one_thread_is_faster)
    assert tune(engine, "--json", "--max-runs", "20") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] >= 1
    verdict = document["verdict"]
    assert verdict["change"] is True
    assert document["settings"]["n_threads"] == document["settings"]["n_threads_batch"] == 1
    assert verdict["low"] < verdict["gain"] < verdict["high"]
    assert verdict["gain"] == pytest.approx(1 / 6, abs=0.02)
    path = document["path"]
    assert path[0]["point"] == "the plan"
    assert {step["phase"] for step in path} == {"baseline", "explore", "confirm"}
    assert len([step for step in path if step["turn_seconds"]]) == len(engine.opened) <= 20
    assert len(path[0]["pp"]) >= 3


def test_what_does_not_fit_costs_no_run(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that the resolver refuses is named in the path, and no engine is started for it."""
    engine = Engine(lambda settings: 0.5 if settings.n_ubatch == 128 else 1.0)
    assert tune(engine, "--json", "--max-runs", "12") == 0
    document = json.loads(capsys.readouterr().out)
    refused = [step for step in document["path"] if step["problem"]]
    assert all("ram lacks 1 GiB" in step["problem"] for step in refused)
    assert all(settings.n_ubatch != 512 for settings in engine.opened)
    assert len(engine.opened) <= 12


def test_an_interrupted_session_goes_on(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 130 with what is known; the same command measures none of it again, nor stores it twice."""
    engine = Engine(one_thread_is_faster)
    engine.interrupt_at = 2
    assert tune(engine, "--json", "--max-runs", "4") == 130
    first = json.loads(capsys.readouterr().out)
    assert first["complete"] is False
    assert len(ran(first)) == 2
    assert n_stored() == 4
    engine.opened.clear()
    assert tune(engine, "--json", "--max-runs", "4") == 0
    second = json.loads(capsys.readouterr().out)
    measured = ran(second)
    assert len(measured) <= 4
    assert len(engine.opened) == len(measured) - 2
    assert measured[:2] == ran(first)
    assert n_stored() == 2 * len(measured)


def test_a_crash_of_a_candidate_is_part_of_the_path(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """Another setting that ends the engine is struck out with the cause, and tuning goes on."""
    engine = Engine(lambda _: 1.0)
    engine.crash_at = 1
    assert tune(engine, "--json", "--max-runs", "3") == 0
    document = json.loads(capsys.readouterr().out)
    assert any("GGML_ASSERT failed" in (step["problem"] or "") for step in document["path"])
    assert document["verdict"]["change"] is False


def test_a_crash_of_the_plan_is_an_engine_failure(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to compare with: exit 5, and the cause is named."""
    engine = Engine(lambda _: 1.0)
    engine.crash_at = 0
    assert tune(engine) == 5
    assert "GGML_ASSERT failed" in capsys.readouterr().err


def test_tuning_takes_no_grid_and_no_server() -> None:
    """It chooses settings itself, and a running server's cannot be changed: exit 2 before anything is read."""
    for more in (("--settings", "n_threads=1,2"), ("--url", "http://127.0.0.1:1")):
        done = run("bench", "model.gguf", "--tune", *more)
        assert done.returncode == 2
        assert "leave --settings and --url out" in done.stderr


@pytest.mark.engine
def test_the_real_engine_is_tuned(real_model: Path) -> None:
    """Three runs of the real model: each a process of its own, and a verdict that rests on the plan's run."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("the embedded engine is not installed")
    arguments = ("--tune", "--max-runs", "3", "--budget", "6", "--json", "--engine", "llama_cpp_python")
    turn = {"MAGNITUDE_TUNE_N_PROMPT": "64", "MAGNITUDE_TUNE_N_GEN": "8", "MAGNITUDE_TUNE_N_CTX": "512"}
    done = run("bench", real_model, *arguments, env=turn)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    measured = [step for step in document["path"] if step["turn_seconds"]]
    assert 1 <= len(measured) <= 3
    assert document["verdict"] is not None
    assert measured[0]["point"] == "the plan"
    assert len(runs()) == len(measured)
