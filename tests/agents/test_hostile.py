"""Files made to hurt: each ends in one of our errors, soon, and runs nothing."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.agents.detect import understood
from magnitude_tune.agents.document import parse_document, read_document
from magnitude_tune.errors import ConfigError, MagnitudeTuneError
from magnitude_tune.pipeline.layers import build_request, config_layer

FILE = Path("agent.yaml")
LARGE_BUT_HONEST = "".join(f"key_{n}: value # {n}\n" for n in range(4_900)) + "magnitude: 4\n"


def bomb(opening: str, closing: str) -> str:
    lines = [f"a0: &a0 {opening}x: 1{closing}" if opening == "{" else "a0: &a0 [x]"]
    for n in range(1, 30):
        aliases = ", ".join(f"k{i}: *a{n - 1}" if opening == "{" else f"*a{n - 1}" for i in range(9))
        lines.append(f"a{n}: &a{n} {opening}{aliases}{closing}")
    return "\n".join([*lines, "magnitude: 4.0", ""])


def merge_bomb() -> str:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60))]
    return "\n".join([*lines, "inference_server: *a59", ""])


HOSTILE = {
    "deep flow": "a: " + "[" * 200_000,
    "deep flow mappings": "{a: " * 60_000,
    "deep block": "".join(" " * n + "a:\n" for n in range(500)),
    "deep dashes": "- " * 100_000,
    "deep keys": "? " * 100_000,
    "billion laughs": bomb("[", "]"),
    "billion mappings": bomb("{", "}"),
    "merge bomb": merge_bomb(),
    "own alias": "a: &a [*a]\n",
    "own merge": "inference_server: &a {<<: *a, magnitude: 4}\n",
    "alias in a renamed anchor": "a: &a 1\nb: &a [*a]\n",
    "python tag": "a: !!python/object/apply:os.system ['touch /tmp/owned']\nmagnitude: 4\n",
    "python name": "magnitude: !!python/name:os.system\n",
    "foreign tag on a setting": "magnitude: !secret dial\n",
    "many values": "magnitude: 4\na: [" + "1," * 60_000 + "]\n",
    "many keys": "".join(f"key_{n}: {n}\n" for n in range(15_000)) + "magnitude: 4\n",
    "many unknown keys": "inference_server:\n"
    + "".join(f"  magnitud_{n}: {n}\n" for n in range(4_900))
    + "  n_ctx: x\n",
    "long scalar": "magnitude: " + "9" * 200_000 + "\n",
    "long key": "? " + "k" * 200_000 + "\n: 1\n",
    "null byte": "magnitude: 4\n\0\n",
    "surrogate escape": 'a: "\\ud800"\nmagnitude: "\\ud800"\n',
    "wide escape": 'a: "\\UFFFFFFFF"\n',
    "endless quotes": 'a: "' + "\\x41" * 50_000,
    "blank lines": "\n" * 200_000 + "- a\n",
}


def seconds_to_read(text: str) -> float:
    started = time.process_time()
    with contextlib.suppress(ConfigError):
        build_request([config_layer(understood(parse_document(text, FILE)))])
    return time.process_time() - started


@pytest.fixture(scope="module")
def patience() -> float:
    """Three times what an honest file near the bounds takes, about half a second where this was written."""
    return 3 * max(seconds_to_read(LARGE_BUT_HONEST) for _ in range(2))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_ends_in_an_error(name: str, patience: float) -> None:
    """Deep nesting, alias bombs, tags of other programs and endless scalars end in a ConfigError, and soon."""
    with pytest.raises(ConfigError) as caught:
        build_request([config_layer(understood(parse_document(HOSTILE[name], FILE)))])
    assert caught.value.where is not None
    assert caught.value.where.startswith("agent.yaml:")
    assert len(str(caught.value)) < 400
    assert seconds_to_read(HOSTILE[name]) < patience


def test_tags_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    """A tag that only the agent understands does not stop us as long as it is not on a setting."""
    path = tmp_path / "agent.yaml"
    path.write_text("token: !secret openai\nmagnitude: 4.0\n")
    assert understood(read_document(path)).values["magnitude"].raw == 4.0


WORDS = [
    "inference_server",
    "magnitude",
    "model_path",
    "n_ctx",
    "workload",
    "allow",
    "4.0",
    "0o10",
    "on",
    "~",
    "1",
    "é",
]
MARKS = [
    ":",
    ": ",
    "- ",
    "? ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "'",
    '"',
    "|",
    ">",
    "#",
    " # c",
    "\\",
    "\\x4",
    "@",
    "`",
    "=",
    "---",
]
NAMES = ["&a ", "*a", "<<: *a", "!!str ", "!x ", "%YAML 1.2", "..."]
SPACES = ["\n", "\n  ", "\t", "\r\n", "\ufeff", "\u2028", "\x85"]
PIECES = st.sampled_from(WORDS + MARKS + NAMES + SPACES)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever stands in a file, reading ends in values with places or in one of our errors."""
    try:
        request = understood(parse_document(text, FILE))
        build_request([config_layer(request)])
    except MagnitudeTuneError:
        return
    for value in request.values.values():
        assert value.place.line is not None


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Bytes of any kind end in a document or in a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert read_document(path).text.encode() == content
