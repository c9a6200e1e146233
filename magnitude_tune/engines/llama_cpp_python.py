"""llama-cpp-python in a fresh worker child: starts it, talks to it line by line, and says what went wrong."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final, cast

from magnitude_tune.engines.buffers import parse_buffers
from magnitude_tune.engines.crashes import EngineCrash, classify, engine_crash, oom_kill_count
from magnitude_tune.engines.values import BufferLine, CrashKind, Launch, MemoryReading, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.processes import Child, child_environment, start

__all__ = ["LlamaCppPythonSession", "open_session", "probe"]

_NAME: Final = "llama-cpp-python"
# -P: a file of the caller's folder must not pass for a module.
_WORKER_ARGUMENTS: Final = ("-P", "-m", "magnitude_tune.engines.worker")
_LINE_LIMIT_BYTES: Final = 1 << 16
_LOG_LIMIT_BYTES: Final = 16 << 20
# Slower than this is a hang: one token in five seconds, and a minute to begin with.
_PATIENCE_SECONDS: Final = 60.0
_PATIENCE_SECONDS_PER_TOKEN: Final = 5.0
_PROBE_SECONDS: Final = 60.0
_EXIT_SECONDS: Final = 5.0


def probe() -> dict[str, object]:
    """What the installed library says of itself (`library_facts`), asked in a child.

    Raises:
        EngineError: it cannot be loaded; the message says why.
    """
    with _Worker({}) as worker:
        return worker.ask({"op": "probe"}, _PROBE_SECONDS, expected="facts")


def open_session(launch: Launch) -> LlamaCppPythonSession:
    """Start a worker, load the model, warm up.

    Raises:
        EngineCrash: the worker died or did not answer in time.
        EngineError: the engine refused the model or the settings.
    """
    if launch.rpc:
        raise EngineError("it has no devices over RPC here", where=_NAME, hint="use llama_server for --rpc")
    started = time.perf_counter()
    worker = _Worker(launch.environment)
    try:
        request = {"op": "open", "model": launch.model_path, "settings": asdict(launch.settings)}
        ready = worker.ask(request, launch.ready_timeout_seconds, expected="ready")
        return LlamaCppPythonSession(worker, time.perf_counter() - started, ready)
    except BaseException:
        worker.close()
        raise


class LlamaCppPythonSession:
    """An `EngineSession` on one worker. Every request starts from an empty context."""

    def __init__(self, worker: _Worker, ready_seconds: float, ready: Mapping[str, object]) -> None:
        n_ctx = ready.get("n_ctx")
        if type(n_ctx) is not int:
            raise worker.nonsense(ready)
        self._worker = worker
        self._n_ctx = n_ctx
        self.ready_seconds = ready_seconds
        self.buffers: tuple[BufferLine, ...] = parse_buffers(worker.log())
        self.pid = worker.child.pid

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read `n_prompt` tokens after `depth` tokens of context; only the reading is timed.

        Raises:
            EngineCrash: the worker died or hangs.
            EngineError: the context does not hold as many tokens, or the engine failed to decode them.
        """
        return self._decode("prompt", n_prompt, depth)

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Generate exactly `n_gen` tokens, one at a time, after `depth` tokens of context; raises as `prompt`."""
        return self._decode("generate", n_gen, depth)

    def memory(self) -> MemoryReading:
        """Memory of the process group."""
        group = self._worker.child.memory()
        return MemoryReading(group.anonymous_bytes, group.resident_bytes, group.peak_resident_bytes, group.swap_bytes)

    def close(self) -> None:
        """End the worker's group and wait until it is gone."""
        self._worker.close()

    def _decode(self, operation: str, n_tokens: int, depth: int) -> Sample:
        if n_tokens < 1 or depth < 0 or n_tokens + depth > self._n_ctx:
            raise EngineError(
                f"{n_tokens} tokens at depth {depth} do not fit a context of {self._n_ctx} per slot",
                where=_NAME,
                hint="ask for fewer tokens, or raise n_ctx",
            )
        patience = _PATIENCE_SECONDS + _PATIENCE_SECONDS_PER_TOKEN * (n_tokens + depth)
        answer = self._worker.ask({"op": operation, "n_tokens": n_tokens, "depth": depth}, patience, expected="sample")
        seconds, decoded = answer.get("seconds"), answer.get("decoded")
        if type(seconds) is not float or seconds <= 0 or answer.get("n_tokens") != n_tokens:
            raise self._worker.nonsense(answer)
        if decoded != n_tokens + depth:
            raise EngineError(f"asked for {n_tokens + depth} tokens, the engine decoded {decoded}", where=_NAME)
        return Sample(n_tokens, seconds)


class _Worker:
    """The child and the line protocol with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._oom_kills = oom_kill_count()
        self._folder = tempfile.TemporaryDirectory(prefix="magnitude-tune-", ignore_cleanup_errors=True)
        self._log_path = Path(self._folder.name) / "engine.log"
        env, _ = child_environment(environment)
        try:
            self.child: Child = start(
                [sys.executable, *_WORKER_ARGUMENTS], env=env, log_path=self._log_path, pipes=True
            )
        except OSError as error:
            self._folder.cleanup()
            raise EngineError(f"cannot start the worker: {error}", where=_NAME) from error
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self.child.stdout,), daemon=True)
        self._reader.start()

    def ask(self, request: Mapping[str, object], timeout_seconds: float, *, expected: str) -> dict[str, object]:
        """Send one request and take its answer.

        Raises:
            EngineCrash: it died, or did not answer in time (and is then killed).
            EngineError: it answered with an error, or with something else than expected.
        """
        stdin = cast("IO[bytes]", self.child.stdin)
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its answers says so below
            stdin.write(json.dumps(request).encode("ascii") + b"\n")
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise self._crash(None) from None
        if not line.endswith(b"\n"):
            raise self._crash(self.child.wait(_EXIT_SECONDS))
        return self._checked(line, expected)

    def _checked(self, line: bytes, expected: str) -> dict[str, object]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self.nonsense(line) from None
        if not isinstance(answer, dict):
            raise self.nonsense(line)
        if answer.get("event") == "error":
            raise self._refusal(str(answer.get("message")))
        if answer.get("event") != expected:
            raise self.nonsense(line)
        return answer

    def _refusal(self, message: str) -> EngineError:
        tail = f"{self.child.log_tail()}\n{message}"
        crash = classify(1, tail)
        if crash.kind is not CrashKind.EXIT:  # an allocation that failed, a library that is missing
            return EngineCrash(_NAME, crash, returncode=None, log_tail=tail)
        cause = f": {crash.cause}" if crash.cause and crash.cause != message else ""
        return EngineError(f"{message}{cause}", where=_NAME, hint=crash.advice)

    def nonsense(self, answer: object) -> EngineError:
        """The error for an answer that means nothing."""
        return EngineError(f"the worker answered {str(answer)[:200]!r}", where=_NAME, hint="report this as a bug")

    def log(self) -> str:
        """The engine's log so far."""
        return self.child.log_tail(_LOG_LIMIT_BYTES)

    def close(self) -> None:
        """End the group, the reader and the log."""
        self.child.close(grace_seconds=0)
        self._reader.join(_EXIT_SECONDS)
        self._folder.cleanup()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _crash(self, returncode: int | None) -> EngineError:
        tail = self.child.log_tail()
        self.child.close(grace_seconds=0)
        return engine_crash(_NAME, returncode, tail, oom_kills_before=self._oom_kills)

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_LINE_LIMIT_BYTES):
                self._lines.put(line)
        self._lines.put(b"")
