"""llama-server in a child of ours: launched with everything explicit, waited for, measured by its own timings."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from magnitude_tune.engines.buffers import parse_buffers
from magnitude_tune.engines.crashes import EngineCrash, engine_crash, oom_kill_count
from magnitude_tune.engines.server_arguments import build_arguments
from magnitude_tune.engines.server_client import Answer, ServerClient, Unreachable
from magnitude_tune.engines.server_files import library_dirs
from magnitude_tune.engines.values import BufferLine, Launch, MemoryReading, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.processes import Child, child_environment, start

__all__ = ["LlamaServerSession", "open_session"]

_NAME: Final = "llama-server"
_LOG_LIMIT_BYTES: Final = 16 << 20
_POLL_SECONDS: Final = 0.02
_HEALTH_SECONDS: Final = 5.0
_OK: Final = 200
# Slower than this is a hang: one token in five seconds, and a minute to begin with.
_PATIENCE_SECONDS: Final = 60.0
_PATIENCE_SECONDS_PER_TOKEN: Final = 5.0
_EXIT_SECONDS: Final = 5.0
# Enough for the kernels of large batches, which are where repacked weights crash.
_WARM_UP_TOKENS: Final = 64
_SEED: Final = 20
# A key would lock us out; the others turn the program into a part of a router, or its timings into fakes.
_DROPPED: Final = ("LLAMA_API_KEY", "LLAMA_SERVER_")
_LEAST_VOCABULARY: Final = 8
# The cheapest choice of a token there is: what is measured is the decoding.
_SAMPLING: Final = {"samplers": ["top_k"], "top_k": 1, "temperature": 0, "seed": _SEED, "ignore_eos": True}


def open_session(engine: EngineFacts, launch: Launch, *, port: int | None = None) -> LlamaServerSession:
    """Launch the server on 127.0.0.1, wait until `/health` says 200, and read a short prompt to warm up.

    Args:
        engine: a server found by `find_server`.
        launch: model, settings, RPC servers, environment and the time for loading.
        port: where to listen; a free one where None.

    Raises:
        EngineCrash: it died, or was not ready in time (the whole group is killed); carries the end of its log.
        EngineError: the port is taken, it cannot be started, lacks an option, or another server answers.
    """
    port = _free_port(port)
    arguments = build_arguments(launch, engine.flags, port=port)
    server = _Server(engine, launch, arguments.argv, port)
    try:
        ready_seconds = server.wait_until_ready(launch.ready_timeout_seconds)
        n_vocab = server.confirm_ours(launch.model_path)
        session = LlamaServerSession(server, ready_seconds, n_vocab)
        session.prompt(min(_WARM_UP_TOKENS, max(1, launch.settings.n_ctx // launch.settings.n_parallel // 2)))
    except BaseException:
        server.close()
        raise
    return session


class LlamaServerSession:
    """An `EngineSession` on one server. Requests go to slot 0, one at a time."""

    def __init__(self, server: _Server, ready_seconds: float, n_vocab: int) -> None:
        self._server = server
        self._tokens = _Tokens(n_vocab)
        self.ready_seconds = ready_seconds
        self.buffers: tuple[BufferLine, ...] = parse_buffers(server.log())
        self.pid = server.child.pid
        self.port = server.client.port

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read `n_prompt` tokens after `depth` tokens of context; only the reading is timed.

        The time is the server's `prompt_ms`, which runs until the first token is chosen; where its timings are
        zero, the wall-clock time of the request. At a depth the context is read first, in a request of its own, and
        kept in the slot. A server that reads it again all the same (as some do within a sliding window) gives the
        time of both less the time of the context.

        Raises:
            EngineCrash: the server died or hangs.
            EngineError: it refused, or did not read exactly these tokens, or gave no usable time.
        """
        context = self._tokens.draw(depth)
        before = self._ask(context, 0, keep=True) if context else None
        answer = self._ask(context + self._tokens.draw(n_prompt), 0, keep=before is not None)
        seconds = _reading_seconds(answer)
        n_read, n_kept = answer.count("timings", "prompt_n"), answer.count("timings", "cache_n") or 0
        if before is not None and n_kept == 0 and n_read == n_prompt + depth:
            seconds -= _reading_seconds(before)
        elif n_kept != depth or n_read not in (None, n_prompt):
            raise EngineError(
                f"asked to read {n_prompt} tokens after {depth}, the server read {n_read} after {n_kept}", where=_NAME
            )
        return _sample(n_prompt, seconds)

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Generate exactly `n_gen` tokens, one at a time, after `depth` tokens of context (at least one).

        The server starts the clock of `predicted_ms` when the first token has been chosen, out of the prompt's
        logits. So `n_gen` + 1 tokens are asked for, and the time is that of `n_gen` decoding steps. Where its timings
        are zero, it is the wall-clock time less that of a request for the first token alone.

        Raises:
            EngineCrash: the server died or hangs.
            EngineError: it refused, did not generate exactly these tokens, or gave no usable time.
        """
        context = self._tokens.draw(max(1, depth))
        answer = self._ask(context, n_gen + 1, keep=False)
        n_made = answer.count("timings", "predicted_n") or answer.count("tokens_predicted")
        if n_made != n_gen + 1:
            raise EngineError(f"asked for {n_gen + 1} tokens, the server generated {n_made}", where=_NAME)
        seconds = answer.seconds("timings", "predicted_ms")
        if seconds is None:
            seconds = answer.wall_seconds - self._ask(context, 1, keep=False).wall_seconds
        return _sample(n_gen, seconds)

    def memory(self) -> MemoryReading:
        """Memory of the server's process group; that of RPC servers is not in it."""
        group = self._server.child.memory()
        return MemoryReading(group.anonymous_bytes, group.resident_bytes, group.peak_resident_bytes, group.swap_bytes)

    def close(self) -> None:
        """End the process group and wait until it is gone."""
        self._server.close()

    def _ask(self, tokens: list[int], n_predict: int, *, keep: bool) -> Answer:
        body = {"prompt": tokens, "n_predict": n_predict, "cache_prompt": keep, "id_slot": 0, **_SAMPLING}
        patience = _PATIENCE_SECONDS + _PATIENCE_SECONDS_PER_TOKEN * (len(tokens) + n_predict)
        try:
            return self._server.client.complete(body, timeout_seconds=patience)
        except Unreachable:
            raise self._server.crash() from None


def _reading_seconds(answer: Answer) -> float:
    return answer.seconds("timings", "prompt_ms") or answer.wall_seconds


def _sample(n_tokens: int, seconds: float) -> Sample:
    if seconds <= 0:
        raise EngineError(
            f"{n_tokens} tokens are too few to time by a difference", where=_NAME, hint="measure more tokens"
        )
    return Sample(n_tokens, seconds)


class _Tokens:
    """Token ids drawn from the middle half of the vocabulary, where neither special nor unused tokens lie."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = range(n_vocab // 4, 3 * n_vocab // 4)
        self._random = random.Random(_SEED)  # noqa: S311 - the same tokens in every run, no secret

    def draw(self, n_tokens: int) -> list[int]:
        """That many ids, others at each call."""
        return self._random.choices(self._ids, k=n_tokens)


class _Server:
    """The child, its log and its port."""

    def __init__(self, engine: EngineFacts, launch: Launch, arguments: tuple[str, ...], port: int) -> None:
        self.client = ServerClient(port)
        self._oom_kills = oom_kill_count()
        self._folder = tempfile.TemporaryDirectory(prefix="magnitude-tune-", ignore_cleanup_errors=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        folders = library_dirs(Path(engine.path))
        environment, _ = child_environment(launch.environment, library_dirs=folders, base=inherited)
        self._started = time.perf_counter()
        try:
            self.child: Child = start(
                [engine.path, *arguments], env=environment, log_path=Path(self._folder.name) / "engine.log"
            )
        except OSError as error:
            self._folder.cleanup()
            raise EngineError(f"cannot start the server: {error.strerror or error}", where=engine.path) from error

    def wait_until_ready(self, timeout_seconds: float) -> float:
        """Seconds from the launch until `/health` said 200: other pages answer before the model is loaded.

        Raises:
            EngineCrash: the child ended, or the time is up.
        """
        while self.child.poll() is None:
            elapsed = time.perf_counter() - self._started
            left = timeout_seconds - elapsed
            if left <= 0:
                raise self._ended(None)
            with contextlib.suppress(Unreachable):
                if self.client.get("/health", timeout_seconds=min(left, _HEALTH_SECONDS)).status == _OK:
                    return time.perf_counter() - self._started
            time.sleep(_POLL_SECONDS)
        raise self._ended(self.child.poll())

    def confirm_ours(self, model_path: str) -> int:
        """See that the server that answers is the child, and give the size of its vocabulary.

        Raises:
            EngineCrash: the child has ended.
            EngineError: another server answers on this port.
        """
        try:
            props, models = self.client.get("/props"), self.client.get("/v1/models")
        except Unreachable:
            raise self.crash() from None
        served = props.text("model_path")
        if self.child.poll() is not None:
            if served is None or not _is_same_file(served, model_path):
                raise self._stranger(served)
            raise self._ended(self.child.poll())
        if served is not None and not _is_same_file(served, model_path):
            raise self._stranger(served)
        n_vocab = models.count("data", "0", "meta", "n_vocab")
        if n_vocab is None or n_vocab < _LEAST_VOCABULARY:
            raise EngineError(
                "the server does not say how large its vocabulary is", where=_NAME, hint="use a newer one"
            )
        return n_vocab

    def crash(self) -> EngineCrash:
        """What became of a child that did not answer: how it ended, or that it hangs (and is then killed)."""
        return self._ended(self.child.wait(_EXIT_SECONDS))

    def log(self) -> str:
        """The server's log so far."""
        return self.child.log_tail(_LOG_LIMIT_BYTES)

    def close(self) -> None:
        """End the group and wait until it is gone."""
        self.child.close()
        self._folder.cleanup()

    def _ended(self, returncode: int | None) -> EngineCrash:
        tail = self.child.log_tail()
        self.child.close(grace_seconds=0)
        return engine_crash(_NAME, returncode, tail, oom_kills_before=self._oom_kills)

    def _stranger(self, served: str | None) -> EngineError:
        return EngineError(
            f"another server answers on port {self.client.port}, with the model {served or 'unknown'}",
            where=f"127.0.0.1:{self.client.port}",
            hint="stop it, or choose another port",
        )


def _free_port(port: int | None) -> int:
    """The port, once a bind has shown that it is free; any free one where None.

    Raises:
        EngineError: it is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            # A connection of the past that lingers does not make a port taken; a listener does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
            found: int = probe.getsockname()[1]
        except OSError as error:
            raise EngineError(
                f"port {port} on 127.0.0.1 cannot be used: {error.strerror or error}",
                where=f"127.0.0.1:{port}",
                hint="stop what listens there, or choose another port",
            ) from error
    return found


def _is_same_file(served: str, model_path: str) -> bool:
    return os.path.realpath(served) == os.path.realpath(model_path)
