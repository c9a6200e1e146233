"""Launching a llama-server, waiting for it, measuring it: on fakes that misbehave, and on the real one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magnitude_tune.engines import llama_server
from magnitude_tune.engines.crashes import EngineCrash
from magnitude_tune.engines.llama_server import LlamaServerSession, open_session
from magnitude_tune.engines.rpc import device_of_buffer
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.engines.sessions import open_or_without_repack
from magnitude_tune.engines.values import CrashKind, Launch
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.processes import Child
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

MakeProgram = Callable[..., Path]
SETTINGS = Settings(n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=2048)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def facts_of(program: Path) -> EngineFacts:
    facts = find_server(engine_path=str(program), rpc=())
    assert facts is not None
    return facts


def opened(program: Path, model: Path, *, seconds: float = 30, port: int | None = None) -> LlamaServerSession:
    launch = Launch(model_path=str(model), settings=SETTINGS, ready_timeout_seconds=seconds)
    return open_session(facts_of(program), launch, port=port)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_waits_for_health_and_for_nothing_else(fake_program: MakeProgram, model: Path, tmp_path: Path) -> None:
    """While /health says 503 the server is not ready, though its other pages answer (field report B14)."""
    session = opened(fake_program(health="late:10"), model)
    try:
        assert session.ready_seconds >= 10 * 0.02
        assert [line.n_bytes for line in session.buffers] == [round(235.16 * MIB), 24 * MIB]
    finally:
        session.close()
    assert not is_alive(session.pid)


def test_a_server_that_is_never_ready_is_killed(fake_program: MakeProgram, model: Path) -> None:
    """503 for ever ends at the time limit, with the group gone and the log's end at hand (field report B14)."""
    started = time.monotonic()
    with pytest.raises(EngineCrash) as caught:
        opened(fake_program(health="never"), model, seconds=1.5)
    assert caught.value.kind is CrashKind.HANG
    assert "buffer size" in caught.value.log_tail
    assert caught.value.exit_code == 5
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("how", "kind", "returncode"),
    [
        ("exit:1", CrashKind.EXIT, 1),
        ("signal:9", CrashKind.HOST_OUT_OF_MEMORY, -9),
        ("signal:4", CrashKind.ILLEGAL_INSTRUCTION, -4),
        ("signal:15", CrashKind.STOPPED, -15),
    ],
)
def test_a_server_that_ends_while_loading_is_noticed_at_once(
    fake_program: MakeProgram, model: Path, how: str, kind: CrashKind, returncode: int
) -> None:
    """The exit is seen long before the time limit, classified, and its own words are passed on."""
    started = time.monotonic()
    with pytest.raises(EngineCrash) as caught:
        opened(fake_program(health=how), model, seconds=300)
    assert time.monotonic() - started < 60
    assert caught.value.kind is kind
    assert caught.value.returncode == returncode
    assert "the fake's own reason" in caught.value.log_tail


def test_a_taken_port_is_said_before_anything_starts(fake_program: MakeProgram, model: Path, tmp_path: Path) -> None:
    """The port is tried by binding it; the error names it (field report B44)."""
    calls = tmp_path / "calls"
    program = fake_program(calls=calls)
    facts_of(program)
    before = calls.read_text()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EngineError, match=str(port)) as caught:
            opened(program, model, port=port)
    assert caught.value.hint
    assert calls.read_text() == before


def test_a_stranger_is_never_measured(fake_program: MakeProgram, model: Path) -> None:
    """A server that serves another model than the one launched is refused (field report B44)."""
    with pytest.raises(EngineError, match="another server") as caught:
        opened(fake_program(model="/somewhere/else.gguf"), model)
    assert "/somewhere/else.gguf" in str(caught.value)


def test_rates_come_from_the_server_s_timings(fake_program: MakeProgram, model: Path) -> None:
    """Prompt time is its own, and generation counts the decoding steps that its clock covers."""
    session = opened(fake_program(), model)
    try:
        assert session.prompt(128).seconds == pytest.approx(0.256)
        sample = session.generate(16)
        assert (sample.n_tokens, sample.seconds) == (16, pytest.approx(0.16))
        assert session.prompt(64, depth=32).seconds == pytest.approx(0.128)
        assert session.memory().resident_bytes > 0
    finally:
        session.close()


def test_a_context_that_is_read_again_is_taken_off(fake_program: MakeProgram, model: Path) -> None:
    """A server that does not keep the context gives the time of both less the time of the context."""
    session = opened(fake_program(cache="lost"), model)
    try:
        sample = session.prompt(64, depth=32)
        assert (sample.n_tokens, sample.seconds) == (64, pytest.approx(0.128))
    finally:
        session.close()


@pytest.mark.parametrize("timings", ["zero", "none"])
def test_zero_timings_fall_back_to_the_clock(fake_program: MakeProgram, model: Path, timings: str) -> None:
    """Timings of zero give finite rates from wall-clock time, never a division error (field report B68)."""
    session = opened(fake_program(timings=timings), model)
    try:
        assert 0 < session.prompt(128).seconds < 10
        assert 0 < session.generate(200).seconds < 10
    finally:
        session.close()


def test_fewer_tokens_than_asked_for_are_no_sample(fake_program: MakeProgram, model: Path) -> None:
    """The count is checked."""
    session = opened(fake_program(timings="short"), model)
    try:
        with pytest.raises(EngineError, match="asked for 9 tokens, the server generated 8"):
            session.generate(8)
    finally:
        session.close()


def test_a_crash_at_the_first_prompt_shows_when_opening(fake_program: MakeProgram, model: Path) -> None:
    """Repacked weights fault on a prompt, so one is read before the session is given away."""
    with pytest.raises(EngineCrash) as caught:
        opened(fake_program(die="completion"), model)
    assert caught.value.kind is CrashKind.ILLEGAL_INSTRUCTION


def test_a_crash_of_repacked_weights_is_cured_by_doing_without(fake_program: MakeProgram, model: Path) -> None:
    """The launch is repeated with --no-repack, and the session says so."""
    launch = Launch(model_path=str(model), settings=replace(SETTINGS, repack=True))
    opened_without = open_or_without_repack(facts_of(fake_program(die="repack")), launch, "machine")
    try:
        assert opened_without.repack_crash is not None
        assert not opened_without.launch.settings.repack
        assert opened_without.session.generate(4).n_tokens == 4
    finally:
        opened_without.session.close()


def test_inherited_settings_do_not_reach_the_server(
    fake_program: MakeProgram, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LLAMA_ARG_* of the caller would change the plan, and a key would lock the bench out."""
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "99")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    program = fake_program()
    text = program.read_text()
    program.write_text(text.replace("exec", f'env > "{tmp_path}/seen"\nexec'), encoding="utf-8")
    opened(program, model).close()
    seen = (tmp_path / "seen").read_text()
    assert "FAKE" in seen or "PATH=" in seen
    assert "LLAMA_A" not in seen


def test_drawn_tokens_are_ordinary_and_repeatable() -> None:
    """Ids come from the middle of the vocabulary, the same in every run, others at each call."""
    one, two = llama_server._Tokens(1000), llama_server._Tokens(1000)
    first = one.draw(64)
    assert first == two.draw(64)
    assert first != one.draw(64)
    assert all(250 <= token < 750 for token in first)


@pytest.mark.engine
def test_the_real_model_is_served_and_measured(real_server: EngineFacts, real_model: Path) -> None:
    """Rates, buffer lines and memory of the real model come back; the server is gone afterwards."""
    session = open_session(real_server, Launch(model_path=str(real_model), settings=SETTINGS))
    try:
        kinds = {line.kind: 0 for line in session.buffers}
        for line in session.buffers:
            kinds[line.kind] += line.n_bytes
        assert kinds["model"] == round(235.16 * MIB)
        # 3 full layers of 2048 cells and 15 sliding ones of 1024, 256 wide, K and V, two bytes each.
        assert kinds["kv"] == (3 * 2048 + 15 * 1024) * 2 * 256 * 2
        assert session.prompt(128).n_tokens == 128
        assert session.prompt(32, depth=600).n_tokens == 32
        assert session.generate(8).n_tokens == 8
        assert session.memory().resident_bytes > kinds["model"]
        with pytest.raises(EngineError, match="context"):
            session.prompt(4096)
    finally:
        session.close()
    assert not is_alive(session.pid)


@pytest.mark.engine
def test_half_the_layers_over_rpc_are_confirmed_by_buffers(
    real_server: EngineFacts, real_model: Path, rpc_server: tuple[str, Child]
) -> None:
    """Weights and cache of the last 10 of 19 layers lie on the RPC device, by the engine's own buffer lines."""
    address, child = rpc_server
    facts = find_server(engine_path=real_server.path, rpc=(address,))
    assert facts is not None
    assert [device.name for device in facts.devices] == ["RPC0"]
    assert facts.gpu_offload
    settings = replace(SETTINGS, n_gpu_layers=10, devices=("RPC0",), n_ctx=8192)
    before = child.memory().anonymous_bytes
    session = open_session(facts, Launch(model_path=str(real_model), settings=settings, rpc=(address,)))
    try:
        held = dict.fromkeys(("model", "kv", "compute"), 0)
        for line in session.buffers:
            if device_of_buffer(line.buffer) == "RPC0":
                held[line.kind] += line.n_bytes
        # Blocks 9 to 17 and the output: the tied embedding of 170 MiB and 32.77 MiB of blocks; two full layers of
        # 8192 cells (11, 17) and seven sliding ones of 1024.
        assert held["model"] == round(202.77 * MIB)
        assert held["kv"] == (2 * 8192 + 7 * 1024) * 2 * 256 * 2
        assert held["compute"] > 0
        assert child.memory().anonymous_bytes - before > 200 * MIB
        assert session.prompt(64).n_tokens == 64
        assert session.generate(4).n_tokens == 4
    finally:
        session.close()


@pytest.mark.engine
def test_a_file_that_is_no_model_ends_with_the_server_s_own_reason(real_server: EngineFacts, tmp_path: Path) -> None:
    """The real server refuses a text file; its words reach the error."""
    path = tmp_path / "model.gguf"
    path.write_text("no model", encoding="utf-8")
    with pytest.raises(EngineCrash) as caught:
        open_session(real_server, Launch(model_path=str(path), settings=SETTINGS))
    assert caught.value.kind is CrashKind.EXIT
    assert "expected 'GGUF'" in str(caught.value)
