"""Reading the file itself: what is accepted, what is refused, and where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnitude_tune.agents.document import MAX_CONFIG_BYTES, parse_document, read_document
from magnitude_tune.agents.nodes import MappingNode, ScalarNode, followed
from magnitude_tune.agents.scalars import scalar_value
from magnitude_tune.errors import ConfigError

FILE = Path("agent.yaml")


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, FILE)
    assert caught.value.hint
    assert caught.value.exit_code == 3
    return caught.value


def value_of(text: str, key: str) -> object:
    for entry in parse_document(text, FILE).root.entries:
        if isinstance(entry.key, ScalarNode) and entry.key.value == key:
            node = followed(entry.value)
            assert isinstance(node, ScalarNode)
            return scalar_value(node)
    raise AssertionError(key)


def test_duplicate_key_names_both_lines() -> None:
    """B38: a key that stands twice is an error with both lines, not the last one's value."""
    lines = ["# agent", "name: a", "magnitude: 2.0", *(f"key_{n}: {n}" for n in range(5)), "magnitude: 4.0", ""]
    error = refusal("\n".join(lines))
    assert "line 3" in str(error)
    assert "line 9" in str(error)
    assert error.where == "agent.yaml:9:1"


@pytest.mark.parametrize(
    "text", ["a: {b: 1, b: 2}\n", 'a: {b: 1, "b": 2}\n', "a:\n  - b: 1\n    b: 2\n", "1: a\n1: b\n"]
)
def test_duplicate_keys_anywhere(text: str) -> None:
    """Duplicates are refused at every depth, in flow style and in other quotes."""
    assert "again on line" in refusal(text).what


def test_text_and_number_are_different_keys() -> None:
    """`1` and `"1"` are two keys to YAML."""
    assert len(parse_document('1: a\n"1": b\n', FILE).root.entries) == 2


def test_merge_key_with_own_key_is_legal() -> None:
    """B38: a merged value may be overridden by an own key."""
    document = parse_document("x: &d {magnitude: 2.0}\ny:\n  <<: *d\n  magnitude: 4.0\n", FILE)
    assert isinstance(document.root.entries[1].value, MappingNode)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a:\n\tb: 1\n", "agent.yaml:2:1"),
        ("\ta: 1\n", "agent.yaml:1:1"),
        ("a:\n  b: 1\n\tc: 2\n", "agent.yaml:3:1"),
        ("\ufeff\ta: 1\n", "agent.yaml:1:1"),
    ],
)
def test_tab_is_named(text: str, where: str) -> None:
    """A tab that indents is called a tab, with its place."""
    error = refusal(text)
    assert "tab" in error.what
    assert error.where == where


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_line_ends_and_bom(line_end: str, bom: str) -> None:
    """Every kind of line end counts once, and a byte-order mark has no column."""
    document = parse_document(bom + line_end.join(["a: 1", "# c", "b: 2", ""]), FILE)
    first, second = document.root.entries
    assert str(document.place(first.value.start)) == "agent.yaml:1:4"
    assert str(document.place(second.value.start)) == "agent.yaml:3:4"
    assert str(document.place(first.key.start)) == "agent.yaml:1:1"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff"])
def test_empty_file(text: str) -> None:
    """A file without content is called empty."""
    assert "empty" in refusal(text).what


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n", "---\n"])
def test_no_mapping(text: str) -> None:
    """A file without keys at its top says so."""
    assert "pairs" in refusal(text).what


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\nb: [1, 2\n", 3, 1),
        ("a: 1\nb: c: d\n", 2, 5),
        ("a: @x\n", 1, 4),
        ("a: 1\nb: \x01\n", 2, 4),
        ("a: *nobody\n", 1, 4),
        ("a: 1\n---\nb: 1\n", 2, 1),
        ("a: !e!x 1\n", 1, 4),
        ("%YAML 3.0\n---\na: 1\n", 1, 1),
    ],
)
def test_errors_have_a_place(text: str, line: int, column: int) -> None:
    """Whatever is wrong in the text, the error names file, line and column."""
    assert refusal(text).where == f"agent.yaml:{line}:{column}"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e1", "1e1"),
        ("4_0", "4_0"),
        ("0o10", "0o10"),
        ("0x10", "0x10"),
        ("012", "012"),
        ("1:30", "1:30"),
        (".nan", ".nan"),
        ("on", "on"),
        ("no", "no"),
        ("'4.0'", "4.0"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", ""),
        ("40", 40),
        ("-1", -1),
        ("4.2", 4.2),
        ("!!str 40", "40"),
        ("!!int '40'", 40),
        ("4,0", "4,0"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_are_judged_by_what_was_written(written: str, value: object) -> None:
    """B39, B40: only plain decimals are numbers and only true and false booleans; the rest stays text."""
    read = value_of(f"a: 1\nb: {written}\n", "b")
    assert read == value
    assert type(read) is type(value)


def test_missing_folder_and_binary_files(tmp_path: Path) -> None:
    """A missing file, a folder, a model, other bytes and a huge file are each named as what they are."""
    cases = {
        "model.yaml": b"GGUF\x03\0\0\0",
        "latin.yaml": b"a: 1\nb: \xe9\n",
        "huge.yaml": b"#" * (MAX_CONFIG_BYTES + 1),
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    expected = {
        "nowhere.yaml": "does not exist",
        ".": "folder",
        "model.yaml": "model",
        "latin.yaml": "UTF-8",
        "huge.yaml": "larger",
    }
    for name, word in expected.items():
        with pytest.raises(ConfigError, match=word) as caught:
            read_document(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
        assert caught.value.hint
    with pytest.raises(ConfigError, match=r"latin.yaml:2:4"):
        read_document(tmp_path / "latin.yaml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_does_not_block(tmp_path: Path) -> None:
    """A named pipe is refused instead of waited for."""
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="regular"):
        read_document(tmp_path / "pipe.yaml")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    """A file without read permission is an error of ours."""
    path = tmp_path / "agent.yaml"
    path.write_text("magnitude: 4\n")
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot read"):
        read_document(path)
