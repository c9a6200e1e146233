"""HTTP and HTTPS to one server that somebody else runs: bounded in time and size, no redirects, no proxy.

A key is sent to that server only, and only once it has asked for one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from magnitude_tune.errors import EngineError, MagnitudeTuneError, UsageError

__all__ = ["Address", "Limits", "Reply", "WebClient", "parse_url", "printable", "said_by"]

_BODY_LIMIT_BYTES: Final = 4 << 20
_STREAM_LIMIT_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}
_SAID_LIMIT: Final = 200
_OK: Final = 200
_UNAUTHORISED: Final = (401, 403)
_UNAVAILABLE: Final = 503


class Address(NamedTuple):
    """A server: `http` or `https`, its host and port, and the path that its API stands below (mostly empty)."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


class Limits(NamedTuple):
    """How long to wait, in seconds: for a connection, a page, the first token, the next token, a whole answer."""

    connect: float = 10.0
    page: float = 30.0
    first_token: float = 600.0
    next_token: float = 60.0
    answer: float = 1800.0


class Reply(NamedTuple):
    """A page: its status, whether it is a web page, and the JSON value it held (None where it held none)."""

    status: int
    is_html: bool
    value: Any

    @property
    def object(self) -> Mapping[str, Any]:
        """The JSON object of a page that went well; empty where there is none."""
        return self.value if self.status == _OK and isinstance(self.value, dict) else {}


def parse_url(url: str) -> Address:
    """The address in a URL; `/v1`, under which such servers put their API, may stand at its end.

    Raises:
        UsageError: it is no http or https URL, or holds more than an address.
    """
    hint = "write it as http://127.0.0.1:8080"
    shown = printable(url)
    if shown != url or any(char.isspace() for char in url):
        raise UsageError(f"{shown!r} is not a URL", where="--url", hint=hint)
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{shown!r} is not a URL: {error}", where="--url", hint=hint) from None
    if scheme not in _PORTS or not host:
        raise UsageError(f"{shown!r} is not an http or https URL", where="--url", hint=hint)
    if "@" in parts.netloc:
        raise UsageError("a URL with a name and password is refused", where="--url", hint="set OPENAI_API_KEY instead")
    if parts.query or parts.fragment:
        raise UsageError("the URL holds more than an address", where="--url", hint=hint)
    return Address(scheme, host, port or _PORTS[scheme], parts.path.rstrip("/").removesuffix("/v1"))


Lines = Generator[tuple[float, bytes], None, None]


class WebClient:
    """One server."""

    def __init__(self, address: Address, *, key: str | None = None, limits: Limits | None = None) -> None:
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("the key holds characters that no key has", where="OPENAI_API_KEY", hint="set it again")
        self.address = address
        self._limits = limits or Limits()
        self._key, self.sends_key = key, False

    def get(self, path: str) -> Reply:
        """A page.

        Raises:
            EngineError: nobody answers, or not in time.
            UsageError: the server wants a key that we do not have.
        """
        return self._reply(self._open("GET", path, None, self._limits.page))

    def post_lines(self, path: str, body: Mapping[str, object]) -> Reply | Lines:
        """The lines of an answer as they come, each with the time it came (`time.perf_counter`), without blank ones.

        Whoever reads them closes them, which ends the connection.

        Where the status is not 200, or what comes is a web page, a `Reply` instead.

        Raises:
            EngineError: nobody answers, the answer breaks off or stalls, also while the lines are read.
            UsageError: the server wants a key that we do not have.
        """
        answer = self._open("POST", path, json.dumps(body).encode(), self._limits.first_token)
        return self._reply(answer) if answer.status != _OK or answer.is_html else self._lines(answer)

    def error(self, what: str, hint: str | None = None) -> EngineError:
        """An error of this server."""
        return EngineError(what, where=str(self.address), hint=hint)

    def refused(self, reply: Reply, path: str) -> MagnitudeTuneError:
        """What is wrong with an answer that is not what was asked for."""
        where = str(self.address)
        if 300 <= reply.status < 400:
            return UsageError(
                "the server sends to another address", where=where, hint="give --url the address it sends to"
            )
        if reply.status == _UNAVAILABLE:
            return self.error(
                f"the server is not ready (503){said_by(reply)}", "wait until it has loaded its model, then run again"
            )
        if reply.is_html:
            return UsageError(
                f"a web page answers at {path}, not a model server (status {reply.status})",
                where=where,
                hint="give --url the address of the API, for example http://127.0.0.1:8080",
            )
        if reply.status != _OK:
            return self.error(f"the server refused {path} with status {reply.status}{said_by(reply)}")
        return self.error(f"what the server answers at {path} is not JSON", "see that --url names a model server")

    def _open(self, method: str, path: str, body: bytes | None, seconds: float) -> _Answer:
        answer = self._send(method, path, body, seconds)
        if answer.status in _UNAUTHORISED and self._key and not self.sends_key:
            answer.close()
            self.sends_key = True
            answer = self._send(method, path, body, seconds)
        if answer.status in _UNAUTHORISED:
            answer.close()
            tried = "does not take the key in OPENAI_API_KEY" if self.sends_key else "wants a key"
            raise UsageError(
                f"the server {tried} (status {answer.status})",
                where=str(self.address),
                hint="set OPENAI_API_KEY to a key of this server",
            )
        return answer

    def _send(self, method: str, path: str, body: bytes | None, seconds: float) -> _Answer:
        headers = {"Accept": "*/*", "User-Agent": "magnitude-tune", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.sends_key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._connection()
        try:
            connection.connect()
            # The connection forgets its socket once the server has said that it will close it.
            sock = connection.sock
            sock.settimeout(seconds)
            connection.request(method, self.address.prefix + path, body, headers)
            return _Answer(connection, sock, connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._unreachable(error, seconds) from None

    def _unreachable(self, error: Exception, seconds: float) -> EngineError:
        if isinstance(error, ssl.SSLError):
            return self.error(
                f"no safe connection: {printable(error.reason or error)}", "see that the address speaks https"
            )
        if isinstance(error, TimeoutError):
            return self.error(f"no answer within {seconds:g} s", "see that the server is idle and reachable")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return self.error(f"the server cannot be reached: {printable(reason)}", "start it, or correct --url")

    def _connection(self) -> http.client.HTTPConnection:
        address, seconds = self.address, self._limits.connect
        if address.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
        return http.client.HTTPConnection(address.host, address.port, timeout=seconds)

    def _reply(self, answer: _Answer) -> Reply:
        deadline = time.monotonic() + self._limits.page
        body = bytearray()
        with contextlib.closing(self._chunks(answer, deadline, self._limits.page)) as chunks:
            for _, chunk in chunks:
                body += chunk
                if len(body) > _BODY_LIMIT_BYTES:
                    break
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        return Reply(answer.status, answer.is_html or (value is None and body.lstrip()[:1] == b"<"), value)

    def _lines(self, answer: _Answer) -> Lines:
        deadline = time.monotonic() + self._limits.answer
        rest, n_bytes = b"", 0
        with contextlib.closing(self._chunks(answer, deadline, self._limits.next_token)) as chunks:
            for at, chunk in chunks:
                n_bytes += len(chunk)
                if n_bytes > _STREAM_LIMIT_BYTES:
                    raise self.error("the answer is far longer than what was asked for")
                *lines, rest = (rest + chunk).split(b"\n")
                yield from ((at, line.strip()) for line in lines if line.strip())
        if rest.strip():
            yield time.perf_counter(), rest.strip()

    def _chunks(self, answer: _Answer, deadline: float, next_seconds: float) -> Lines:
        stalls = self.error("the answer stalls", "see whether the server is busy with others, or hangs; run again")
        try:
            while chunk := answer.response.read1(_CHUNK_BYTES):
                yield time.perf_counter(), chunk
                if time.monotonic() > deadline:
                    raise stalls
                answer.sock.settimeout(next_seconds)
        except TimeoutError:
            raise stalls from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.error(f"the answer broke off: {printable(error) or type(error).__name__}") from None
        finally:
            answer.close()


class _Answer(NamedTuple):
    """The beginning of an answer, and what to close after its end."""

    connection: http.client.HTTPConnection
    sock: socket.socket
    response: http.client.HTTPResponse

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def is_html(self) -> bool:
        return (self.response.headers.get("Content-Type") or "").lower().startswith("text/html")

    def close(self) -> None:
        self.response.close()
        self.connection.close()
        self.sock.close()


def said_by(reply: Reply) -> str:
    """`: ` and the server's own words, where it has some."""
    found: object = reply.value
    if isinstance(found, dict):
        found = found.get("error", found.get("message", found.get("detail")))
    if isinstance(found, dict):
        found = found.get("message")
    return f": {printable(found)}" if isinstance(found, str) and found else ""


def printable(text: object) -> str:
    """A stranger's text as it may be shown: no control characters, at most 200 of the others."""
    return "".join(char if char.isprintable() else "?" for char in str(text)[:_SAID_LIMIT])
