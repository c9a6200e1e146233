"""`bench --settings`: the words of a grid, what is left out, the table, going on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench.stand_ins import FakeSession, a_header, a_resolution
from cli.bench_command import Bench, a_resolved, n_stored
from cli.console import run

from magnitude_tune.cli.bench_grid import Axis, parse_axes, sort_words
from magnitude_tune.engines.crashes import engine_crash
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.storage import data_dir

GRID = ("--settings", "n_threads=1,2", "n_ubatch=64,128")
RATES = {1: 20.0, 2: 40.0}


def a_plan(n_threads: int, n_ubatch: int, *findings: Finding) -> Resolved:
    """What the pipeline would have given at one point."""
    plan = a_resolution()
    settings = replace(plan.settings, n_threads=n_threads, n_ubatch=n_ubatch)
    return a_resolved(resolution=plan._replace(settings=settings, findings=findings))


def plans() -> list[Resolved]:
    """The four points of the grid."""
    return [a_plan(n_threads, n_ubatch) for n_threads in (1, 2) for n_ubatch in (64, 128)]


class Opener:
    """Engines whose generation rate depends on the threads; notes what was opened."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.interrupt_at: int | None = None
        self.crash_at: int | None = None

    def __call__(self, _engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        settings = launch.settings
        number = len(self.opened)
        self.opened.append((settings.n_threads, settings.n_ubatch))
        if number == self.interrupt_at:
            raise KeyboardInterrupt
        if number == self.crash_at:
            raise engine_crash("llama-server", -6, "GGML_ASSERT failed")
        rate = RATES[settings.n_threads]
        return Opened(FakeSession(tg_rates=[rate, rate * 1.01, rate * 0.99, rate]), launch)


def test_the_option_takes_several_words_in_any_order() -> None:
    """Words after the option arrive as arguments; the one that is no setting is what is measured."""
    assert sort_words("n_ubatch=64,512", ["model.gguf"], ["n_threads=1,2"]) == (
        "model.gguf",
        ("n_threads=1,2", "n_ubatch=64,512"),
    )
    assert sort_words("model.gguf", [], None) == ("model.gguf", ())
    assert sort_words("n_threads=1", [], None) == ("n_threads=1", ())
    with pytest.raises(UsageError, match="argument too many"):
        sort_words("a.gguf", ["b.gguf"], ["n_threads=1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["n_threads"], "is not NAME=VALUE"),
        (["n_thread=1"], "no setting 'n_thread'"),
        (["model=a.gguf"], "no setting 'model'"),
        (["n_threads="], "empty value"),
        (["n_threads=1,,2"], "empty value"),
        (["n_threads=1,1"], "same value twice"),
        (["n_threads=1", "n-threads=2"], "named twice"),
        (["n_ctx=1024"], "given as an option"),
        (["n_threads=" + ",".join(map(str, range(1, 26))), "n_ubatch=" + ",".join(map(str, range(1, 26)))], "625"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_a_usage_error(words: Sequence[str], message: str) -> None:
    """What is wrong is named before anything is measured."""
    with pytest.raises(UsageError, match=message):
        parse_axes(words, [("n_ctx", "512")])


def test_parts_of_a_split_have_slashes_between_them() -> None:
    """Commas part the values, as in llama-bench."""
    assert parse_axes(["tensor_split=3/1,1/1"], []) == (Axis("tensor_split", ("3,1", "1,1")),)


def test_the_table_is_sorted_by_the_turn_and_says_what_is_as_good(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two threads beat one, whatever the batch: both rows with two are as good, those with one are slower."""
    assert bench(*GRID, plans=plans(), opener=Opener()) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if "against the best" in line)
    standings = [line.split("  ")[-1].strip() for line in lines[start + 1 : start + 5]]
    assert sorted(standings[:2]) == ["as good as the best", "best"]
    assert all(standing.startswith("slower by ") for standing in standings[2:])
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["2", "2", "1", "1"]
    assert n_stored() == 8


def test_the_json_of_a_grid(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """One object: configurations with settings, figures with raw samples, standing and the id of the stored run."""
    assert bench(*GRID, "--json", plans=plans(), opener=Opener()) == 0
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document)) == "schema_version"
    assert (document["axes"], document["complete"]) == (["n_threads", "n_ubatch"], True)
    best = document["configurations"][0]
    assert (best["standing"], best["settings"]["n_threads"], best["status"], best["rounds"]) == (
        "best",
        2,
        "measured",
        2,
    )
    assert best["measured"]["tg"]["low"] <= best["measured"]["tg"]["value"] <= best["measured"]["tg"]["high"]
    assert len(best["measured"]["tg"]["samples"]) == 6
    assert len({each["stored"] for each in document["configurations"]}) == 4


def test_points_that_repeat_or_cannot_run_so_are_listed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The same settings are measured once; a value that would not run as written is refused with the reason."""
    adjusted = Finding(Rule.PIN_ADJUSTED, "n_ubatch cannot be 128 here: 64 runs", setting="n_ubatch")
    coming = [a_plan(1, 64), a_plan(1, 64, adjusted), a_plan(2, 64), a_plan(2, 64)]
    assert bench(*GRID, "--json", plans=coming, opener=Opener()) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["left_out"] == [
        {
            "point": "n_threads=1 n_ubatch=128",
            "kind": "cannot run so",
            "reason": "n_ubatch cannot be 128 here: 64 runs",
        },
        {
            "point": "n_threads=2 n_ubatch=128",
            "kind": "repeats another",
            "reason": "the same settings as n_threads=2 n_ubatch=64",
        },
    ]
    assert len(document["configurations"]) == 2


def test_the_same_command_goes_on_after_an_interruption(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with 130 and shows what there is; the next time only the rest is measured, and then it is over."""
    first = Opener()
    first.interrupt_at = 6
    assert bench(*GRID, "--json", plans=plans(), opener=first) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["complete"] is False
    assert [each["status"] for each in document["configurations"]].count("measured") == 2
    second = Opener()
    assert bench(*GRID, plans=plans(), opener=second) == 0
    assert second.opened == [(2, 64), (2, 128)]
    assert "4 of them measured before" in capsys.readouterr().err
    assert n_stored() == 8
    assert list((data_dir() / "grids").iterdir()) == []
    third = Opener()
    assert bench(*GRID, plans=plans(), opener=third) == 0
    assert len(third.opened) == 8


def test_plans_that_move_meanwhile_do_not_lose_what_was_measured(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Free memory and busy cores are others when a grid goes on: it goes on with the plans it was begun with."""
    first = Opener()
    first.interrupt_at = 6
    assert bench(*GRID, plans=plans(), opener=first) == 130
    moved = []
    for plan in plans()[:3]:
        settings = replace(plan.resolution.settings, cache_ram=77, n_batch=256)
        moved.append(plan._replace(resolution=plan.resolution._replace(settings=settings)))
    # One point repeats another as things are now.
    capsys.readouterr()
    second = Opener()
    assert bench(*GRID, "--json", plans=[*moved, moved[2]], opener=second) == 0
    document = json.loads(capsys.readouterr().out)
    assert second.opened == [(2, 64), (2, 128)]
    assert document["left_out"] == []
    assert {each["settings"]["cache_ram"] for each in document["configurations"]} == {0}
    assert n_stored() == 8


def test_plans_that_crash_are_not_gone_on_with(bench: Bench) -> None:
    """Where repacked weights crash after the first samples, the grid is planned again, not as it was begun."""
    opened: list[bool] = []

    def opener(_engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        opened.append(launch.settings.repack)
        crash = engine_crash("llama-server", -4, "") if len(opened) == 2 else None
        return Opened(FakeSession(), launch, crash)

    plain = []
    for plan in plans():
        settings = replace(plan.resolution.settings, repack=False)
        plain.append(plan._replace(resolution=plan.resolution._replace(settings=settings)))
    assert bench(*GRID, plans=[*plans(), *plain], opener=opener) == 0
    assert opened == [True] * 2 + [False] * 8


def test_a_grid_without_samples_is_planned_anew(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing was measured yet, the plans are those of now."""
    first = Opener()
    first.interrupt_at = 0
    assert bench(*GRID, plans=plans(), opener=first) == 130
    capsys.readouterr()
    moved = [
        plan._replace(resolution=plan.resolution._replace(settings=replace(plan.resolution.settings, cache_ram=77)))
        for plan in plans()
    ]
    assert bench(*GRID, "--json", plans=moved, opener=Opener()) == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["settings"]["cache_ram"] for each in document["configurations"]} == {77}


def test_what_cannot_be_kept_is_shown_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that cannot be written ends the measuring: the table is shown, exit 2, and nothing is measured twice."""

    def full(*_: object) -> None:
        raise UsageError("the store cannot be written", where="here", hint="make room")

    first = Opener()
    with monkeypatch.context() as patch:
        patch.setattr("magnitude_tune.observations.store.store", full)
        assert bench(*GRID, "--json", plans=plans(), opener=first) == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["complete"] is False
    assert sum(each["rounds"] for each in document["configurations"]) == 5
    assert "the store cannot be written" in shown.err
    second = Opener()
    assert bench(*GRID, plans=plans(), opener=second) == 0
    assert len(second.opened) == 3
    assert n_stored() == 8


def test_a_journal_that_cannot_be_written_loses_no_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that could not be kept is in the table."""

    def full(*_: object) -> None:
        raise UsageError("cannot keep the grid's journal", where="here", hint="make room")

    monkeypatch.setattr("magnitude_tune.bench.journal.Journal.add", full)
    opener = Opener()
    assert bench(*GRID, "--json", plans=plans(), opener=opener) == 2
    shown = capsys.readouterr()
    assert sum(each["rounds"] for each in json.loads(shown.out)["configurations"]) == len(opener.opened) == 1
    assert "cannot keep the grid's journal" in shown.err


def test_where_nothing_fits_any_more_that_is_an_error(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory that went between planning and launching: exit 4 with the first reason, after the table."""
    opener = Opener()
    assert bench(*GRID, plans=plans(), opener=opener, free=[1] * 100) == 4
    shown = capsys.readouterr()
    assert opener.opened == []
    assert "none of the 4 configurations fits any more; ram has" in shown.err
    assert "no longer fits" in shown.out


def test_another_model_does_not_go_on_with_this_one(bench: Bench) -> None:
    """What was measured with one file says nothing about another, though the command reads the same."""
    first = Opener()
    first.interrupt_at = 6
    assert bench(*GRID, plans=plans(), opener=first) == 130
    second = Opener()
    others = [plan._replace(header=replace(a_header(), content_hash="other")) for plan in plans()]
    assert bench(*GRID, plans=others, opener=second) == 0
    assert len(second.opened) == 8


def test_a_crash_is_named_after_the_others_were_measured(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 5, with the table of the others and the cause of the one."""
    opener = Opener()
    opener.crash_at = 1
    assert bench(*GRID, plans=plans(), opener=opener) == 5
    shown = capsys.readouterr()
    assert "1 of 4 configurations crashed, first n_threads=1 n_ubatch=128" in shown.err
    assert "GGML_ASSERT failed" in shown.out
    assert n_stored() == 6


def test_where_nothing_fits_that_is_an_error(real_model: Path) -> None:
    """More threads than cores at every point: exit 4 with the first reason, and nothing is launched."""
    done = run("bench", real_model, "--settings", "n_threads=5000,6000")
    assert done.returncode == 4
    assert "none of the 2 configurations" in done.stderr


@pytest.mark.engine
@pytest.mark.skipif(os.name != "posix", reason="the process is killed as on POSIX")
def test_a_killed_grid_of_the_real_engine_goes_on(real_model: Path) -> None:
    """SIGKILL in the second round of a real grid: the first round is not measured again, and all is shown."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    command = ["bench", str(real_model), "--settings", "n_threads=1", "n_ubatch=64,128", "--budget", "3"]
    command += ["--engine", "llama_cpp_python", "--json", "-v"]
    environment = {
        **os.environ,
        "MAGNITUDE_TUNE_N_PROMPT": "64",
        "MAGNITUDE_TUNE_N_GEN": "8",
        "MAGNITUDE_TUNE_N_CTX": "512",
    }
    argv = [sys.executable, "-m", "magnitude_tune", *command]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stderr is not None
        told = ""
        for line in first.stderr:
            told += line
            if "round 2" in line and "measuring" in line:
                break
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert "round 2" in told, told
    done = run(*command, env=environment)
    assert done.returncode == 0, done.stderr
    assert "2 of them measured before" in done.stderr
    assert "round 1" not in done.stderr
    document = json.loads(done.stdout)
    assert [each["status"] for each in document["configurations"]] == ["measured", "measured"]
    assert n_stored() == 4
