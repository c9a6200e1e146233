"""The protocol with the worker child, held with workers that misbehave, and the way back from crashing layouts."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from magnitude_tune.engines import llama_cpp_python, worker
from magnitude_tune.engines.crashes import EngineCrash
from magnitude_tune.engines.illegal import without_crashing_buffers
from magnitude_tune.engines.sessions import open_or_without_repack, open_session
from magnitude_tune.engines.values import BufferLine, CrashKind, Launch
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.request import Settings

posix = pytest.mark.skipif(os.name != "posix", reason="a worker ends by a signal")

ENGINE = EngineFacts(
    name="llama_cpp_python", path=sys.executable, build="1", ggml_version="2", extra_buffers=("amx", "cpu_repack")
)

# A worker without an engine. BEHAVIOUR may replace what it does on an operation.
FAKE = """
import json, os, sys, time
print("load_tensors:   CPU_Mapped model buffer size =   2.00 MiB", file=sys.stderr, flush=True)
def say(**answer): print(json.dumps(answer), flush=True)
def die(number): os.kill(os.getpid(), number); time.sleep(60)
for line in sys.stdin:
    request = json.loads(line)
    op, repack = request["op"], request.get("settings", {}).get("repack")
    n, depth = request.get("n_tokens", 0), request.get("depth", 0)
    BEHAVIOUR
    if op == "open": say(event="ready", n_ctx=request["settings"]["n_ctx"], decoded=9)
    else: say(event="sample", n_tokens=n, seconds=0.5, decoded=n + depth)
"""


def fake_worker(monkeypatch: pytest.MonkeyPatch, behaviour: str = "pass") -> None:
    script = FAKE.replace("BEHAVIOUR", behaviour)
    monkeypatch.setattr(llama_cpp_python, "_WORKER_ARGUMENTS", ("-c", script))


def launch(*, repack: bool = False, ready_timeout_seconds: float = 60.0) -> Launch:
    settings = Settings(
        n_gpu_layers=0, n_threads=1, n_threads_batch=1, n_batch=64, n_ubatch=64, n_ctx=128, repack=repack
    )
    return Launch(model_path="model.gguf", settings=settings, ready_timeout_seconds=ready_timeout_seconds)


def test_a_session_gives_samples_buffers_memory_and_ready_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that works returns what was asked and timed, and its child is gone after close."""
    fake_worker(monkeypatch)
    session = open_session(ENGINE, launch())
    try:
        assert session.ready_seconds > 0
        assert session.buffers == (BufferLine("CPU_Mapped", "model", 2 << 20),)
        sample = session.prompt(100, depth=28)
        assert (sample.n_tokens, sample.seconds, sample.rate) == (100, 0.5, 200.0)
        assert session.generate(1).n_tokens == 1
        memory = session.memory()
        assert 0 < memory.anonymous_bytes <= memory.resident_bytes <= memory.peak_resident_bytes
    finally:
        session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(session.pid, 0)


@pytest.mark.parametrize(("n_tokens", "depth"), [(0, 0), (-1, 0), (1, -1), (129, 0), (100, 29)])
def test_more_than_the_context_holds_is_refused(monkeypatch: pytest.MonkeyPatch, n_tokens: int, depth: int) -> None:
    """What does not fit the context is an error before anything is decoded."""
    fake_worker(monkeypatch)
    session = open_session(ENGINE, launch())
    try:
        with pytest.raises(EngineError, match="context of 128"):
            session.prompt(n_tokens, depth)
    finally:
        session.close()


@posix
@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("die(4)", CrashKind.ILLEGAL_INSTRUCTION),
        ("die(9)", CrashKind.HOST_OUT_OF_MEMORY),
        ("die(15)", CrashKind.STOPPED),
        ("os.abort()", CrashKind.ABORT),
        ("sys.exit(1)", CrashKind.EXIT),
        ("sys.stderr.write('CUDA: cudaMalloc failed: out of memory'); sys.exit(1)", CrashKind.DEVICE_OUT_OF_MEMORY),
        ("sys.stderr.write('libx.so.1: cannot open shared object file'); sys.exit(1)", CrashKind.MISSING_LIBRARY),
        ('sys.stdout.write(\'{"event": "rea\'); sys.stdout.flush(); die(4)', CrashKind.ILLEGAL_INSTRUCTION),
    ],
)
def test_a_worker_that_dies_is_classified(monkeypatch: pytest.MonkeyPatch, behaviour: str, kind: CrashKind) -> None:
    """A worker that ends, at loading or in the middle of work, gives a crash with its kind and its log."""
    for where in ("open", "prompt"):
        fake_worker(monkeypatch, f"if op == {where!r}: {behaviour}")
        with pytest.raises(EngineCrash) as caught:
            open_and_prompt()
        assert caught.value.kind is kind
        assert "CPU_Mapped" in caught.value.log_tail
        assert caught.value.hint


def open_and_prompt() -> None:
    session = open_session(ENGINE, launch())
    try:
        session.prompt(8)
    finally:
        session.close()


def test_a_worker_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer in time is a hang, not a longer wait, in loading and in work."""
    fake_worker(monkeypatch, "time.sleep(600)")
    with pytest.raises(EngineCrash) as caught:
        open_session(ENGINE, launch(ready_timeout_seconds=0.5))
    assert caught.value.kind is CrashKind.HANG
    monkeypatch.setattr(llama_cpp_python, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(llama_cpp_python, "_PATIENCE_SECONDS_PER_TOKEN", 0.0)
    fake_worker(monkeypatch, "if op == 'prompt': time.sleep(600)")
    with pytest.raises(EngineCrash) as caught:
        open_and_prompt()
    assert caught.value.kind is CrashKind.HANG
    assert caught.value.returncode is None


@pytest.mark.parametrize(
    "behaviour",
    [
        "print('no json', flush=True); continue",
        "print('[' * 100000, flush=True); continue",
        "print('[1]', flush=True); continue",
        "say(event='ready'); continue",
        "say(event='sample', n_tokens=n, seconds='fast', decoded=n); continue",
        "say(event='sample', n_tokens=n, seconds=0.0, decoded=n); continue",
        "say(event='sample', n_tokens=n + 1, seconds=1.0, decoded=n); continue",
        "say(event='sample', n_tokens=n, seconds=1.0, decoded=n - 1); continue",
    ],
)
def test_answers_that_mean_nothing_are_errors(monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """Lines are checked: no JSON, another event, impossible times and wrong counts of tokens are errors of ours."""
    fake_worker(monkeypatch, f"if op == 'prompt':\n        {behaviour}")
    with pytest.raises(EngineError):
        open_and_prompt()


def test_a_refusal_quotes_the_engines_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that refuses the model is not a crash; an allocation that failed has the kind of one."""
    refuse = "say(event='error', kind='engine', message='the engine could not load the model'); continue"
    fake_worker(monkeypatch, f"sys.stderr.write('gguf: invalid magic\\n'); sys.stderr.flush(); {refuse}")
    with pytest.raises(EngineError, match="invalid magic") as caught:
        open_session(ENGINE, launch())
    assert not isinstance(caught.value, EngineCrash)
    fake_worker(monkeypatch, f"sys.stderr.write('cudaMalloc failed: out of memory\\n'); sys.stderr.flush(); {refuse}")
    with pytest.raises(EngineCrash) as crash:
        open_session(ENGINE, launch())
    assert crash.value.kind is CrashKind.DEVICE_OUT_OF_MEMORY


def test_an_engine_with_a_problem_is_not_started() -> None:
    """An engine that cannot be used says why, as an engine error."""
    broken = EngineFacts(
        name="llama_cpp_python", path="x", build="1", ggml_version=None, problem="libcuda.so.1 is missing"
    )
    with pytest.raises(EngineError, match="libcuda"):
        open_session(broken, launch())


@posix
@pytest.mark.parametrize("number", [4, 11])
def test_a_crashing_layout_is_given_up_and_remembered(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A crash with repack on is tried again without; what that cures is remembered for this machine and build only."""
    fake_worker(monkeypatch, f"if repack: die({number})")
    opened = open_or_without_repack(ENGINE, launch(repack=True), "machine")
    opened.session.close()
    assert opened.launch.settings.repack is False
    assert opened.repack_crash is not None
    other_build = EngineFacts(
        name="llama_cpp_python", path=sys.executable, build="2", ggml_version="2", extra_buffers=("amx",)
    )
    cleared, kept = without_crashing_buffers((ENGINE, other_build), "machine")
    assert cleared.extra_buffers == ()
    assert "amx" in (cleared.extra_buffers_problem or "")
    assert kept == other_build
    assert without_crashing_buffers((ENGINE,), "another machine") == (ENGINE,)


@posix
def test_a_crash_that_repacking_does_not_cause_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash that stays with repack off is raised; nothing is remembered."""
    fake_worker(monkeypatch, "die(4)")
    with pytest.raises(EngineCrash):
        open_or_without_repack(ENGINE, launch(repack=True), "machine")
    assert without_crashing_buffers((ENGINE,), "machine") == (ENGINE,)


@posix
def test_only_suspect_crashes_are_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Out of memory, and any crash with repack off, end at once: the same plan would end the same way."""
    count = tmp_path / "count"
    for behaviour, repack in (("die(9)", True), ("die(4)", False)):
        count.write_text("")
        fake_worker(monkeypatch, f"open({str(count)!r}, 'a').write('x'); {behaviour}")
        with pytest.raises(EngineCrash):
            open_or_without_repack(ENGINE, launch(repack=repack), "machine")
        assert count.read_text() == "x"


def test_a_rebuilt_engine_gets_another_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another library file under the same version is another build."""
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"one")
    engine = EngineFacts(
        name="llama_cpp_python", path=str(tmp_path / "libllama.so"), build="1", ggml_version="2", extra_buffers=("amx",)
    )
    fake_worker(monkeypatch, "if repack: sys.exit(132)")
    open_or_without_repack(engine, launch(repack=True), "machine").session.close()
    assert without_crashing_buffers((engine,), "machine")[0].extra_buffers == ()
    library.write_bytes(b"rebuilt")
    assert without_crashing_buffers((engine,), "machine") == (engine,)


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"5",
        b"null",
        b'{"op": "fly"}',
        b'{"op": "open"}',
        b'{"op": "prompt", "n_tokens": 1, "depth": 0}',
        b'{"op": ["open"]}',
        b"[" * 60000,
    ],
)
def test_the_worker_answers_nonsense_with_an_error(line: bytes) -> None:
    """The worker checks what it reads; a bad request ends in an error answer, not in its end."""
    answer = worker._answer(worker._Worker(), line)
    assert answer["event"] == "error"
    sent = io.BytesIO()
    worker._send(sent, answer)
    assert json.loads(sent.getvalue()) == answer
