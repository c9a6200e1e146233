"""The child that holds llama-cpp-python: `python -m magnitude_tune.engines.worker`.

One JSON object a line. On stdin: `{"op": "probe"}`, `{"op": "open", "model": ..., "settings": {...}}`,
`{"op": "prompt" | "generate", "n_tokens": N, "depth": D}`, `{"op": "close"}`; the end of input closes too.
On stdout, one answer to each: `{"event": "facts" | "ready" | "sample" | "closed", ...}` or
`{"event": "error", "kind": ..., "message": ...}`. The engine's log goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any, Final

from magnitude_tune.engines.binding import library_facts, load_binding
from magnitude_tune.engines.decoding import Decoder, DecodingError

__all__ = ["main"]

_LINE_LIMIT_BYTES: Final = 1 << 16
_IMPORT_ERRORS: Final = (ImportError, OSError, RuntimeError, AttributeError)


class _Worker:
    """Answers requests one after another; holds at most one model."""

    def __init__(self) -> None:
        self._decoder: Decoder | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, object]:
        operation = request.get("op")
        if operation == "probe":
            return {"event": "facts", **library_facts(load_binding())}
        if operation == "open":
            return self._open(request)
        if operation in ("prompt", "generate"):
            return self._work(operation, request)
        if operation == "close":
            if self._decoder is not None:
                self._decoder.close()
            return {"event": "closed"}
        raise DecodingError(f"unknown operation {operation!r}")

    def _open(self, request: dict[str, Any]) -> dict[str, object]:
        model, settings = request.get("model"), request.get("settings")
        if self._decoder is not None or not isinstance(model, str) or not isinstance(settings, dict):
            raise DecodingError("open needs a model and settings, once")
        decoder = Decoder(load_binding(), model, settings)
        decoder.warm_up()
        self._decoder = decoder
        return {"event": "ready", "n_ctx": decoder.n_ctx, "decoded": decoder.decoded}

    def _work(self, operation: str, request: dict[str, Any]) -> dict[str, object]:
        decoder, n_tokens, depth = self._decoder, request.get("n_tokens"), request.get("depth")
        if decoder is None:
            raise DecodingError("no model is open")
        if type(n_tokens) is not int or type(depth) is not int or n_tokens < 1 or depth < 0:
            raise DecodingError(f"cannot decode {n_tokens!r} tokens at depth {depth!r}")
        before = decoder.decoded
        seconds = decoder.prompt(n_tokens, depth) if operation == "prompt" else decoder.generate(n_tokens, depth)
        return {"event": "sample", "n_tokens": n_tokens, "seconds": seconds, "decoded": decoder.decoded - before}


def main() -> int:
    """Serve requests until the end of input."""
    # The engine may print; what the parent parses goes over a descriptor of its own.
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)
        worker = _Worker()
        while line := sys.stdin.buffer.readline(_LINE_LIMIT_BYTES):
            answer = _answer(worker, line)
            _send(answers, answer)
            if answer["event"] == "closed":
                break
    return 0


def _answer(worker: _Worker, line: bytes) -> dict[str, object]:
    try:
        return worker.answer(dict(json.loads(line)))
    except DecodingError as error:
        return {"event": "error", "kind": "engine", "message": str(error)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return {"event": "error", "kind": "protocol", "message": f"{type(error).__name__}: {error}"}
    except _IMPORT_ERRORS as error:
        return {"event": "error", "kind": "import", "message": str(error)}


def _send(answers: IO[bytes], answer: dict[str, object]) -> None:
    answers.write(json.dumps(answer).encode("ascii") + b"\n")


if __name__ == "__main__":
    sys.exit(main())
