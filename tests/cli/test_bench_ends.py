"""How `bench` ends when the engine crashes, a person interrupts, or the plan cannot run as it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench.stand_ins import FakeSession, a_resolution
from cli.bench_command import Bench, a_resolved, n_stored

from magnitude_tune.engines.crashes import engine_crash
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.observations.store import store_path


def test_a_crash_of_the_engine_ends_with_5(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead engine is exit 5 with its kind; there is no result and nothing is stored."""

    def die(_: int) -> None:
        raise engine_crash("llama-server", -6, "GGML_ASSERT failed")

    session.before = die
    assert bench("--json") == 5
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "abort" in shown.err
    assert not store_path().exists()


def test_an_interrupt_keeps_what_was_measured(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C shows and stores the samples so far and ends with 130."""

    def interrupt(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    session.before = interrupt
    assert bench("--json") == 130
    document = json.loads(capsys.readouterr().out)
    assert document["complete"] is False
    assert document["measured"]["pp"]["n"] == 2
    assert n_stored() == 2


def test_an_interrupt_before_the_first_sample_ends_with_130(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while warming up shows no result."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    session.before = interrupt
    assert bench() == 130
    assert capsys.readouterr().out == ""


def test_b86_a_crash_in_the_middle_shows_and_keeps_the_samples_and_ends_with_5(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine dies after some samples: they are shown and stored as incomplete, the cause is named, exit 5."""

    def die(number: int) -> None:
        if number == 5:
            raise engine_crash("llama-server", -6, "ggml_backend_cpu_buffer: failed to allocate 5000 bytes")

    session.before = die
    assert bench("--json") == 5
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["complete"] is False
    assert document["ending"]["kind"] == "crashed"
    assert document["measured"]["pp"]["n"] == 2
    assert document["measured"]["peak_bytes"] is None
    assert "failed to allocate 5000 bytes" in shown.err
    assert n_stored() == 2


def test_b34_a_plan_that_no_longer_fits_at_the_launch_is_made_again_once(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory that went since the planning: the plan is made again, once, and that is said."""
    assert bench(plans=[a_resolved(), a_resolved()], free=[512 << 20]) == 0
    assert "ram has 512 MiB left, the plan needs 1.00 GiB: planning again" in capsys.readouterr().err


def test_a_plan_whose_repacked_weights_crash_is_made_again(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an illegal instruction the request is resolved again, and what runs is held against its own prediction."""
    plain = replace(a_resolution().settings, repack=False)
    opened: list[bool] = []
    crashed = FakeSession()

    def opener(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
        opened.append(launch.settings.repack)
        if not launch.settings.repack:
            return session.opener(engine, launch, machine_hash)
        return Opened(crashed, replace(launch, settings=plain), engine_crash(engine.name, -4, ""))

    plans = [a_resolved(), a_resolved(resolution=a_resolution()._replace(settings=plain))]
    assert bench(plans=plans, opener=opener) == 0
    assert opened == [True, False]
    assert crashed.closed
    shown = capsys.readouterr()
    assert "illegal instruction" in shown.err
    assert "planning again without" in shown.err
    assert "Promise: kept" in shown.out


def test_where_repacking_is_pinned_it_is_measured_without(
    bench: Bench, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that insists on repacking is run without it, found, and its promise of speed is not judged."""
    plain = replace(a_resolution().settings, repack=False)

    def opener(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
        crash = engine_crash(engine.name, -4, "")
        return Opened(session, replace(launch, settings=plain), crash)

    assert bench("--json", plans=[a_resolved(), a_resolved()], opener=opener) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["repack"] is False
    assert [finding["id"] for finding in document["findings"]] == [Rule.ILLEGAL_INSTRUCTION_REMEMBERED.id]
    assert document["promise"]["verdict"] == "undecided"
