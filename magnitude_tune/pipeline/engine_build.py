"""Plan by the rules of a build that need not be installed: `--engine-build`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.values import Cpu, EngineFacts

__all__ = ["with_build"]

_GGML: Final = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4})", re.ASCII)
_LLAMA_CPP: Final = re.compile(r"b(\d{1,6})", re.ASCII)
_NEWEST: Final = "newest"
_SEEN_BUILD: Final = 10434
_SEEN_VERSION: Final = "0.20.0"
"""The build that carries this version, as its packages say; later ones are taken for the newest."""


def with_build(engine: EngineFacts | None, wanted: str | None, cpu: Cpu) -> EngineFacts | None:
    """The engine with the rules of the wanted build; one for this very CPU where none is known.

    Args:
        wanted: a ggml version (`0.20.0`), a llama.cpp build (`b10434`), `newest`, or None for the engine's own.

    Raises:
        UsageError: the text is none of these.
    """
    if wanted is None:
        return engine
    version = _ggml_version(wanted.strip())
    if engine is not None:
        return replace(engine, build=wanted.strip(), ggml_version=version)
    return EngineFacts(
        name="llama_server",
        path="",
        build=wanted.strip(),
        ggml_version=version,
        extra_buffers=extra_buffers(None, cpu),
        prompt_cache=True,
    )


def _ggml_version(text: str) -> str | None:
    """The version of the build's ggml library, which the rules are tied to; None for the newest rules."""
    if text == _NEWEST:
        return None
    if match := _GGML.fullmatch(text):
        return match[1]
    if match := _LLAMA_CPP.fullmatch(text):
        return _of_llama_cpp(int(match[1]))
    raise UsageError(
        f"{text[:60]!r} is no build of an engine",
        where="--engine-build",
        hint="write a ggml version (0.20.0), a llama.cpp build (b10434) or newest",
    )


def _of_llama_cpp(build: int) -> str | None:
    """The ggml version of a llama.cpp build, as far as rules tell them apart; None for the newest rules."""
    return _SEEN_VERSION if build <= _SEEN_BUILD else None
