"""Which server answers, and with which model: `/props`, `/api/version`, `/v1/models`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from magnitude_tune.engines.served_client import Reply, WebClient, printable
from magnitude_tune.errors import MagnitudeTuneError, UsageError

__all__ = ["ServedFacts", "ServedKind", "identify"]

ServedKind = Literal["llama_server", "ollama", "openai"]


class ServedFacts(NamedTuple):
    """What a server says of itself; None where it does not. `n_ctx` is the context of one slot, in tokens."""

    kind: ServedKind
    model: str
    build: str = "unknown"
    model_path: str | None = None
    n_ctx: int | None = None
    model_bytes: int | None = None
    n_params: int | None = None


def identify(client: WebClient, model: str | None) -> ServedFacts:
    """The server and the model that answer there.

    Raises:
        UsageError: no model server answers, or the model has to be named.
        EngineError: nobody answers, or the server is not ready.
    """
    props = _page(client, "/props")
    if {"default_generation_settings", "total_slots", "build_info"} & props.object.keys():
        return _llama_server(client, props.object, model)
    version = _page(client, "/api/version").object.get("version")
    if isinstance(version, str):
        return _ollama(client, printable(version), model)
    models = _page(client, "/v1/models")
    if not isinstance(models.object.get("data"), list):
        raise _unknown(client, props, models)
    return _openai(client, models.object, model)


def _page(client: WebClient, path: str) -> Reply:
    reply = client.get(path)
    if reply.status == 503 or 300 <= reply.status < 400:
        raise client.refused(reply, path)
    return reply


def _unknown(client: WebClient, *replies: Reply) -> MagnitudeTuneError:
    for reply in replies:
        if reply.is_html or reply.status not in (404, 405, 501):
            return client.refused(reply, "/v1/models")
    return UsageError(
        "what answers there is no model server that is known: neither /props, /api/version nor /v1/models",
        where=str(client.address),
        hint="give --url the address of an OpenAI-compatible server or of Ollama, without a path",
    )


def _llama_server(client: WebClient, props: Mapping[str, Any], model: str | None) -> ServedFacts:
    path = _text(props.get("model_path"))
    generation = props.get("default_generation_settings")
    meta: Mapping[str, Any] = {}
    names = []
    for entry in _entries(_page(client, "/v1/models").object.get("data")):
        names.append(_text(entry.get("id")) or "")
        if isinstance(entry.get("meta"), dict) and not meta:
            meta = entry["meta"]
    n_ctx = _count(generation.get("n_ctx")) if isinstance(generation, dict) else None
    return ServedFacts(
        kind="llama_server",
        model=model or _only(client, [name for name in names if name] or [path or "unknown"]),
        build=_text(props.get("build_info")) or "unknown",
        model_path=path,
        n_ctx=n_ctx or _count(meta.get("n_ctx")),
        model_bytes=_count(meta.get("size")),
        n_params=_count(meta.get("n_params")),
    )


def _ollama(client: WebClient, version: str, model: str | None) -> ServedFacts:
    running = _entries(_page(client, "/api/ps").object.get("models"))
    names = [name for entry in running if (name := _text(entry.get("name")))]
    if model is None and not names:
        stored = _entries(_page(client, "/api/tags").object.get("models"))
        names = [name for entry in stored if (name := _text(entry.get("name")))]
    chosen = model or _only(client, names)
    mine = next((entry for entry in running if entry.get("name") in (chosen, f"{chosen}:latest")), {})
    return ServedFacts(
        kind="ollama",
        model=chosen,
        build=version,
        n_ctx=_count(mine.get("context_length")),
        model_bytes=_count(mine.get("size")),
    )


def _openai(client: WebClient, models: Mapping[str, Any], model: str | None) -> ServedFacts:
    entries = _entries(models.get("data"))
    names = [name for entry in entries if (name := _text(entry.get("id")))]
    chosen = model or _only(client, names)
    mine = next((entry for entry in entries if entry.get("id") == chosen), {})
    return ServedFacts(
        kind="openai",
        model=chosen,
        build=_text(mine.get("owned_by")) or "unknown",
        n_ctx=_count(mine.get("max_model_len")),
    )


def _only(client: WebClient, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")
    what = f"the server has {len(names)} models: {listed}" if names else "the server names no model"
    raise UsageError(what, where=str(client.address), hint="say which with --model NAME")


def _entries(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return printable(value) if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62 else None
