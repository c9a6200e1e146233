"""A vocabulary of 262,144 tokens and 514,906 merges (field report B42)."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.header.read import read_model

N_TOKENS, N_MERGES = 262_144, 514_906
ADDED = """
import sys
def peak_kib():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
bare = peak_kib()
from magnitude_tune.header.read import read_model
assert read_model(sys.argv[1]).n_vocab == 262144
print(peak_kib() - bare)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, raw: Any) -> Path:
    """A head of about 18 MB: tokens, scores, types and merges."""
    tokens = b"".join(raw.string(f"token{index}") for index in range(N_TOKENS))
    merges = b"".join(raw.string(f"a{index} b") for index in range(N_MERGES))
    keys = [
        *raw.least_keys,
        raw.key("tokenizer.ggml.tokens", (9, struct.pack("<IQ", 8, N_TOKENS) + tokens)),
        raw.key("tokenizer.ggml.scores", (9, struct.pack("<IQ", 6, N_TOKENS) + bytes(4 * N_TOKENS))),
        raw.key("tokenizer.ggml.token_type", (9, struct.pack("<IQ", 5, N_TOKENS) + bytes(4 * N_TOKENS))),
        raw.key("tokenizer.ggml.merges", (9, struct.pack("<IQ", 8, N_MERGES) + merges)),
        raw.key("tokenizer.ggml.eos_token_id", 1),
    ]
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    path.write_bytes(raw.file(keys, [raw.tensor("token_embd.weight", (32, 64), 0, 0)], bytes(32 * 64 * 4)))
    return path


def test_a_large_vocabulary_costs_under_a_second(large: Path, two_seconds: float) -> None:
    """Arrays are stepped over: their lengths are known, what follows them is read, and it takes well under a second."""
    started = time.process_time()
    header = read_model(large)
    assert time.process_time() - started < two_seconds / 2
    assert (header.n_vocab, header.has_end_token) == (N_TOKENS, True)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory of a process is read from Linux's /proc")
@pytest.mark.parametrize("which", ["large", "real_model"])
def test_a_large_vocabulary_takes_little_memory(which: str, request: pytest.FixtureRequest) -> None:
    """The real model and the synthetic one add at most 48 MiB to the bare interpreter, imports included."""
    path = request.getfixturevalue(which)
    child = subprocess.run([sys.executable, "-c", ADDED, path], capture_output=True, text=True, check=True)
    assert int(child.stdout) < 48 * 1024
