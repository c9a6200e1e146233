"""Servers on 127.0.0.1 that answer as public model servers do, or as told; for tests of what is measured by address."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Stub", "api", "llama_server", "ollama", "serving"]

Answer = Callable[["Stub", "Handler", dict[str, Any]], None]


@dataclass
class Stub:
    """What a server answers at each path, and what it was asked."""

    answers: dict[str, Answer] = field(default_factory=dict)
    key: str | None = None
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """Looks its answer up in the stub."""

    protocol_version = "HTTP/1.1"
    stub: Stub

    def do_GET(self) -> None:
        """A page."""
        self._answer({})

    def do_POST(self) -> None:
        """A request with a JSON body."""
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        stub = self.stub
        stub.seen.append((self.path, body))
        stub.keys.append(self.headers.get("Authorization"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if stub.key is not None and self.headers.get("Authorization") != f"Bearer {stub.key}":
                self.send(401, {"error": {"message": "Invalid API Key"}})
            elif self.path in stub.answers:
                stub.answers[self.path](stub, self, body)
            else:
                self.send(404, {"error": {"message": "File Not Found"}})

    def send(self, status: int, value: object, kind: str = "application/json", **headers: str) -> None:
        """A whole answer; text as it is, anything else as JSON."""
        content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def stream(self, lines: Iterator[str], kind: str = "text/event-stream") -> None:
        """Lines in chunks, as they come."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            content = line.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub on a free port, for as long as the block runs."""
    handler = type("Bound", (Handler,), {"stub": stub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        stub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def page(value: object, status: int = 200) -> Answer:
    """The same answer always."""
    return lambda _stub, handler, _body: handler.send(status, value)


def words_of(body: dict[str, Any]) -> int:
    """How many words were sent."""
    text = body.get("prompt") or body["messages"][0]["content"]
    return len(text.split())


def events(body: dict[str, Any], *, last: dict[str, Any], chat: bool = False, pause: float = 0.002) -> Iterator[str]:
    """Server-sent events: one token each, then the end."""
    yield ": a comment\n\n"
    for index in range(body["max_tokens"]):
        time.sleep(pause)
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice |= {"delta": {"content": f" {index}"}} if chat else {"text": f" {index}"}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"
    end = {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]}
    yield f"data: {json.dumps(end | last)}\n\ndata: [DONE]\n\n"


def usage_of(body: dict[str, Any], extra: int = 3) -> dict[str, int]:
    """A count of tokens: two a word and some of a template."""
    return {"prompt_tokens": 2 * words_of(body) + extra, "completion_tokens": body["max_tokens"]}


def llama_server(**timings: float) -> Stub:
    """llama-server: `timings` in the last event, 4 ms a token read and 20 ms a token written, unless told otherwise."""

    def complete(_: Stub, handler: Handler, body: dict[str, Any]) -> None:
        usage, n_gen = usage_of(body), body["max_tokens"]
        own = {
            "cache_n": 0, "prompt_n": usage["prompt_tokens"], "prompt_ms": 4.0 * usage["prompt_tokens"],
            "predicted_n": n_gen, "predicted_ms": 20.0 * (n_gen - 1),
        }  # fmt: skip
        handler.stream(events(body, last={"usage": usage, "timings": own | timings}))

    props = {
        "default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "model_path": "/models/m.gguf",
        "build_info": "b8123-4b3f9c1",
    }  # fmt: skip
    meta = {"n_ctx_train": 32768, "n_params": 268098176, "size": 246546944}
    models = {"object": "list", "data": [{"id": "m.gguf", "object": "model", "owned_by": "llamacpp", "meta": meta}]}
    return Stub({"/props": page(props), "/v1/models": page(models), "/v1/completions": complete})


def api(*names: str, chat_only: bool = False, usage: bool = True, pause: float = 0.002) -> Stub:
    """A plain OpenAI-compatible server with these models."""

    def complete(stub: Stub, handler: Handler, body: dict[str, Any]) -> None:
        last = {"usage": usage_of(body)} if usage else {}
        handler.stream(events(body, last=last, chat=stub.seen[-1][0].startswith("/v1/chat"), pause=pause))

    models = {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "vllm"} for name in names]}
    path = "/v1/chat/completions" if chat_only else "/v1/completions"
    return Stub({"/v1/models": page(models), path: complete})


def ollama(*running: str, stored: tuple[str, ...] = (), timed: bool = True) -> Stub:
    """Ollama: one JSON object a line, counts and nanoseconds in the last."""

    def generate(_: Stub, handler: Handler, body: dict[str, Any]) -> None:
        if body["model"] not in {*running, *stored}:
            handler.send(404, {"error": f"model '{body['model']}' not found"})
            return

        def lines() -> Iterator[str]:
            n_gen = body["options"]["num_predict"]
            for index in range(n_gen):
                time.sleep(0.002)
                yield json.dumps({"model": body["model"], "response": f" {index}", "done": False}) + "\n"
            n_read = 2 * words_of(body) + 1
            counts = {"prompt_eval_count": n_read, "eval_count": n_gen}
            times = {
                "load_duration": 5,
                "prompt_eval_duration": n_read * 5_000_000,
                "eval_duration": n_gen * 25_000_000,
            }
            times = times if timed else dict.fromkeys(times, 0)
            yield json.dumps({"model": body["model"], "response": "", "done": True, **counts, **times}) + "\n"

        handler.stream(lines(), "application/x-ndjson")

    entries = [{"name": name, "model": name, "size": 1 << 30, "context_length": 4096} for name in running]
    return Stub(
        {
            "/api/version": page({"version": "0.12.3"}),
            "/api/ps": page({"models": entries}),
            "/api/tags": page({"models": [{"name": name} for name in stored]}),
            "/api/generate": generate,
        }
    )
