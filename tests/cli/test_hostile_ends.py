"""Where results go and what files may be: pipes, devices, closed streams, names too long, files that wait for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.console import run

TOO_LONG = "x" * 300
MACHINE = ("--machine", "rtx4090-64g")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX's")


def test_output_into_a_pipe_leaves_it_a_pipe(real_model: Path, tmp_path: Path) -> None:
    """What is there and no regular file is written to, not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        done = run("resolve", real_model, *MACHINE, "--json", "-o", pipe)
        assert done.returncode == 0, done.stderr
        assert reader.stdout is not None
        assert json.loads(reader.stdout.read())["schema_version"] == 1
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", TOO_LONG], 3),
        (["resolve", TOO_LONG], 3),
        (["resolve", "MODEL", *MACHINE, "-o", TOO_LONG], 2),
        (["resolve", "MODEL", "--engine-path", TOO_LONG], 2),
        (["resolve", "MODEL", "--rpc", f"{TOO_LONG}:50052"], 2),
        (["resolve", "MODEL", "--machine", TOO_LONG], 2),
        (["resolve", "MODEL", *MACHINE, "-o", "LOOP"], 2),
        (["resolve", "MODEL", *MACHINE, "-o", ""], 2),
    ],
)
def test_impossible_names_are_said(real_model: Path, tmp_path: Path, arguments: list[str], code: int) -> None:
    """A name longer than any file's and a link to itself are wrong input, no bug of ours."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    places = {"MODEL": str(real_model), "LOOP": str(loop)}
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert "bug of ours" not in done.stderr
    assert loop.is_symlink()


@pytest.mark.parametrize("command", ["resolve", "fingerprint"])
def test_a_machine_that_is_a_pipe_is_refused(real_model: Path, tmp_path: Path, command: str) -> None:
    """A pipe nobody writes to would wait for ever."""
    pipe = tmp_path / "machine.json"
    os.mkfifo(pipe)
    what = (str(real_model),) if command == "resolve" else ()
    done = run(command, *what, "--machine", pipe)
    assert done.returncode == 3
    assert "not a regular file" in done.stderr


def test_pipes_in_our_own_folders_stop_nothing(real_model: Path, own_home: Path) -> None:
    """A cache that cannot be read is read again; a store that cannot be read is said."""
    run("resolve", real_model)
    for kept in (own_home / "cache").iterdir():
        kept.unlink()
        os.mkfifo(kept)
    (own_home / "data").mkdir(exist_ok=True)
    os.mkfifo(own_home / "data" / "observations.sqlite")
    done = run("resolve", real_model, "--json")
    assert done.returncode == 0, done.stderr
    if any(finding["id"] == "MT009" for finding in json.loads(done.stdout)["findings"]):
        pytest.skip("no engine is installed: nothing is looked up in the store")
    assert "planned without what was measured here" in done.stdout


def test_a_full_or_closed_stdout_is_said(real_model: Path) -> None:
    """Neither is a bug of ours; the text says that the result could not be written."""
    command = f"{sys.executable} -m magnitude_tune resolve {real_model} --machine rtx4090-64g -q"
    for ending in (">/dev/full", ">&-"):
        if ending == ">/dev/full" and not Path("/dev/full").is_char_device():
            continue
        done = subprocess.run(["sh", "-c", command + ending], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "cannot write the result" in done.stderr


def test_control_characters_of_a_model_stay_off_the_terminal(tmp_path: Path) -> None:
    """A name that clears the screen or forges a line is shown without doing so."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "named.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("\x1b[2J\x1b]0;owned\x07\nMemory\n  forged")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 128),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 2),
        (writer.add_vocab_size, 32),
    ):
        add(value)
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((32, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = run("resolve", path, *MACHINE, "-q")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "Memory   forged" in done.stdout.splitlines()[0]


@pytest.mark.parametrize("value", ["x", None, [], {}, -1, 1e308])
@pytest.mark.parametrize("name", ["block_count", "n_vocab", "file_bytes", "context_length"])
def test_a_damaged_cache_is_read_again(real_model: Path, own_home: Path, name: str, value: object) -> None:
    """Facts of the wrong type in the cache are a miss, not an error."""
    first = run("resolve", real_model, *MACHINE, "--json")
    (kept,) = (own_home / "cache").glob("header-*.json")
    document = json.loads(kept.read_text())
    document["value"][name] = value
    kept.write_text(json.dumps(document))
    again = run("resolve", real_model, *MACHINE, "--json")
    assert again.returncode == 0, again.stderr
    if not (name == "context_length" and value in (None, -1)):
        assert again.stdout == first.stdout
