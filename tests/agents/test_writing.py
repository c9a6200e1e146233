"""Settings written back: only their own characters change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.agents.detect import understood
from magnitude_tune.agents.document import parse_document, read_document
from magnitude_tune.agents.writing import proposed_text, unified_diff, write
from magnitude_tune.errors import ConfigError, MagnitudeTuneError, UsageError

FILE = Path("agent.yaml")


def proposed(text: str, **changes: object) -> str:
    return proposed_text(parse_document(text, FILE), changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("magnitude: 4.2\n", "magnitude: 4.0\n"),
        ("magnitude: '4.2' # dial\r\nx: 1\r\n", "magnitude: '4.0' # dial\r\nx: 1\r\n"),
        ('magnitude:   "4.2"', 'magnitude:   "4.0"'),
        ("magnitude:\nx: 1\n", "magnitude: 4.0\nx: 1\n"),
        ("magnitude:   # none yet\nx: 1\n", "magnitude: 4.0   # none yet\nx: 1\n"),
        ("{x: 1, magnitude: 4.2, y: 2}", "{x: 1, magnitude: 4.0, y: 2}"),
        ("{x: 1, magnitude}", "{x: 1, magnitude: 4.0}"),
        ("{x: 1, magnitude: , y: 2}", "{x: 1, magnitude: 4.0 , y: 2}"),
        ("? magnitude\n: 4.2\n", "? magnitude\n: 4.0\n"),
        ("m: &m 4.2\nmagnitude: *m # shared\n", "m: &m 4.2\nmagnitude: 4.0 # shared\n"),
        ("magnitude: &m 4.2\n", "magnitude: &m 4.0\n"),
        ("inference_server:\n magnitude: 4.2\n # end\nx: on\n", "inference_server:\n magnitude: 4.0\n # end\nx: on\n"),
        ("\ufeffmagnitude: 4.2\n", "\ufeffmagnitude: 4.0\n"),
        ("---\nmagnitude: 4.2\n...\n", "---\nmagnitude: 4.0\n...\n"),
        ("%YAML 1.2\n---\nmagnitude: 4.2\n", "%YAML 1.2\n---\nmagnitude: 4.0\n"),
    ],
)  # fmt: skip
def test_a_value_is_replaced_in_place(before: str, after: str) -> None:
    """Comments, quotes, line ends, byte-order marks and the file's last line end stay as they were."""
    assert proposed(before, magnitude=4.0) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("magnitude: 4.0\n", "magnitude: 4.0\nn_ctx: 4096\n"),
        ("magnitude: 4.0", "magnitude: 4.0\nn_ctx: 4096"),
        ("magnitude: 4.0\r\n\r\n# end\r\n", "magnitude: 4.0\r\nn_ctx: 4096\r\n\r\n# end\r\n"),
        ("magnitude: 4.0\ntools:\n  - a\n  -\n# end\n", "magnitude: 4.0\ntools:\n  - a\n  -\nn_ctx: 4096\n# end\n"),
        (
            "inference_server:\n    magnitude: 4.0 # dial\n    # end\nother: 1\n",
            "inference_server:\n    magnitude: 4.0 # dial\n    max_ctx_size: 4096\n    # end\nother: 1\n",
        ),
        ("inference_server: {magnitude: 4.0}\n", "inference_server: {magnitude: 4.0, max_ctx_size: 4096}\n"),
        ("inference_server: {magnitude: 4.0,}\n", "inference_server: {magnitude: 4.0, max_ctx_size: 4096,}\n"),
        ("inference_server: {}\n", "inference_server: {max_ctx_size: 4096}\n"),
        ("inference_server: { } # c\n", "inference_server: {max_ctx_size: 4096 } # c\n"),
        ('{"inference_server": {"magnitude": 4.0}}', '{"inference_server": {"magnitude": 4.0, "max_ctx_size": 4096}}'),
        (
            "a:\n- inference_server:\n    magnitude: 4\n",
            "a:\n- inference_server:\n    magnitude: 4\n    max_ctx_size: 4096\n",
        ),
        (
            "d: &d {n_ctx: 1}\ninference_server:\n  <<: *d\n",
            "d: &d {n_ctx: 1}\ninference_server:\n  <<: *d\n  max_ctx_size: 4096\n",
        ),
        (
            "d: &d {mmap: false, n_ctx: 4096}\ninference_server: {<<: *d}\n",
            "d: &d {mmap: false, n_ctx: 4096}\ninference_server: {<<: *d}\n",
        ),
        ("magnitude: 4.0\nnote: |\n  two\n  lines\n", "magnitude: 4.0\nnote: |\n  two\n  lines\nn_ctx: 4096\n"),
        ("--- {magnitude: 4.0}\n", "--- {magnitude: 4.0, n_ctx: 4096}\n"),
    ],
)  # fmt: skip
def test_a_new_key_follows_the_last_one(before: str, after: str) -> None:
    """A setting the block does not have yet is added after its last, in its indentation and style."""
    assert proposed(before, n_ctx=4096) == after


def test_merged_setting_is_overridden_under_our_name() -> None:
    """A merged value of another name and form is overridden by an own key."""
    before = "d: &d {mmap: true}\ninference_server:\n  <<: *d\n"
    assert proposed(before, load_mode="none") == before + "  load_mode: none\n"


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("magnitude: '4.0'", {"magnitude": 4.0}),
        ("magnitude: 4", {"magnitude": 4.0}),
        ("max_ctx_size: 4096", {"n_ctx": 4096}),
        ("flash_attn: on", {"flash_attn": True}),
        ("flash_attn: 'no'", {"flash_attn": False}),
        ("flash_attn: true", {"flash_attn": "on"}),
        ("mmap: true", {"load_mode": "mmap"}),
        ("tensor_split: [3, 1]", {"tensor_split": (3, 1)}),
        ("<<: {n_ctx: 4096}", {"n_ctx": 4096}),
    ],
)
def test_what_already_says_so_is_left_alone(line: str, changes: dict[str, object]) -> None:
    """A value that means what is wanted keeps its form, also where it is merged in."""
    text = f"backend: llama_cpp\n{line}\n"
    assert proposed(text, **changes) == text


@pytest.mark.parametrize(
    ("line", "changes", "after"),
    [
        ("mmap: true", {"load_mode": "none"}, "mmap: false"),
        ("flash_attn: on", {"flash_attn": False}, "flash_attn: off"),
        ("flash_attn: on", {"flash_attn": "off"}, "flash_attn: off"),
        ("flash_attn: true", {"flash_attn": "off"}, "flash_attn: false"),
        ("flash_attn: auto", {"flash_attn": False}, "flash_attn: false"),
        ("tensor_split: [3, 1] # x", {"tensor_split": (1, 1)}, "tensor_split: [1, 1] # x"),
        ("tensor_split:\n- 3\n- 1", {"tensor_split": (1, 1)}, "tensor_split: [1, 1]"),
        ("tensor_split:\n  - 3\n  - 1", {"tensor_split": "1,1"}, 'tensor_split: "1,1"'),
        ("model: 'a.gguf'", {"model": "it's.gguf"}, "model: 'it''s.gguf'"),
        ("model: a.gguf", {"model": "a: b #.gguf"}, 'model: "a: b #.gguf"'),
        ("model: a.gguf", {"model": "on"}, 'model: "on"'),
        ("model: a.gguf", {"model": "123"}, 'model: "123"'),
        ("model: a.gguf", {"model": "mödel\u2028.gguf"}, 'model: "m\\u00f6del\\u2028.gguf"'),
        ("model: 'a.gguf'", {"model": "a\nb"}, 'model: "a\\nb"'),
        ("type_k: f16", {"type_k": "q8_0"}, "type_k: q8_0"),
        ("target: tg>=15", {"target": None}, "target: null"),
    ],
)
def test_values_are_written_so_that_they_read_back(line: str, changes: dict[str, object], after: str) -> None:
    """On and off keep their words, text is quoted where readers would take it for something else."""
    assert proposed(f"backend: llama_cpp\n{line}\nx: 1\n", **changes) == f"backend: llama_cpp\n{after}\nx: 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "magnitude: &m 4.2\nother: *m\n",
        "inference_server: &b\n  magnitude: 4.2\nother: *b\n",
        "d: &d {magnitude: 4.2}\ninference_server: *d\n",
        "magnitude: |\n  4.2\n",
        "magnitude:\n- 4.2 # first\n- 3.2\n",
    ],
)
def test_what_cannot_be_edited_alone_is_refused(text: str) -> None:
    """A value or a block that other keys share through an alias is not changed behind their back."""
    with pytest.raises(ConfigError) as caught:
        proposed(text, magnitude=4.0)
    assert str(caught.value.where).startswith("agent.yaml:")
    assert "by hand" in str(caught.value.hint)


def test_names_that_no_config_holds() -> None:
    """A name that could not be read back is refused instead of written."""
    with pytest.raises(MagnitudeTuneError, match="devices"):
        proposed("magnitude: 4.0\n", devices=("CUDA0",))


# The property: a file is put together around known places, so the right answer is known without the writer.

COMMENT = st.sampled_from(["", " # dial", "  # größer: [x] {y} 'z' \"", " #\u00a0nbsp"])
FOREIGN = st.sampled_from(
    [
        "name: on",
        "über: 'it''s'",
        'emoji: "\U0001f600 \\" #"',
        "tools: [a, {b: c}, *x]",
        "tools: &y [1e1, 4_0, 0o10]",
        "text: |\n  magnitude: 9\n\n  end",
        "folded: >-\n  a\n  b",
        "list:\n- 1\n-   two # c\n- {k: v}",
        "? complex key\n: v",
        "secret: !vault abc",
        "# a comment",
        "",
        "empty:",
        "nested:\n      deep:\n            magnitude: 1",
    ]
)
KEYS = {"magnitude": "4.2", "n_gpu_layers": "40", "max_ctx_size": "8192", "type_k": "f16"}
NEW = {"magnitude": "3.5", "n_gpu_layers": "7", "max_ctx_size": "2048", "type_k": "q8_0"}
NAMES = {"max_ctx_size": "n_ctx"}
VALUES: dict[str, object] = {"magnitude": 3.5, "n_gpu_layers": 7, "n_ctx": 2048, "type_k": "q8_0"}


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, dict[str, object]]:
    """A file, the file with some settings changed, and the changes."""
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    present = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, unique=True))
    changed = draw(st.sets(st.sampled_from(present)))
    depth = draw(st.integers(0, 2))
    indent = draw(st.sampled_from([" ", "  ", "    "]))
    foreign = draw(st.lists(FOREIGN, max_size=5, unique_by=lambda line: line.split(":")[0]))
    cut = draw(st.integers(0, len(foreign)))
    flow = draw(st.booleans())
    settings_ = []
    for key in present:
        quote = draw(st.sampled_from(["", "'", '"']))
        space = draw(st.sampled_from([" ", "   "]))
        settings_.append((key, f"{key}:{space}{quote}", f"{quote}", "" if flow else draw(COMMENT)))

    def rendered(values: dict[str, str]) -> str:
        parts = [f"{head}{values[key]}{tail}{comment}" for key, head, tail, comment in settings_]
        opening = [indent * level + f"level_{level}:" for level in range(depth)]
        block = indent * depth + "inference_server:"
        if flow:
            body = [f"{block} {{" + ", ".join(parts) + "} # flow"]
        else:
            body = [block, *(indent * (depth + 1) + part for part in parts)]
        lines = ["x: &x 1", *foreign[:cut], *opening, *body, *foreign[cut:]]
        return bom + line_end.join("\n".join(lines).split("\n")) + end

    bom = draw(st.sampled_from(["", "\ufeff"]))
    end = draw(st.sampled_from(["", line_end, line_end * 2]))
    after = {key: NEW[key] if key in changed else value for key, value in KEYS.items()}
    names = {NAMES.get(key, key) for key in changed}
    return rendered(KEYS), rendered(after), {name: VALUES[name] for name in VALUES if name in names}


@settings(max_examples=300, deadline=None)
@given(files())
def test_every_other_byte_stays(case: tuple[str, str, dict[str, object]]) -> None:
    """Whatever surrounds the settings, changing some of them changes their characters and nothing else."""
    before, after, changes = case
    assert proposed(before, **changes) == after


@settings(max_examples=200, deadline=None)
@given(files())
def test_added_settings_are_the_only_difference(case: tuple[str, str, dict[str, object]]) -> None:
    """Adding settings inserts one piece of text; without it the file is as it was, and a second run adds nothing."""
    before = case[0]
    added = {"n_threads": 4, "flash_attn": True, "load_mode": "none"}
    after = proposed(before, **added)
    n_added = len(after) - len(before)
    assert any(after[:at] + after[at + n_added :] == before for at in range(len(before) + 1))
    assert proposed(after, **added) == after
    values = understood(parse_document(after, FILE)).values
    assert {name: values[name].raw for name in added} == added


def test_diff_shows_only_the_change() -> None:
    """The difference is shown as `diff -u` does, with a note where the last line has no end."""
    before, after = "a: 1\r\nmagnitude: 4.2", "a: 1\r\nmagnitude: 4.0"
    expected = (
        "--- agent.yaml\n+++ agent.yaml (proposed)\n@@ -1,2 +1,2 @@\n a: 1\r\n"
        "-magnitude: 4.2\n\\ No newline at end of file\n+magnitude: 4.0\n\\ No newline at end of file\n"
    )
    assert unified_diff(FILE, before, after) == expected
    assert unified_diff(FILE, before, before) == ""


def test_writing_keeps_permissions_and_links(tmp_path: Path) -> None:
    """A link stays a link, its file is replaced and keeps its permissions."""
    target, link = tmp_path / "real.yaml", tmp_path / "agent.yaml"
    target.write_bytes(b"\xef\xbb\xbfmagnitude: 4.2\r\n")
    target.chmod(0o640)
    link.symlink_to(target.name)
    document = read_document(link)
    write(link, proposed_text(document, {"magnitude": 4.0}), document.text)
    assert link.is_symlink()
    assert target.read_bytes() == b"\xef\xbb\xbfmagnitude: 4.0\r\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.yaml", "real.yaml"]


def test_a_file_that_changed_is_not_overwritten(tmp_path: Path) -> None:
    """What somebody else wrote in the meantime stays."""
    path = tmp_path / "agent.yaml"
    path.write_text("magnitude: 4.2\n")
    document = read_document(path)
    path.write_text("magnitude: 3.0\n")
    with pytest.raises(ConfigError, match="changed"):
        write(path, "magnitude: 4.0\n", document.text)
    assert path.read_text() == "magnitude: 3.0\n"
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        write(path, "magnitude: 4.0\n", document.text)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o444, None])
def test_read_only_file_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    """A file or a folder that may not be written ends in an error of ours, and the file stays."""
    path = tmp_path / "agent.yaml"
    path.write_text("magnitude: 4.2\n")
    if mode is None:
        import tempfile

        def refuse(**_: object) -> None:
            raise PermissionError(13, "Permission denied")

        # Root may write into any folder, so the system's answer is played here.
        monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    else:
        path.chmod(mode)
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises((ConfigError, UsageError)) as caught:
        write(path, "magnitude: 4.0\n", "magnitude: 4.2\n")
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert path.read_text() == "magnitude: 4.2\n"
