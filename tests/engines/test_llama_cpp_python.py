"""The real library on the real model, in its worker child."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from magnitude_tune.engines.find import find_engines
from magnitude_tune.engines.sessions import open_or_without_repack, open_session
from magnitude_tune.engines.values import EngineSession, Launch
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.processes import run
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"),
]

SETTINGS = Settings(n_gpu_layers=0, n_threads=1, n_threads_batch=1, n_batch=128, n_ubatch=128, n_ctx=1024)


@pytest.fixture
def engine() -> EngineFacts:
    return next(engine for engine in find_engines() if engine.name == "llama_cpp_python")


def opened(engine: EngineFacts, model: Path, settings: Settings = SETTINGS) -> EngineSession:
    return open_session(engine, Launch(model_path=str(model), settings=settings))


def test_a_session_on_the_real_model(engine: EngineFacts, real_model: Path) -> None:
    """Samples have the tokens asked for, buffers are stated, and memory is where the buffers say."""
    session = opened(engine, real_model)
    try:
        assert [session.prompt(n, depth).n_tokens for n, depth in ((1, 0), (200, 0), (128, 300))] == [1, 200, 128]
        assert [session.generate(n, depth).n_tokens for n, depth in ((1, 0), (5, 7))] == [1, 5]
        assert all(session.generate(2).rate > 0 for _ in range(2))
        kinds = {line.kind for line in session.buffers}
        assert {"model", "kv", "compute", "output"} <= kinds
        weights = sum(line.n_bytes for line in session.buffers if line.kind == "model")
        assert 0.9 * real_model.stat().st_size < weights < 1.1 * real_model.stat().st_size
        memory = session.memory()
        assert memory.peak_resident_bytes >= memory.resident_bytes > memory.anonymous_bytes > 0
        if sys.platform.startswith("linux"):
            # Mapped weights are file pages: anonymous memory stays far below the file.
            assert memory.anonymous_bytes < 200 * MIB < weights < memory.resident_bytes
        with pytest.raises(EngineError, match="context of 1024"):
            session.prompt(1025)
    finally:
        session.close()


COUNTS = """
import json, sys
from magnitude_tune.engines.binding import load_binding
from magnitude_tune.engines.decoding import Decoder
binding = load_binding()
made = Decoder(binding, sys.argv[1], json.loads(sys.argv[2]))
rows = []
for operation, n_tokens, depth in json.loads(sys.argv[3]):
    before = made.decoded
    getattr(made, operation)(n_tokens, depth)
    held = binding.llama_memory_seq_pos_max(made._memory, 0) + 1
    rows.append([made.decoded - before, held])
made.close()
print(json.dumps(rows))
"""


def test_the_child_decodes_exactly_the_tokens_asked_for(real_model: Path) -> None:
    """Our count and the engine's own position in its cache agree with what was asked, batches and depth included."""
    work = [("prompt", 1, 0), ("prompt", 128, 0), ("prompt", 301, 0), ("generate", 7, 0), ("generate", 3, 200)]
    arguments = [str(real_model), json.dumps(asdict(SETTINGS)), json.dumps(work)]
    done = run([sys.executable, "-c", COUNTS, *arguments], timeout_seconds=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [[n + depth, n + depth] for _, n, depth in work]


def test_repacked_weights_run_or_are_given_up(engine: EngineFacts, real_model: Path) -> None:
    """With repack on a session opens on any machine: with a repacked buffer, or without after a crash."""
    launch = Launch(model_path=str(real_model), settings=replace(SETTINGS, repack=True))
    result = open_or_without_repack(engine, launch, "this machine")
    try:
        assert result.session.prompt(64).n_tokens == 64
        layouts = {line.buffer for line in result.session.buffers if line.kind == "model"} & {"AMX", "CPU_REPACK"}
        assert result.launch.settings.repack == (result.repack_crash is None)
        if result.repack_crash is not None or not engine.extra_buffers:
            assert not layouts
    finally:
        result.session.close()


def test_what_the_engine_refuses_is_said_in_its_words(engine: EngineFacts, tmp_path: Path, real_model: Path) -> None:
    """A file that is no model, and settings the engine refuses, are engine errors with its own reason."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model")
    with pytest.raises(EngineError, match="magic"):
        opened(engine, other)
    with pytest.raises(EngineError, match="CUDA77"):
        opened(engine, real_model, replace(SETTINGS, n_gpu_layers=3, devices=("CUDA77",)))
