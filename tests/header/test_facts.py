"""Keys that are absent, per block, or of another form: each has its rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import Attention, ModelHeader

Read = Callable[..., ModelHeader]


@pytest.fixture
def read_changed(tmp_path: Path, model_writer: Callable[..., Path]) -> Read:
    """Writes a tiny model with some keys changed or left out (None), and reads it."""

    def read(architecture: str, **change: Any) -> ModelHeader:
        keys = {key.replace("__", "."): value for key, value in change.items()}
        return read_model(model_writer(tmp_path / "model.gguf", architecture, keys))

    return read


def pattern(header: ModelHeader) -> str:
    """`F` for full, `S` for sliding, `-` else."""
    letters = {Attention.FULL: "F", Attention.SLIDING: "S"}
    return "".join(letters.get(layer.attention, "-") for layer in header.layers)


@pytest.mark.parametrize("architecture", ["llama", "bert", "qwen3"])
def test_absent_kv_heads_are_all_heads(read_changed: Read, architecture: str) -> None:
    """Field report B77: without head_count_kv every head has its own key and value, as in the engine."""
    header = read_changed(architecture, attention__head_count=16, attention__head_count_kv=None, embedding_length=64)
    assert header.head_count_kv == (16,) * 4


def test_an_absent_context_is_no_context(read_changed: Read) -> None:
    """Field report B54: without context_length the fact is None, and nothing fails."""
    assert read_changed("qwen3", context_length=None).context_length is None


def test_head_counts_may_differ_by_block(read_changed: Read) -> None:
    """Arrays of head counts and widths are kept block by block; a block without KV heads caches nothing."""
    header = read_changed(
        "llama",
        attention__head_count=[4, 8, 4, 2],
        attention__head_count_kv=[2, 4, 0, 1],
        feed_forward_length=[1, 2, 3, 4],
    )
    assert header.head_count == (4, 8, 4, 2)
    assert [layer.k for layer in header.layers] == [16, 32, 0, 8]
    assert header.layers[2].attention is Attention.NONE
    assert header.n_ff == (1, 2, 3, 4)


def test_arrays_of_another_length_are_refused(read_changed: Read) -> None:
    """Three head counts for four blocks is an error that names the key."""
    with pytest.raises(HeaderError, match=r"'llama.attention.head_count' has 3 elements for 4 blocks"):
        read_changed("llama", attention__head_count=[4, 4, 4])


@pytest.mark.parametrize(
    ("architecture", "change", "expected"),
    [
        ("gemma3", {"attention__sliding_window_pattern": 3}, "SSFSSFS"),
        ("gemma3", {"attention__sliding_window_pattern": [1, 0, 0, 1, 0, 0, 1]}, "SFFSFFS"),
        ("gemma3", {"attention__sliding_window_pattern": 1}, "FFFFFFF"),
        ("gemma3", {"attention__sliding_window": None}, "FFFFFFF"),
        ("gemma3", {"attention__sliding_window": 0}, "FFFFFFF"),
        ("llama", {"attention__sliding_window_pattern": 2}, "FFFF"),
        ("gpt-oss", {"block_count": 6}, "SFSFSF"),
    ],
)
def test_the_pattern_may_be_told(read_changed: Read, architecture: str, change: dict[str, Any], expected: str) -> None:
    """A period or an array in the file goes before the architecture's default; no window or no rule, no sliding."""
    assert pattern(read_changed(architecture, **change)) == expected


def test_old_files_without_mla_lengths_cache_whole_keys_and_values(read_changed: Read) -> None:
    """Without key_length_mla and value_length_mla every head caches K and V."""
    header = read_changed(
        "deepseek2",
        attention__key_length_mla=None,
        attention__value_length_mla=None,
        attention__head_count_kv=4,
        attention__key_length=24,
        attention__value_length=16,
    )
    assert {(layer.attention, layer.k, layer.v) for layer in header.layers} == {(Attention.FULL, 96, 64)}


def test_recurrent_layers_may_be_listed(read_changed: Read) -> None:
    """A list of recurrent layers goes before the interval."""
    header = read_changed("qwen3next", attention__recurrent_layers=[True, False, True, False])
    assert [layer.attention for layer in header.layers] == [Attention.RECURRENT, Attention.FULL] * 2


@pytest.mark.parametrize(
    ("architecture", "change", "text"),
    [
        ("llama", {"block_count": None}, r"'llama.block_count' is missing"),
        ("llama", {"embedding_length": None}, r"'llama.embedding_length' is missing"),
        ("llama", {"embedding_length": 0}, r"'llama.embedding_length' is 0"),
        ("llama", {"nextn_predict_layers": 4}, "4 of 4 blocks"),
        ("llama", {"attention__head_count": "four"}, "is no count: 'four'"),
        ("llama", {"attention__key_length": 0.5}, "is no count: 0.5"),
        ("grok", {"expert_used_count": 3}, "3 of 2 experts"),
        ("grok", {"expert_used_count": None}, "0 of 2 experts"),
        ("grok", {"expert_count": 1025}, "up to 1024 experts"),
        ("qwen3next", {"full_attention_interval": 0}, "'qwen3next.full_attention_interval' is 0"),
        ("gemma4", {"attention__sliding_window_pattern": [True]}, "does not hold one element for each of 4"),
    ],
)
def test_facts_that_cannot_be_are_named(
    read_changed: Read, architecture: str, change: dict[str, Any], text: str
) -> None:
    """Missing and impossible facts end in an error that names the key, never in a traceback."""
    with pytest.raises(HeaderError, match=text) as caught:
        read_changed(architecture, **change)
    assert caught.value.hint


def test_block_counts_beyond_the_engines_arrays_are_refused(tmp_path: Path, raw: Any) -> None:
    """More than 512 blocks overrun arrays in the engine (ggml-org/llama.cpp #25821): refused here."""
    tensor = raw.tensor("token_embd.weight", (32,), 0, 0)
    for count, text in ((513, "up to 512 blocks"), (0, "'llama.block_count' is 0")):
        keys = [*raw.least_keys[:1], raw.key("llama.block_count", count), *raw.least_keys[2:]]
        path = tmp_path / f"{count}.gguf"
        path.write_bytes(raw.file(keys, [tensor], bytes(128)))
        with pytest.raises(HeaderError, match=text):
            read_model(path)
