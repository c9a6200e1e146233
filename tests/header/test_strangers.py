"""Files that are not what they should be: named as what they are, with what to do (B16, B17, B55, B80)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.raw import read_raw
from magnitude_tune.header.read import read_model, require_runnable
from magnitude_tune.header.values import FileKind

PROJECTOR = ("this is a vision or audio projector", "pass it as mmproj")
ADAPTER = ("LoRA adapter, not a base model", "base model")


def refusal(path: Path) -> HeaderError:
    """The error that a file ends in, from reading it to being asked to run it."""
    with pytest.raises(HeaderError) as caught:
        require_runnable(read_model(path))
    assert caught.value.hint
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3
    return caught.value


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"<!doctype html><html><head>", "an HTML page was saved", "`resolve`, not `blob`"),
        (b"\n  <!DOCTYPE HTML PUBLIC>", "an HTML page was saved", "log in"),
        (b"<html lang='en'>", "an HTML page was saved", "`resolve`"),
        (b"tjgg\x03\0\0\0 more", "GGML file from before GGUF", "convert"),
        (b"fmgg\x01\0\0\0 more", "GGML file from before GGUF", "convert"),
        (b"lmgg\x01\0\0\0 more", "GGML file from before GGUF", "convert"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git-lfs pointer", "git lfs pull"),
        (b'\x40\x01\0\0\0\0\0\0{"__metadata__":{}}', "safetensors", "convert"),
        (b"PK\x03\x04rest of it", "ZIP archive", "GGUF"),
        (b"\x1f\x8b\x08rest", "gzip", "unpack"),
        (b'{"error": "not found"}', "JSON text", "link"),
        (bytes(4096), "begins with zeros", "download it again"),
        (b"", r"empty \(0 bytes\)", "download"),
        (b"GGU", "only 3 bytes", "download"),
        (b"\x89\x10\xff\x07 something else", "89 10 ff 07", "joined"),
        (b"ABCD something else", "'ABCD' instead of GGUF", "joined"),
    ],
)
def test_other_files_are_named_as_what_they_are(tmp_path: Path, content: bytes, what: str, hint: str) -> None:
    """A page, a pointer, another format or nothing at all each has its own answer."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    error = refusal(path)
    with pytest.raises(HeaderError, match=what):
        read_raw(path)
    assert "not a GGUF file" in error.what
    assert hint in str(error.hint)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    """A path that is missing, a folder without models and a pipe are each refused without being read."""
    assert "no such file" in refusal(tmp_path / "none.gguf").what
    assert "no GGUF model is in this folder" in refusal(tmp_path).what
    with pytest.raises(HeaderError, match="a folder, not a model file"):
        read_raw(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "not a regular file" in refusal(tmp_path / "pipe.gguf").what
    with pytest.raises(HeaderError, match="cannot be read"):
        read_raw("bad\0name.gguf")


def test_missing_weights_are_counted_to_the_byte(tmp_path: Path, raw: Any) -> None:
    """Field report B16: a 32 x 8 F32 tensor of which 100 bytes are there lacks 924 bytes."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, [raw.tensor("token_embd.weight", (32, 8), 0, 0)], bytes(100)))
    header = read_model(path)
    assert not header.complete
    assert header.shards[0].missing_bytes == 924
    assert "924 bytes are missing" in refusal(path).what


def test_a_header_cut_short_is_incomplete_wherever_it_is_cut(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    """Field report B16: a cut inside the header is an incomplete header, at every byte."""
    whole = tiny("gemma3").read_bytes()
    end = read_raw(tiny("gemma3")).data_start
    path = tmp_path / "model.gguf"
    for cut in [*range(4, end - 32, 61), end - 33]:
        path.write_bytes(whole[:cut])
        with pytest.raises(HeaderError, match=r"incomplete header"):
            read_raw(path)


def test_halves_of_a_cut_up_download_are_no_models(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    """Field report B16: `.part1of2` lacks bytes; `.part2of2` does not begin as a GGUF and must be joined first."""
    content = tiny("llama").read_bytes()
    first, second = tmp_path / "model.gguf.part1of2", tmp_path / "model.gguf.part2of2"
    first.write_bytes(content[:-5000])
    second.write_bytes(content[-5000:])
    assert "bytes are missing of" in refusal(first).what
    assert "joined" in str(refusal(second).hint)


@pytest.mark.parametrize(
    ("keys", "kind", "answer"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, "projector", PROJECTOR),
        ({"general.architecture": "clip"}, "projector", PROJECTOR),
        ({"general.architecture": "x", "clip.has_vision_encoder": 1}, "projector", PROJECTOR),
        ({"general.architecture": "llama", "general.type": "adapter"}, "adapter", ADAPTER),
        ({"general.architecture": "llama", "adapter.type": "lora"}, "adapter", ADAPTER),
        ({"general.type": "imatrix"}, "imatrix", ("importance matrix", "own .gguf")),
        ({"imatrix.chunk_count": 5}, "imatrix", ("importance matrix", "own .gguf")),
    ],
)
def test_other_kinds_are_described_and_refused(
    tmp_path: Path, raw: Any, keys: dict[str, Any], kind: str, answer: tuple[str, str]
) -> None:
    """Field reports B54 and B55: a projector, an adapter or an imatrix is readable, and no base model."""
    path = tmp_path / "other.gguf"
    rows = [raw.key(key, value) for key, value in keys.items()]
    path.write_bytes(raw.file(rows, [raw.tensor("v.blk.0.attn_q.weight", (32, 8), 0, 0)], bytes(1024)))
    header = read_model(path)
    assert (header.kind, header.n_tensors, header.n_params) == (FileKind(kind), 1, 256)
    error = refusal(path)
    assert answer[0] in error.what
    assert answer[1] in str(error.hint)


def test_files_without_weights_are_told_apart(tmp_path: Path, raw: Any) -> None:
    """A vocabulary and bare metadata are legal files, and not runnable."""
    tokens = (9, b"\x08\0\0\0" + (2).to_bytes(8, "little") + raw.string("a") + raw.string("b"))
    vocabulary, bare = tmp_path / "vocab.gguf", tmp_path / "bare.gguf"
    vocabulary.write_bytes(
        raw.file([raw.key("general.architecture", "llama"), raw.key("tokenizer.ggml.tokens", tokens)])
    )
    bare.write_bytes(raw.file([raw.key("general.architecture", "llama")]))
    assert read_model(vocabulary).kind is FileKind.VOCAB_ONLY
    assert read_model(vocabulary).n_vocab == 2
    assert read_model(bare).kind is FileKind.METADATA_ONLY
    assert "vocabulary only" in refusal(vocabulary).what
    assert "metadata only" in refusal(bare).what


def test_a_folder_gives_its_one_model(tmp_path: Path, raw: Any, model_writer: Callable[..., Path]) -> None:
    """Field report B55: a projector that sorts first and an imatrix are passed over."""
    projector = raw.file([raw.key("general.architecture", "clip"), raw.key("general.type", "mmproj")])
    (tmp_path / "a-mmproj.gguf").write_bytes(projector)
    (tmp_path / "b-imatrix.gguf").write_bytes(raw.file([raw.key("general.type", "imatrix")]))
    (tmp_path / "readme.md").write_text("not a model")
    (tmp_path / "._model.gguf").write_bytes(b"a file system's own")
    path = model_writer(tmp_path / "model.gguf", "llama")
    assert read_model(tmp_path).path == str(path)


def test_a_folder_with_two_models_lists_them(tmp_path: Path, model_writer: Callable[..., Path]) -> None:
    """Ambiguity is an error that names the candidates."""
    for name in ("one.gguf", "two.gguf"):
        model_writer(tmp_path / name, "llama")
    error = refusal(tmp_path)
    assert "one.gguf, two.gguf" in error.what


def test_a_folder_with_only_a_broken_model_says_what_is_wrong(tmp_path: Path) -> None:
    """A file that cannot be read is not passed over in silence."""
    (tmp_path / "model.gguf").write_bytes(b"<html>")
    with pytest.raises(HeaderError, match="an HTML page"):
        read_model(tmp_path)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Missing permission is an error of ours that says so."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    assert "cannot be read" in refusal(path).what
