"""The number of merges is a fact of the header, though their text is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_tune.header.read import read_model


def test_merges_are_counted(tmp_path: Path) -> None:
    """A tokenizer's merges are counted, because the engine keeps a map of them in memory."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "merges.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_token_merges(["a b", "b c", "c d"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_model(path).n_merges == 3
