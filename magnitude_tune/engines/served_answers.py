"""Streamed answers: when the first token came, how many there were, and what the server says about its times."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from magnitude_tune.engines.served_client import Reply, WebClient, printable, said_by
from magnitude_tune.engines.values import Sample
from magnitude_tune.errors import UsageError

__all__ = ["TimedBy", "Turn", "read_ollama", "read_openai"]

TimedBy = Literal["server", "stream"]

_DONE: Final = b"[DONE]"
_LEAST_BURSTS: Final = 3
_NOT_FOUND: Final = 404


class Turn(NamedTuple):
    """One prompt read and one answer written.

    `prompt` has the tokens that were computed (none that a cache held), `generation` the decoding steps.
    `ttft_seconds` runs from sending the request to the first token's arrival here. `n_prompt_total` counts what a
    cache held too; None where the server does not say.
    """

    prompt: Sample
    generation: Sample
    ttft_seconds: float
    n_written: int
    n_prompt_total: int | None
    timed_by: TimedBy


@dataclass(slots=True)
class _Stream:
    """What has been seen of an answer."""

    started: float
    arrivals: list[float] = field(default_factory=list)
    ended: bool = False

    def take(self, choice: Mapping[str, Any], at: float) -> None:
        if _has_text(choice):
            self.arrivals.append(at)
        self.ended = self.ended or isinstance(choice.get("finish_reason"), str)

    @property
    def first_seconds(self) -> float:
        return self.arrivals[0] - self.started

    @property
    def writing_seconds(self) -> float:
        return self.arrivals[-1] - self.arrivals[0]

    @property
    def n_bursts(self) -> int:
        return len(set(self.arrivals))


def read_openai(client: WebClient, path: str, body: Mapping[str, object]) -> Turn | Reply:
    """Ask for a completion in server-sent events; a `Reply` where the server refuses.

    `timings` in the last event (llama-server's) count where they are there, else `usage` and the clock.

    Raises:
        EngineError: the answer breaks off, is no stream of events, or tells neither times nor counts.
    """
    stream = _Stream(time.perf_counter())
    lines = client.post_lines(path, body)
    if isinstance(lines, Reply):
        return lines
    timings: Mapping[str, Any] = {}
    usage: Mapping[str, Any] = {}
    with closing(lines):
        for at, line in lines:
            event = _event(client, line)
            if event is None:
                stream.ended = stream.ended or line.endswith(_DONE)
                continue
            for choice in _choices(event):
                stream.take(choice, at)
            timings = _mapping(event.get("timings")) or timings
            usage = _mapping(event.get("usage")) or usage
    _check_whole(client, stream)
    return _by_timings(stream, timings, usage) or _by_clock(client, stream, usage)


def _event(client: WebClient, line: bytes) -> Mapping[str, Any] | None:
    """The JSON object of a line `data: {...}`; None for the other lines of server-sent events."""
    if line.startswith((b":", b"event:", b"id:", b"retry:")):
        return None
    if not line.startswith(b"data:"):
        raise client.error(
            f"the answer is no stream of events: {printable(line.decode('utf-8', 'replace')[:60])}",
            "the server must stream its answers",
        )
    payload = line[len(b"data:") :].strip()
    return None if payload == _DONE else _json(client, payload)


def _json(client: WebClient, payload: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise client.error(f"a part of the answer is not JSON: {printable(payload.decode('utf-8', 'replace')[:60])}")
    if value.get("error"):
        raise client.error(f"the server gave up{said_by(Reply(200, False, value))}")
    return value


def read_ollama(client: WebClient, path: str, body: Mapping[str, object]) -> Turn:
    """Ask Ollama for a completion: one JSON object a line, the last with counts and nanoseconds.

    Raises:
        EngineError: the answer breaks off or tells neither times nor counts.
        UsageError: it has no such model.
    """
    stream = _Stream(time.perf_counter())
    lines = client.post_lines(path, body)
    if isinstance(lines, Reply):
        if lines.status == _NOT_FOUND:
            raise UsageError(
                f"the server has no model {body['model']}{said_by(lines)}",
                where=str(client.address),
                hint="name one of `ollama list` with --model",
            )
        raise client.refused(lines, path)
    last: Mapping[str, Any] = {}
    with closing(lines):
        for at, line in lines:
            event = _json(client, line)
            if event.get("response") or event.get("thinking"):
                stream.arrivals.append(at)
            if event.get("done") is True:
                last, stream.ended = event, True
    _check_whole(client, stream)
    n_read, n_written = _count(last.get("prompt_eval_count")), _count(last.get("eval_count"))
    reading = _positive(last.get("prompt_eval_duration"))
    writing = _positive(last.get("eval_duration"))
    if n_read and n_written and reading and writing:
        prompt, generation = Sample(n_read, reading / 1e9), Sample(n_written, writing / 1e9)
        return Turn(prompt, generation, stream.first_seconds, n_written, n_read, "server")
    return _by_clock(client, stream, {"prompt_tokens": n_read, "completion_tokens": n_written})


def _check_whole(client: WebClient, stream: _Stream) -> None:
    if not stream.ended:
        raise client.error("the answer ended before it was finished", "look at the server's log")
    if not stream.arrivals:
        raise client.error("the answer holds no token", "see that the model generates text")


def _by_timings(stream: _Stream, timings: Mapping[str, Any], usage: Mapping[str, Any]) -> Turn | None:
    """From llama-server's own clock, which starts for the answer when its first token has been chosen."""
    n_read, n_written = _count(timings.get("prompt_n")), _count(timings.get("predicted_n"))
    reading, writing = _positive(timings.get("prompt_ms")), _positive(timings.get("predicted_ms"))
    if not (n_read and n_written and n_written > 1 and reading and writing):
        return None
    return Turn(
        prompt=Sample(n_read, reading / 1e3),
        generation=Sample(n_written - 1, writing / 1e3),
        ttft_seconds=stream.first_seconds,
        n_written=n_written,
        n_prompt_total=_count(usage.get("prompt_tokens")) or n_read + (_count(timings.get("cache_n")) or 0),
        timed_by="server",
    )


def _by_clock(client: WebClient, stream: _Stream, usage: Mapping[str, Any]) -> Turn:
    """From arrivals here: the prompt's time has the first token's and the network's in it."""
    n_total = _count(usage.get("prompt_tokens"))
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
    n_written = _count(usage.get("completion_tokens")) or len(stream.arrivals)
    if n_total is None or n_total <= cached:
        raise client.error(
            "the server says neither how long it read nor how many tokens", "use one that reports usage in its stream"
        )
    if n_written < 2:
        raise client.error("the model wrote a single token, which tells no rate", "use a model that writes on")
    if stream.n_bursts < min(_LEAST_BURSTS, n_written) or stream.writing_seconds <= 0:
        raise client.error(
            "the whole answer arrived at once, so nothing can be timed",
            "something between holds the stream back: give --url the server's own address",
        )
    return Turn(
        prompt=Sample(n_total - cached, stream.first_seconds),
        generation=Sample(n_written - 1, stream.writing_seconds),
        ttft_seconds=stream.first_seconds,
        n_written=n_written,
        n_prompt_total=n_total,
        timed_by="stream",
    )


def _choices(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    choices = event.get("choices")
    return (choice for choice in (choices if isinstance(choices, list) else ()) if isinstance(choice, dict))


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = _mapping(choice.get("delta"))
    return any((choice.get("text"), *(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


def _positive(value: object) -> float | None:
    """A time above zero; None for zero (a clock that is switched off), for nonsense and where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e18 and math.isfinite(value) else None
