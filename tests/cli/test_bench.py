"""`magnitude-tune bench`: what is shown, kept and returned; with a stand-in engine, and once with the real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.stand_ins import FakeSession, a_resolution
from cli.bench_command import Bench, a_resolved, n_stored
from cli.console import MACHINES, run

from magnitude_tune.bench.values import Progress
from magnitude_tune.cli.bench_progress import LineProgress
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.observations.store import store_path


def test_help_has_an_example_and_the_exit_codes() -> None:
    """`--help` is enough to start."""
    done = run("bench", "--help")
    assert done.returncode == 0
    assert "magnitude-tune bench agent.yaml" in done.stdout
    assert "130 interrupted" in done.stdout


def test_predicted_stands_beside_measured(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows both figures with their widths, the verdicts, memory, buffers and disturbance."""
    assert bench() == 0
    page = capsys.readouterr().out
    row = next(line for line in page.splitlines() if line.startswith("  tg "))
    assert re.search(r"40\.0 t/s +30\.0 t/s to 50\.0 t/s \(-25% \+25%\) +40\.0 t/s .* 3 +kept$", row)
    assert re.search(r"memory +1\.00 GiB +reserved +300 MiB +peak +1 +kept", page)
    assert "Promise: kept" in page
    assert "CPU_Mapped  model  241 MiB" in page
    assert "Disturbance: none seen" in page


def test_json_keeps_its_contract(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """One object: the resolution, measured figures with intervals and raw samples, disturbance, promise."""
    assert bench("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document)) == "schema_version"
    assert document["resolution"]["settings"]["n_threads"] == 2
    measured = document["measured"]
    for name in ("pp", "tg", "turn_seconds", "ready_seconds", "peak_bytes"):
        assert measured[name]["low"] <= measured[name]["value"] <= measured[name]["high"]
        assert measured[name]["basis"] == "measured"
    assert measured["tg"]["samples"] == [{"n_tokens": 128, "seconds": 3.2}] * 3
    assert measured["tg"]["left_out"] == []
    assert measured["peak_bytes"]["value"] == 300 << 20
    assert document["disturbance"]["clean"] is True
    assert document["promise"]["verdict"] == "kept"
    verdicts = {item["quantity"]: item["verdict"] for item in document["promise"]["items"]}
    assert verdicts == dict.fromkeys(("pp", "tg", "turn_seconds", "ready_seconds", "peak_bytes"), "kept")
    assert document["complete"] is True
    assert document["findings"] == []


def test_json_keeps_samples_that_were_left_out(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warm-up sample is beside the figures of its test, with the reason, and in no other test."""
    session.tg_rates = [20.0, 40.0]
    assert bench("--json") == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["tg"]["left_out"] == [{"reason": "warm-up", "n_tokens": 128, "seconds": 6.4}]
    assert measured["tg"]["value"] == pytest.approx(40.0)
    assert measured["pp"]["left_out"] == []


def test_the_run_is_stored(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """A bench leaves a row for each test and names its run."""
    assert bench("--json") == 0
    assert re.fullmatch(r"[0-9a-f]{32}", json.loads(capsys.readouterr().out)["stored"])
    assert n_stored() == 2


def test_a_store_that_cannot_be_written_never_costs_the_result(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stranger's file in the store's place the whole result is on stdout, then the error says what to do."""
    store_path().parent.mkdir(parents=True)
    store_path().write_text("not a database " * 100)
    assert bench("--json") == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["measured"]["tg"]["n"] == 3
    assert document["stored"] is None
    assert "cannot use the store of measurements" in shown.err
    assert "hint:" in shown.err


def test_the_result_can_go_to_a_file(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o` writes the result there and leaves stdout empty."""
    target = tmp_path / "result.json"
    assert bench("--json", "-o", str(target)) == 0
    assert json.loads(target.read_text())["promise"]["verdict"] == "kept"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("option", "lines"), [("-q", []), ("-v", ["pp 200 t/s", "6 samples"])])
def test_narration_is_on_stderr(
    bench: Bench, capsys: pytest.CaptureFixture[str], option: str, lines: list[str]
) -> None:
    """Quiet says nothing on stderr; verbose says a line for each sample."""
    assert bench(option) == 0
    narrated = capsys.readouterr().err
    assert all(line in narrated for line in lines)
    assert bool(narrated) is bool(lines)


def test_on_a_terminal_a_bar_is_drawn_beside_the_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bar goes to stderr, the result alone to stdout, and no line of narration is told besides."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert bench("--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["promise"]["verdict"] == "kept"
    assert "bench:" not in shown.err
    assert "pp 200 t/s" in shown.err
    assert "\x1b[3" not in shown.err


def test_a_line_is_told_while_one_sample_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal the last state is repeated with the seconds, also when nothing new happens."""
    with LineProgress(every_seconds=0.01) as report:
        report(Progress("measuring", 1.0, 60.0, n_samples=3, pp=200.0, tg=40.0))
        deadline = time.monotonic() + 30
        told = ""
        while not re.search(r"t/s, \d+ s", told) and time.monotonic() < deadline:
            time.sleep(0.01)
            told += capsys.readouterr().err
    assert re.search(r"^bench: measuring, 3 samples, pp 200 t/s, tg 40\.0 t/s, \d+ s$", told, re.MULTILINE)


def test_overcommit_is_said_loudly(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Above the safe band a warning is on stderr even with -q, and the bench still runs."""
    finding = Finding(Rule.OVERCOMMIT, "magnitude 5.5 leaves 2 % of the machine")
    resolved = a_resolved(resolution=a_resolution()._replace(findings=(finding,)))
    assert bench("-q", plans=[resolved]) == 0
    assert "WARNING: magnitude 5.5" in capsys.readouterr().err


def test_no_engine_is_a_missing_part(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an engine the exit code is 6 and the hint names the extra."""
    assert bench(plans=[a_resolved(engine=None)]) == 6
    assert "pip install 'magnitude-tune[engine]'" in capsys.readouterr().err


def test_an_engine_that_cannot_run_says_why(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Where an engine is there but unusable, its own problem is named."""
    finding = Finding(Rule.ENGINE_UNUSABLE, "llama_server b1 cannot be used: libcuda.so.1 is missing")
    resolved = a_resolved(engine=None, resolution=a_resolution()._replace(findings=(finding,)))
    assert bench(plans=[resolved]) == 6
    assert "libcuda.so.1 is missing" in capsys.readouterr().err


def test_a_stored_machine_cannot_be_measured(tmp_path: Path) -> None:
    """`--machine` and `--sysroot` are for resolve: a usage error before anything is read."""
    for option, value in (("--machine", MACHINES / "cpu-24g.json"), ("--sysroot", tmp_path)):
        done = run("bench", tmp_path / "none.gguf", option, value)
        assert done.returncode == 2
        assert option in done.stderr
        assert "only this machine can be measured" in done.stderr


@pytest.mark.parametrize("budget", ["0", "-5", "abc", "nan"])
def test_a_budget_that_is_none_is_a_usage_error(tmp_path: Path, budget: str) -> None:
    """The budget is a number of seconds from 1."""
    assert run("bench", tmp_path / "none.gguf", "--budget", budget).returncode == 2


def test_a_model_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    """A missing model is exit 3 before an engine is started."""
    assert run("bench", tmp_path / "none.gguf").returncode == 3


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The console script as a process, ended on the way out."""
    argv = [sys.executable, "-m", "magnitude_tune", *map(str, arguments)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.fixture
def embedded_engine() -> None:
    """The embedded engine is installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.mark.engine
@pytest.mark.usefixtures("embedded_engine")
def test_the_real_model_is_measured(real_model: Path, tmp_path: Path) -> None:
    """The main job on the real model: what was decoded is counted, and the run is in the store."""
    config = tmp_path / "agent.yaml"
    config.write_text(f"inference_server:\n  backend: llama_cpp\n  model_path: {real_model}\n  max_ctx_size: 1024\n")
    done = run("bench", config, "--json", "--budget", "10", "--engine", "llama_cpp_python")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    measured = document["measured"]
    assert {sample["n_tokens"] for sample in measured["pp"]["samples"]} == {512}
    assert {sample["n_tokens"] for sample in measured["tg"]["samples"]} == {128}
    assert measured["ready_seconds"]["value"] > 0
    model_bytes = sum(line["n_bytes"] for line in document["buffers"] if line["kind"] == "model")
    assert 0.9 < model_bytes / document["resolution"]["terms"][0]["reserved_bytes"] < 1.1
    assert measured["peak_bytes"]["value"] > model_bytes / 2
    assert n_stored() == 2


@pytest.mark.engine
@pytest.mark.usefixtures("embedded_engine")
@pytest.mark.skipif(os.name != "posix", reason="SIGINT is sent as a terminal does on POSIX")
def test_ctrl_c_keeps_what_the_real_engine_did(real_model: Path) -> None:
    """SIGINT after the first samples: exit 130, the samples on stdout and in the store."""
    arguments = ("bench", real_model, "--json", "-v", "--budget", "600", "--engine", "llama_cpp_python")
    with running(*arguments, "--n-ctx", "1024") as process:
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if "samples" in line:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 130, told
    document = json.loads(out)
    assert document["complete"] is False
    assert document["measured"]["pp"]["n"] >= 1
    assert document["promise"]["verdict"] != "kept"
    assert n_stored() >= 1
