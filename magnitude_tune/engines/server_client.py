"""Talks HTTP to a llama-server on 127.0.0.1: bounded in time and in size, never through a proxy."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnitude_tune.errors import EngineError

__all__ = ["Answer", "ServerClient", "Unreachable"]

_ANSWER_LIMIT_BYTES: Final = 64 << 20
_STATUS_SECONDS: Final = 10.0
_OK: Final = 200


class Unreachable(Exception):  # noqa: N818 - a state of the connection; the session decides what it means
    """Nobody answered, or the connection broke, or the time was up."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: status, the JSON object it held (empty where it held none), and the request's wall-clock time."""

    status: int
    body: Mapping[str, Any]
    wall_seconds: float

    def count(self, *names: str) -> int | None:
        """The whole number under nested names; None where there is none."""
        value = self._at(names)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def seconds(self, *names: str) -> float | None:
        """The milliseconds under nested names, as seconds; None where they are absent, zero or not finite."""
        value = self._at(names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value / 1000 if math.isfinite(value) and value > 0 else None

    def text(self, *names: str) -> str | None:
        """The text under nested names; None where there is none."""
        value = self._at(names)
        return value if isinstance(value, str) else None

    def _at(self, names: tuple[str, ...]) -> object:
        value: object = self.body
        for name in names:
            if isinstance(value, list) and value and name == "0":
                value = value[0]
            else:
                value = value.get(name) if isinstance(value, Mapping) else None
        return value


class ServerClient:
    """One server by its port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, *, timeout_seconds: float = _STATUS_SECONDS) -> Answer:
        """Ask for a page of the server.

        Raises:
            Unreachable: no whole answer in time.
        """
        return self._request("GET", path, None, timeout_seconds)

    def complete(self, body: Mapping[str, object], *, timeout_seconds: float) -> Answer:
        """POST to `/completion`.

        Raises:
            Unreachable: no whole answer in time.
            EngineError: the server refused; carries its words.
        """
        answer = self._request("POST", "/completion", json.dumps(body).encode(), timeout_seconds)
        if answer.status != _OK:
            said = answer.text("error", "message") or f"status {answer.status}"
            raise EngineError(f"the server refused the request: {said[:300]}", where="llama-server")
        return answer

    def _request(self, method: str, path: str, body: bytes | None, timeout_seconds: float) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)
        started = time.perf_counter()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            content = response.read(_ANSWER_LIMIT_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        return Answer(response.status, _object(content), time.perf_counter() - started)


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
