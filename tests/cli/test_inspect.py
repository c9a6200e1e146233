"""`magnitude-tune inspect`, through the real console."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONTRACT = {
    "architecture": str,
    "block_count": int,
    "n_embd": int,
    "n_vocab": int,
    "context_length": int,
    "head_count": list,
    "head_count_kv": list,
    "attention": list,
    "n_params": int,
    "file_bytes": int,
    "bits_per_weight": float,
    "quantisation": list,
    "complete": bool,
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "magnitude_tune", "inspect", *map(str, arguments)],
        capture_output=True,
        check=False,
        timeout=120,
    )


def text(content: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(content.encode())) + content.encode()


def tiny_model(name: str = "Tiny", general_type: str = "model") -> bytes:
    """One block, one F32 tensor of 32 x 8."""
    keys = [("general.architecture", "llama"), ("general.name", name), ("general.type", general_type)]
    counts = [("llama.block_count", 1), ("llama.embedding_length", 32), ("llama.attention.head_count", 4)]
    body = b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in keys)
    body += b"".join(text(key) + struct.pack("<II", 4, value) for key, value in counts)
    body += text("token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys) + len(counts)) + body
    return head + bytes(-len(head) % 32) + bytes(1024)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model on disk."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    return path


def test_the_page_of_the_real_model(real_model: Path) -> None:
    """A page for people: name, size, blocks by class, types and parts; nothing on stderr."""
    done = run(real_model)
    page = done.stdout.decode()
    assert done.returncode == 0
    assert done.stderr == b""
    for expected in (
        "Gemma 3 270m",
        "gemma3 · Q4_K_M · 268 M parameters · 7.36 bits per weight · 241 MiB",
        "640 wide, vocabulary of 262144, output tied to it",
        "sliding, 512 tokens  15 blocks  0-4, 6-10, 12-16  4 heads, 1 for KV  1.0 KiB per token",
        "3.0 KiB per token of context, and 15.0 KiB per token of the window",
        "token embedding        1       168 M     170 MiB   72.3 %",
    ):
        assert expected in page
    assert max(map(len, page.splitlines())) < 200


def test_the_document_of_the_real_model(real_model: Path) -> None:
    """One JSON object, schema_version first, with the contract's keys and sums that agree with one another."""
    done = run(real_model, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0
    assert next(iter(document)) == "schema_version"
    assert {key: type(document[key]) for key in CONTRACT} == CONTRACT
    assert document["attention"] == ["full" if block in {5, 11, 17} else "sliding" for block in range(18)]
    assert (document["head_count"], document["head_count_kv"]) == ([4] * 18, [1] * 18)
    assert document["n_params"] == 268_098_176
    assert document["file_bytes"] == real_model.stat().st_size
    assert document["complete"] is True
    for part in ("quantisation", "roles", "blocks"):
        assert sum(row["bytes"] for row in document[part]) == document["tensor_bytes"]
        assert sum(row["n_params"] for row in document[part]) == document["n_params"]
    assert {row["type"] for row in document["quantisation"]} == {"q8_0", "q5_0", "q4_k", "q6_k", "f32"}
    assert [row["block"] for row in document["blocks"]] == [None, *range(18)]
    assert document["kv"]["bytes_per_token"] == 3 * 2 * 512


def test_the_result_may_go_to_a_file(model: Path, tmp_path: Path) -> None:
    """`-o FILE` writes the same bytes that stdout would show, and `-o -` is stdout."""
    target = tmp_path / "facts.json"
    assert run(model, "--json", "-o", target).stdout == b""
    assert target.read_bytes() == run(model, "--json", "-o", "-").stdout
    assert json.loads(target.read_text())["context_length"] is None


def test_help_has_an_example_and_the_exit_codes() -> None:
    """`--help` shows how to call it and what its exit codes mean."""
    done = run("--help")
    assert done.returncode == 0
    assert b"magnitude-tune inspect model.gguf" in done.stdout
    assert b"Exit codes: 0 ok, 2 usage, 3" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("a.gguf", "b.gguf"), ("a.gguf", "--no-such-option")])
def test_wrong_usage_leaves_with_2(arguments: tuple[str, ...]) -> None:
    """No model, two models, an unknown option: exit code 2, nothing on stdout."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!doctype html><title>Sign in</title>", "an HTML page was saved instead of the model"),
        (b"", "not a GGUF file: it is empty (0 bytes)"),
        (b"GGU", "not a GGUF file: it has only 3 bytes"),
        (tiny_model()[:-924], "924 bytes are missing"),
        (tiny_model()[:100], "incomplete header"),
        (None, "no such file"),
    ],
)
def test_bad_files_leave_with_3(tmp_path: Path, content: bytes | None, said: str) -> None:
    """What is wrong, where, and what to do, on stderr; no traceback, nothing on stdout."""
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    done = run(path, "--json")
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 3
    assert done.stdout == b""
    assert lines[0].startswith(f"error: {path}: ")
    assert said in lines[0]
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2


def test_other_kinds_are_shown(tmp_path: Path) -> None:
    """An adapter has a page of its own, exit code 0: looking at a file is no mistake."""
    path = tmp_path / "lora.gguf"
    path.write_bytes(tiny_model(general_type="adapter"))
    done = run(path)
    assert done.returncode == 0
    assert b"a LoRA adapter: it needs the base model" in done.stdout
    assert json.loads(run(path, "--json").stdout)["kind"] == "adapter"


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Escape sequences and line breaks in a stranger's model name are shown as replacement characters."""
    path = tmp_path / "evil.gguf"
    path.write_bytes(tiny_model(name="\x1b[2J\u202eevil\x07"))
    page = run(path).stdout.decode()
    assert "\x1b" not in page
    assert "\x07" not in page
    assert "\u202e" not in page
    assert "evil" in page
