"""Raw values as people write them into validated ones: one function for each kind, used by every layer.

Each takes a raw value with its place and gives a `Reading`. A wrong value is an error of the layer it came from:
`ConfigError` with file, line and column, `UsageError` for an option or a variable.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.magnitude import MAX_MAGNITUDE, MIN_MAGNITUDE, parse_magnitude
from magnitude_tune.pipeline.numerals import (
    Reading,
    Unset,
    absence,
    integer,
    numeral_hint,
    refusal,
    shown,
    text_note,
    word,
    written,
)
from magnitude_tune.request import ALL_LAYERS, KV_TYPES, Concession, Given, LoadMode, Target

__all__ = [
    "Reading",
    "Unset",
    "read_concessions",
    "read_context",
    "read_count",
    "read_engine",
    "read_kv_type",
    "read_layers",
    "read_load_mode",
    "read_magnitude",
    "read_model",
    "read_slots",
    "read_spec_type",
    "read_switch",
    "read_target",
    "read_tensor_split",
    "read_threads",
    "written",
]

MAX_COUNT: Final = 2**31 - 1
"""Counts are 32-bit integers in the engine."""

_MAX_SLOTS: Final = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_TARGET = re.compile(r"\s*([a-z_]+)\s*(>=|<=)\s*(\S+)\s*", re.ASCII)
_ON: Final = frozenset({"on", "true", "yes", "1", "enabled"})
_OFF: Final = frozenset({"off", "false", "no", "0", "disabled"})
_AUTO: Final = "auto"
_COMPARISONS: Final[Mapping[str, Literal[">=", "<="]]] = {
    "pp": ">=",
    "tg": ">=",
    "ttft_seconds": "<=",
    "turn_seconds": "<=",
    "ready_seconds": "<=",
}
_ENGINES: Final[Mapping[str, str | None]] = {
    "llama_cpp": None,
    "llamacpp": None,
    "llama_server": "llama_server",
    "llama_cpp_python": "llama_cpp_python",
    "llama_bench": "llama_bench",
}
_SPEC_TYPES: Final = ("none", "draft-simple", "draft-mtp")
_CONCESSIONS: Final[tuple[Concession, ...]] = get_args(Concession)


def read_magnitude(name: str, given: Given) -> Reading[float]:
    """A magnitude; a quoted plain decimal in a file is noted."""
    nothing: Reading[float] | None = absence(name, given)
    if nothing is not None:
        return nothing
    raw, hint = given.raw, f"write a number from {MIN_MAGNITUDE} to {MAX_MAGNITUDE:g}, for example magnitude: 4.0"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float) or len(written(given)) > 60:
        raise refusal(given, f"magnitude must be a number, got {shown(raw)}", hint)
    try:
        value, note = parse_magnitude(raw, where=str(given.place))
    except UsageError as error:
        hint = numeral_hint(raw, error.hint or hint, most=MAX_MAGNITUDE)
        raise refusal(given, error.what, hint) from None
    if note is None or given.place.line is None:
        return Reading(value)
    return Reading(
        value, (Finding(Rule.MAGNITUDE_IS_TEXT, note, given.place, f"write {name}: {written(given)}", name),)
    )


def read_layers(name: str, given: Given) -> Reading[int]:
    """Layers on the GPU: a number, -1 and `all` for every layer, `auto` for a free choice.

    A number above the model's layers means every layer; the model is known later, so it stays as it is.
    """
    nothing: Reading[int] | None = absence(name, given)
    if nothing is not None:
        return nothing
    if word(given) == _AUTO:
        return Reading(Unset.FREE)
    if word(given) == "all":
        return Reading(ALL_LAYERS)
    hint = "write a number of layers, `all` (or -1) for every layer, or `auto`"
    value, findings = integer(name, given, hint)
    if value < -1:
        raise refusal(given, f"{name} must not be below -1, got {value}", hint)
    return Reading(ALL_LAYERS if value == -1 else min(value, ALL_LAYERS), findings)


def read_threads(name: str, given: Given) -> Reading[int]:
    """Threads; 0, -1 and `auto` mean every hardware thread to the engine, and a free choice here."""
    nothing: Reading[int] | None = absence(name, given)
    if nothing is not None:
        return nothing
    if word(given) == _AUTO:
        return Reading(Unset.FREE)
    hint = "write a number of threads, or remove the setting to let the magnitude decide"
    value, findings = integer(name, given, hint)
    if value < -1:
        raise refusal(given, f"{name} must not be below -1, got {value}", hint)
    if value > 0:
        return Reading(_bounded(name, given, value), findings)
    message = f"{name} {value} would be every hardware thread to the engine; the magnitude decides instead"
    return Reading(Unset.FREE, (*findings, Finding(Rule.THREADS_UNSET, message, given.place, f"remove {name}", name)))


def read_count(name: str, given: Given, *, least: int = 0) -> Reading[int]:
    """A whole number from `least` to 2^31 - 1; `auto` for a free choice."""
    nothing: Reading[int] | None = absence(name, given)
    if nothing is not None:
        return nothing
    if word(given) == _AUTO:
        return Reading(Unset.FREE)
    hint = f"write a whole number, {least} or more, or remove the setting"
    value, findings = integer(name, given, hint)
    if value < least:
        raise refusal(given, f"{name} must be at least {least}, got {value}", hint)
    return Reading(_bounded(name, given, value), findings)


def read_context(name: str, given: Given) -> Reading[int]:
    """Tokens of context over all slots; 0 is the engine's word for the trained context, and a free choice here."""
    reading = read_count(name, given)
    return Reading(Unset.FREE, reading.findings) if reading.value == 0 else reading


def read_slots(name: str, given: Given) -> Reading[int]:
    """Parallel slots, 1 to 256; -1 is the engine's word for a free choice."""
    if written(given) == "-1":
        return Reading(Unset.FREE)
    reading = read_count(name, given, least=1)
    if isinstance(reading.value, int) and reading.value > _MAX_SLOTS:
        raise refusal(given, f"{name} must be at most {_MAX_SLOTS}, got {reading.value}", "engines start no more slots")
    return reading


def read_switch(name: str, given: Given) -> Reading[bool]:
    """On or off, as words or booleans; `auto` for a free choice. A quoted `'false'` is false."""
    nothing: Reading[bool] | None = absence(name, given)
    if nothing is not None:
        return nothing
    if isinstance(given.raw, bool):
        return Reading(given.raw)
    text = str(given.raw) if isinstance(given.raw, int) else word(given)
    if text == _AUTO:
        return Reading(Unset.FREE)
    if text in _ON or text in _OFF:
        return Reading(text in _ON, text_note(name, given) if text in ("true", "false") else ())
    raise refusal(given, f"{name} must be on or off, got {shown(given.raw)}", "write on, off or auto")


def read_load_mode(name: str, given: Given) -> Reading[LoadMode]:
    """`mmap` or `none`; true and false as of llama.cpp's older `mmap` switch."""
    nothing: Reading[LoadMode] | None = absence(name, given)
    if nothing is not None:
        return nothing
    text = word(given)
    if text in get_args(LoadMode):
        return Reading(cast("LoadMode", text))
    if text is None or text in _ON | _OFF | {_AUTO}:
        switch = read_switch(name, given)
        if isinstance(switch.value, Unset):
            return Reading(switch.value)
        return Reading("mmap" if switch.value else "none", switch.findings)
    raise refusal(given, f"{name} must be mmap or none, got {shown(given.raw)}", "write mmap, none or auto")


def read_kv_type(name: str, given: Given) -> Reading[str]:
    """A type that the engine can keep a KV cache in; `auto` for a free choice."""
    nothing: Reading[str] | None = absence(name, given)
    if nothing is not None:
        return nothing
    text = word(given)
    if text == _AUTO:
        return Reading(Unset.FREE)
    if text in KV_TYPES:
        return Reading(text)
    raise refusal(given, f"{name} must be a type of KV cache, got {shown(given.raw)}", f"one of {', '.join(KV_TYPES)}")


def read_tensor_split(name: str, given: Given) -> Reading[str]:
    """Shares of the offloaded layers, one for each device: a list, or numbers with commas between them."""
    nothing: Reading[str] | None = absence(name, given)
    if nothing is not None:
        return nothing
    parts = [part.strip() for part in written(given).split(",")]
    if isinstance(given.raw, bool) or not all(_NUMBER.fullmatch(part) for part in parts):
        raise refusal(given, f"{name} must be numbers, got {written(given)[:60]!r}", "for example 3,1 for two devices")
    if len(parts) > 64 or not any(float(part) > 0 for part in parts):
        raise refusal(given, f"{name} gives no device a share", "for example 3,1 for two devices")
    return Reading(",".join(parts))


def read_model(name: str, given: Given) -> Reading[str]:
    """A model's path or name."""
    nothing: Reading[str] | None = absence(name, given)
    if nothing is not None:
        return nothing
    raw = given.raw
    if not isinstance(raw, str) or not _can_be_a_path(raw):
        raise refusal(
            given, f"{name} must be the path of a GGUF file, got {shown(raw)}", "for example model: models/a.gguf"
        )
    return Reading(raw)


def _can_be_a_path(text: str) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= 4096
    except UnicodeEncodeError:
        return False


def read_engine(name: str, given: Given) -> Reading[str]:
    """`llama_server`, `llama_cpp_python` or `llama_bench`; `llama_cpp` means llama.cpp in any form, a free choice."""
    nothing: Reading[str] | None = absence(name, given)
    if nothing is not None:
        return nothing
    text = (word(given) or "").replace("-", "_").replace(".", "_")
    if text == _AUTO:
        return Reading(Unset.FREE)
    if text not in _ENGINES:
        what = f"the engine {shown(given.raw)} is not known"
        raise refusal(given, what, "known are llama_cpp (any form), llama_server, llama_cpp_python and llama_bench")
    engine = _ENGINES[text]
    return Reading(Unset.FREE if engine is None else engine)


def read_spec_type(name: str, given: Given) -> Reading[str]:
    """How tokens are drafted; `auto` for a free choice."""
    nothing: Reading[str] | None = absence(name, given)
    if nothing is not None:
        return nothing
    text = (word(given) or "").replace("_", "-")
    if text == _AUTO:
        return Reading(Unset.FREE)
    if text in _SPEC_TYPES:
        return Reading(text)
    raise refusal(given, f"{name} {shown(given.raw)} cannot be planned for", f"one of {', '.join(_SPEC_TYPES)}")


def read_concessions(name: str, given: Given) -> Reading[tuple[Concession, ...]]:
    """What the resolver may give up: a list, or names with commas between them."""
    if given.raw == ():
        return Reading(())
    nothing: Reading[tuple[Concession, ...]] | None = absence(name, given)
    if nothing is not None:
        return nothing
    if not isinstance(given.raw, tuple | str):
        raise refusal(given, f"{name} must be a list, got {shown(given.raw)}", f"allowed are {', '.join(_CONCESSIONS)}")
    items = given.raw if isinstance(given.raw, tuple) else tuple(given.raw.split(","))
    found: list[Concession] = []
    for item in items:
        one = item if isinstance(item, Given) else Given(item, given.place)
        text = (word(one) or "").replace("-", "_").replace("quantization", "quantisation")
        if text not in _CONCESSIONS:
            raise refusal(one, f"{name} knows no {shown(one.raw)}", f"allowed are {', '.join(_CONCESSIONS)}")
        found.append(text)
    return Reading(tuple(dict.fromkeys(found)))


def read_target(name: str, given: Given) -> Reading[Target]:
    """A bound to reach: `tg>=15`, `ttft_seconds<=0.8`; rates from below, times from above."""
    nothing: Reading[Target] | None = absence(name, given)
    if nothing is not None:
        return nothing
    hint = "for example tg>=15 or ttft_seconds<=0.8"
    match = _TARGET.fullmatch(given.raw) if isinstance(given.raw, str) and len(given.raw) <= 100 else None
    if match is None:
        raise refusal(given, f"{name} must be a quantity and a bound, got {shown(given.raw)}", hint)
    quantity, comparison, number = match.groups()
    if quantity not in _COMPARISONS:
        raise refusal(given, f"{name} knows no {quantity!r}", f"one of {', '.join(_COMPARISONS)}")
    if comparison != _COMPARISONS[quantity]:
        raise refusal(given, f"{name} can only be reached as {quantity}{_COMPARISONS[quantity]}", hint)
    if not _NUMBER.fullmatch(number) or not math.isfinite(float(number)) or float(number) <= 0:
        raise refusal(given, f"{name} needs a number above 0, got {number!r}", numeral_hint(number, hint))
    return Reading(Target(quantity, _COMPARISONS[quantity], float(number)))


def _bounded(name: str, given: Given, value: int) -> int:
    if value > MAX_COUNT:
        raise refusal(given, f"{name} must be at most {MAX_COUNT}, got {value}", "write a smaller number")
    return value
