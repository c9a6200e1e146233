"""A server that runs already, measured by its address: which one answers, what it does, and what can go wrong."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.stub_servers import Handler, Stub, api, events, llama_server, ollama, page, serving, usage_of

from magnitude_tune.engines import llama_server as launched
from magnitude_tune.engines.served import ServedSession, connect
from magnitude_tune.engines.served_client import Address, Limits, parse_url
from magnitude_tune.engines.values import Launch, Sample
from magnitude_tune.errors import EngineError, MagnitudeTuneError, UsageError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.request import Settings

SHORT = Limits(connect=1.0, page=0.3, first_token=0.4, next_token=0.3, answer=1.5)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("http", "127.0.0.1", 8080)),
        ("HTTP://Localhost:8080/", Address("http", "localhost", 8080)),
        ("https://example.org/v1/", Address("https", "example.org", 443)),
        ("http://[::1]:11434/openai/v1", Address("http", "::1", 11434, "/openai")),
    ],
)
def test_a_url_is_an_address(url: str, address: Address) -> None:
    """Scheme, host, port and the path below which the API stands."""
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "localhost", "ftp://host", "file:///etc/passwd", "http://", "http://host:99999", "http://h:x",
     "http://user:secret@host", "http://host/?a=1", "http://host/#a", "http://host/a b", "http://host/\r\nX: 1", "http://[::1"],
)  # fmt: skip
def test_another_text_is_no_url(url: str) -> None:
    """Anything but an http or https address is refused before a connection, secrets are not repeated."""
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_llama_server_tells_its_model_and_times() -> None:
    """Build, model and context come from /props and /v1/models, times from its own timings (field report B44)."""
    with serving(llama_server()) as stub:
        session = connect(stub.url)
        assert session.facts.kind == "llama_server"
        assert session.facts.model == "m.gguf"
        assert session.facts.model_path == "/models/m.gguf"
        assert (session.facts.build, session.facts.n_ctx) == ("b8123-4b3f9c1", 4096)
        assert session.facts.model_bytes == 246546944
        session.warm_up()
        turn = session.turn(121, 8)
    assert turn.prompt == Sample(121, 121 * 0.004)
    assert turn.generation == Sample(7, pytest.approx(7 * 0.02))
    assert turn.timed_by == "server"
    assert 0 < turn.ttft_seconds < 5
    path, body = stub.seen[-1]
    assert path == "/v1/completions"
    assert body["cache_prompt"] is False
    assert body["ignore_eos"] is True


def test_no_two_prompts_are_alike() -> None:
    """A prompt that a cache holds would be read in no time."""
    with serving(llama_server()) as stub:
        session = connect(stub.url)
        for _ in range(3):
            session.turn(64, 4)
    assert len({body["prompt"] for path, body in stub.seen if path == "/v1/completions"}) == 3


@pytest.mark.parametrize("zero", ["prompt_ms", "predicted_ms"])
def test_a_clock_that_is_off_falls_back_to_ours(zero: str) -> None:
    """Timings of zero are replaced by arrivals, never divided by (field report B68)."""
    with serving(llama_server(**{zero: 0.0})) as stub:
        turn = connect(stub.url).turn(64, 8)
    assert turn.timed_by == "stream"
    assert math.isfinite(turn.prompt.rate)
    assert math.isfinite(turn.generation.rate)


@pytest.mark.parametrize("chat_only", [False, True])
def test_a_plain_server_is_timed_by_its_stream(chat_only: bool) -> None:
    """Tokens are those of `usage`, times are those of arrivals; chat where there are no completions."""
    with serving(api("some-model", chat_only=chat_only)) as stub:
        session = connect(stub.url + "/v1")
        assert session.facts == ("openai", "some-model", "vllm", None, None, None, None)
        session.warm_up()
        turn = session.turn(63, 10)
        assert turn.prompt.n_tokens == 63
        assert turn.generation.n_tokens == 9
        assert turn.generation.seconds >= 9 * 0.002
        assert turn.prompt.seconds == turn.ttft_seconds
        assert turn.timed_by == "stream"
        asked = [path for path, _ in stub.seen]
    assert asked.count("/v1/completions") == (1 if chat_only else 3)


def test_what_a_cache_held_was_not_read() -> None:
    """Cached tokens of the prompt count as read by nobody."""

    def complete(_: Stub, handler: Handler, body: dict[str, Any]) -> None:
        usage = usage_of(body) | {"prompt_tokens_details": {"cached_tokens": 20}}
        handler.stream(events(body, last={"usage": usage}))

    stub = api("m")
    stub.answers["/v1/completions"] = complete
    with serving(stub):
        turn = connect(stub.url).turn(40, 6)
    assert turn.n_prompt_total == 83
    assert turn.prompt.n_tokens == 63


def test_ollama_tells_counts_and_nanoseconds() -> None:
    """Its own durations count; the model that is loaded answers, with the context it was loaded with."""
    with serving(ollama("llama3.2:latest", stored=("other:7b",))) as stub:
        session = connect(stub.url)
        assert session.facts.kind == "ollama"
        assert (session.facts.model, session.facts.build, session.facts.n_ctx) == ("llama3.2:latest", "0.12.3", 4096)
        session.warm_up()
        turn = session.turn(101, 8)
    assert turn.prompt == Sample(101, 101 * 0.005)
    assert turn.generation == Sample(8, 8 * 0.025)
    _, body = stub.seen[-1]
    assert body["raw"] is True
    assert "num_ctx" not in body["options"]


def test_ollama_without_durations_is_timed_by_its_stream() -> None:
    """Durations of zero give no infinite rate."""
    with serving(ollama("m", timed=False)) as stub:
        turn = connect(stub.url).turn(21, 8)
    assert turn.timed_by == "stream"
    assert turn.generation == Sample(7, turn.generation.seconds)


@pytest.mark.parametrize(
    ("stub", "model", "says"),
    [
        (lambda: ollama("a", "b"), None, "2 models: a, b"),
        (lambda: ollama(stored=("a", "b", "c")), None, "3 models: a, b, c"),
        (ollama, None, "names no model"),
        (lambda: ollama("a"), "z", "no model z: model 'z' not found"),
        (lambda: api("a", "b"), None, "2 models: a, b"),
        (api, None, "names no model"),
    ],
)
def test_which_model_must_be_clear(stub: Callable[[], Stub], model: str | None, says: str) -> None:
    """Where several models, or none, could answer, the choice is the person's (exit code 2)."""
    with serving(stub()) as running, pytest.raises(UsageError, match=says):
        connect(running.url, model=model).turn(8, 4)


def test_a_named_model_is_asked_for() -> None:
    """Of several models the named one answers."""
    with serving(api("a", "b")) as stub:
        connect(stub.url, model="b").turn(8, 4)
    assert stub.seen[-1][1]["model"] == "b"


def test_a_key_is_sent_only_once_it_is_asked_for() -> None:
    """No server sees the key that did not want one; a server that wants one gets it."""
    with serving(llama_server()) as free:
        connect(free.url, key="sk-1").turn(8, 4)
    assert set(free.keys) == {None}
    locked = llama_server()
    locked.key = "sk-1"
    with serving(locked):
        session = connect(locked.url, key="sk-1")
        session.turn(8, 4)
        assert session.sends_key
        with pytest.raises(UsageError, match="wants a key"):
            connect(locked.url)
        with pytest.raises(UsageError, match="does not take the key"):
            connect(locked.url, key="sk-2")
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        connect(locked.url, key="sk\r\nX: 1")


def test_a_redirect_is_not_followed() -> None:
    """Nothing is sent to an address that the person did not name."""
    with serving(llama_server()) as other:

        def away(_: Stub, handler: Handler, __: dict[str, Any]) -> None:
            handler.send(307, "", Location=other.url + "/props")

        with serving(Stub({"/props": away})) as stub, pytest.raises(UsageError, match="another address"):
            connect(stub.url, key="sk-1")
        assert other.seen == []


def test_nobody_there() -> None:
    """A closed port is said to be one, with the address (exit code 5)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        connect(url)
    assert url in str(caught.value)


def test_http_where_https_was_named() -> None:
    """A server without TLS gives no safe connection, and no unsafe one is tried."""
    with serving(llama_server()) as stub:
        with pytest.raises(EngineError, match=r"safe connection|cannot be reached"):
            connect(stub.url.replace("http:", "https:"), limits=SHORT)
        assert stub.seen == []


@pytest.mark.parametrize(
    ("stub", "error", "says"),
    [
        (
            Stub({"/props": page({"error": {"code": 503, "message": "Loading model"}}, 503)}),
            EngineError,
            r"not ready.*Loading model",
        ),
        (Stub(), UsageError, "no model server that is known"),
        (Stub({"/v1/models": page("hello")}), EngineError, "not JSON"),
        (Stub({"/v1/models": page({"error": "boom\x1b[31m"}, 500)}), EngineError, r"status 500: boom\?\[31m"),
        (
            Stub({"/v1/models": lambda _, handler, __: handler.send(200, "<html>Hello</html>", "text/html")}),
            UsageError,
            "web page",
        ),
        (
            Stub({"/props": lambda _, handler, __: handler.send(200, "<!doctype html>", "text/plain")}),
            UsageError,
            "web page",
        ),
    ],
    ids=["loading", "nothing known", "no JSON", "fails", "web page", "web page as text"],
)
def test_what_is_no_model_server(stub: Stub, error: type[MagnitudeTuneError], says: str) -> None:
    """Each kind of stranger is named as what it is, and its words cannot steer a terminal."""
    with serving(stub), pytest.raises(error, match=says):
        connect(stub.url)


def answering(how: Answer) -> Stub:
    """A plain server whose completions are as told."""
    stub = api("m")
    stub.answers["/v1/completions"] = how
    return stub


Answer = Callable[[Stub, Handler, dict[str, Any]], None]


def stalls_at_once(stub: Stub, _: Handler, __: dict[str, Any]) -> None:
    """No byte of an answer."""
    stub.over.wait(5)


def stalls_on_the_way(stub: Stub, handler: Handler, body: dict[str, Any]) -> None:
    """Two tokens, then nothing."""

    def lines() -> Iterator[str]:
        for index, line in enumerate(events(body, last={})):
            if index == 3:
                stub.over.wait(5)
            yield line

    handler.stream(lines())


def drips(stub: Stub, handler: Handler, _: dict[str, Any]) -> None:
    """A comment now and then, for ever."""

    def lines() -> Iterator[str]:
        while not stub.over.wait(0.1):
            yield ": alive\n\n"

    handler.stream(lines())


def breaks_off(_: Stub, handler: Handler, body: dict[str, Any]) -> None:
    """The connection ends in the middle."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    line = next(line for line in events(body, last={}) if line.startswith("data")).encode()
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
    handler.close_connection = True


def gives_up(_: Stub, handler: Handler, __: dict[str, Any]) -> None:
    """An error as an event."""
    handler.stream(iter(['data: {"error": {"message": "out of memory"}}\n\n']))


def at_once(_: Stub, handler: Handler, body: dict[str, Any]) -> None:
    """A proxy that holds the stream back."""
    handler.send(200, "".join(events(body, last={"usage": usage_of(body)}, pause=0)), "text/event-stream")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (stalls_at_once, "no answer within 0.4 s"),
        (stalls_on_the_way, "stalls"),
        (drips, "stalls"),
        (breaks_off, "broke off|before it was finished"),
        (gives_up, "out of memory"),
        (at_once, "arrived at once"),
        (lambda _, handler, __: handler.stream(iter(["data: {oops\n\n"])), "not JSON"),
        (lambda _, handler, __: handler.stream(iter(['data: ["a"]\n\n'])), "not JSON"),
        (lambda _, handler, __: handler.send(200, {"choices": [{"text": "all of it"}]}), "no stream of events"),
        (lambda _, handler, __: handler.stream(iter(["data: [DONE]\n\n"])), "no token"),
        (lambda _, handler, body: handler.stream(events(body, last={})), "how many tokens"),
        (lambda _, handler, __: handler.send(400, {"error": {"message": "context too long"}}), "400: context too long"),
        (lambda _, handler, __: handler.send(503, {"error": "busy"}), "not ready"),
        (lambda _, handler, __: handler.send(200, "<html>", "text/html"), "web page"),
    ],
)
def test_an_answer_that_is_none(how: Answer, says: str) -> None:
    """Whatever comes instead of a streamed answer ends in one clear sentence, in time."""
    with serving(answering(how)) as stub:
        session = connect(stub.url, limits=SHORT)
        with pytest.raises(MagnitudeTuneError, match=says) as caught:
            session.turn(8, 6)
        assert caught.value.exit_code in (2, 5)


def test_no_completions_at_all() -> None:
    """A server that lists models but completes nothing is told from one that fails."""
    stub = api("m")
    del stub.answers["/v1/completions"]
    with serving(stub), pytest.raises(UsageError, match="no completions for the model m"):
        connect(stub.url).turn(8, 4)


def test_an_endless_page_is_cut() -> None:
    """A page larger than any answer is not read to its end."""

    def endless(stub: Stub, handler: Handler, _: dict[str, Any]) -> None:
        def lines() -> Iterator[str]:
            while not stub.over.is_set():
                yield "x" * 65536

        handler.stream(lines())

    with serving(Stub({"/v1/models": endless})) as stub, pytest.raises(EngineError, match="not JSON"):
        connect(stub.url)


def test_names_are_shown_without_control_characters() -> None:
    """A model's name comes from a stranger."""
    with serving(api("m\x1b]0;title\x07")) as stub:
        assert connect(stub.url).facts.model == "m?]0;title?"


@pytest.mark.engine
def test_the_real_server_is_measured_by_its_address(real_server: EngineFacts, real_model: Path) -> None:
    """A real llama-server answers as the stubs do: its model, its build, its timings, exact counts."""
    settings = Settings(n_gpu_layers=0, n_threads=1, n_threads_batch=1, n_batch=128, n_ubatch=64, n_ctx=512)
    running = launched.open_session(real_server, Launch(model_path=str(real_model), settings=settings))
    try:
        session: ServedSession = connect(f"http://127.0.0.1:{running.port}")
        assert session.facts.kind == "llama_server"
        assert session.facts.model_path == str(real_model)
        assert session.facts.n_ctx == 512
        session.warm_up()
        turn = session.turn(64, 8)
        assert turn.timed_by == "server"
        assert turn.prompt.n_tokens == pytest.approx(64, abs=3)
        assert turn.generation.n_tokens == 7
        assert turn.n_prompt_total == turn.prompt.n_tokens
        assert turn.ttft_seconds >= turn.prompt.seconds
        json.dumps(session.facts._asdict(), allow_nan=False)
    finally:
        running.close()
