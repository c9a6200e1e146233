"""Tiny models of many architectures, and raw GGUF bytes for files that no writer would write."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VOCAB = [f"t{index}" for index in range(48)]
WIDTH = 32
COMMON = {"context_length": 4096, "embedding_length": WIDTH, "block_count": 4, "feed_forward_length": 64}
HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2}
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 2}

# Keys of each architecture, without its prefix; what the blocks hold follows from `block_tensors`.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {"attention.head_count": 4, "attention.causal": False, "pooling_type": 1},
    "deepseek2": {
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 24,
        "attention.value_length": 16,
        "attention.key_length_mla": 12,
        "attention.value_length_mla": 8,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": 16,
    },
    "deepseek32": {
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 24,
        "attention.value_length": 16,
        "attention.key_length_mla": 12,
        "attention.value_length_mla": 8,
        "attention.indexer.key_length": 8,
        "nextn_predict_layers": 1,
    },
    "falcon-h1": {**HEADS, **SSM, "ssm.group_count": 1},
    "gemma2": {**HEADS, "attention.key_length": 16, "attention.value_length": 16},
    "gemma3": {**HEADS, "block_count": 7, "attention.key_length": 16, "attention.sliding_window": 128},
    "gemma3n": {**HEADS, "block_count": 22, "attention.sliding_window": 128},
    "gemma4": {
        **HEADS,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [True, False, True, True],
        "attention.shared_kv_layers": 1,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.key_length_swa": 8,
        "attention.value_length_swa": 8,
    },
    "glm4moe": {**HEADS, "nextn_predict_layers": 1, "expert_count": 4, "expert_used_count": 2},
    "gpt-oss": {**HEADS, "attention.sliding_window": 128, "expert_count": 4, "expert_used_count": 2},
    "grok": {**HEADS, "expert_count": 2, "expert_used_count": 2},
    "jamba": {**SSM, "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0, 0]},
    "lfm2": {"attention.head_count": 4, "attention.head_count_kv": [0, 0, 2, 0], "shortconv.l_cache": 3},
    "llama": {**HEADS, "attention.sliding_window": 4096},
    "mamba": {**SSM, "feed_forward_length": 0, "attention.head_count": 0},
    "minimax-m3": {**HEADS, "attention.indexer.key_length": 8, "leading_dense_block_count": 1},
    "nemotron_h": {
        **SSM,
        "ssm.group_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 0, 2, 0],
        "feed_forward_length": [0, 64, 0, 0],
    },
    "phi3": {**HEADS, "attention.sliding_window": 2047},
    "qwen3": {**HEADS, "attention.key_length": 16, "attention.value_length": 16},
    "qwen3next": {**HEADS, **SSM, "ssm.group_count": 2, "full_attention_interval": 4},
    "rwkv7": {"wkv.head_size": 8, "token_shift_count": 2, "attention.head_count": 0},
}


def block_tensors(architecture: str, block: int) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape (ne0 first) and type of one block's tensors."""
    prefix = f"blk.{block}."
    rows = [("attn_norm.weight", (WIDTH,), "F32")]
    if architecture in {"mamba", "jamba", "nemotron_h", "falcon-h1", "qwen3next"}:
        rows += [("ssm_in.weight", (WIDTH, 128), "Q8_0"), ("ssm_conv1d.weight", (4, 64), "F32")]
    if architecture == "rwkv7":
        rows += [("time_mix_key.weight", (WIDTH, WIDTH), "F16"), ("channel_mix_key.weight", (WIDTH, 64), "F16")]
    elif architecture != "mamba":
        rows += [("attn_q.weight", (WIDTH, 64), "Q8_0"), ("attn_output.weight", (64, WIDTH), "F16")]
    if architecture in {"deepseek2", "glm4moe", "gpt-oss", "grok"} and block:
        rows += [("ffn_gate_inp.weight", (WIDTH, 8), "F32"), ("ffn_up_exps.weight", (WIDTH, 16, 8), "Q8_0")]
        rows += [("ffn_down_exps.bias", (WIDTH, 8), "F32"), ("ffn_up_shexp.weight", (WIDTH, 24), "F16")]
    else:
        rows += [("ffn_up.weight", (WIDTH, 64), "Q8_0"), ("ffn_down.weight", (64, 30), "F16")]
    return [(prefix + name, shape, type_name) for name, shape, type_name in rows]


def write_model(
    path: Path, architecture: str, change: dict[str, Any] | None = None, *, big_endian: bool = False
) -> Path:
    """Write one of `ARCHITECTURES`, some of its keys changed (None: left out)."""
    import gguf
    import numpy as np

    order = gguf.GGUFEndian.BIG if big_endian else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    writer.add_name(f"Tiny {architecture}")
    writer.add_file_type(7)
    keys = {**COMMON, **ARCHITECTURES[architecture], **(change or {})}
    for key, value in keys.items():
        if value is not None:
            add_key(writer, f"{architecture}.{key}", value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(VOCAB)
    writer.add_token_scores([0.0] * len(VOCAB))
    writer.add_token_types([1] * len(VOCAB))
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message }}{% endfor %}")
    tensors = [("token_embd.weight", (WIDTH, len(VOCAB)), "Q8_0"), ("output_norm.weight", (WIDTH,), "F32")]
    if architecture in {"llama", "deepseek2", "glm4moe", "rwkv7", "jamba"}:
        tensors.append(("output.weight", (WIDTH, len(VOCAB)), "Q8_0"))
    for block in range(keys["block_count"] or 1):
        tensors += block_tensors(architecture, block)
    random = np.random.default_rng(0)
    for name, shape, type_name in tensors:
        values = random.standard_normal(tuple(reversed(shape)), dtype=np.float32)
        kind = gguf.GGMLQuantizationType[type_name]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: Any, key: str, value: Any) -> None:
    """Add a value by its Python type, whole numbers as u32 as converters do."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def packed_string(text: str | bytes, order: str = "<") -> bytes:
    """A GGUF string: eight bytes of length, then the text."""
    content = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(content)) + content


def packed_key(key: str | bytes, value: Any, order: str = "<") -> bytes:
    """A key with a u32, a string, or `(type, raw bytes)`."""
    if isinstance(value, int):
        return packed_string(key, order) + struct.pack(order + "II", 4, value)
    if isinstance(value, str):
        return packed_string(key, order) + struct.pack(order + "I", 8) + packed_string(value, order)
    return packed_string(key, order) + struct.pack(order + "I", value[0]) + value[1]


def packed_tensor(name: str | bytes, shape: tuple[int, ...], type_id: int, offset: int, order: str = "<") -> bytes:
    """A row of the tensor table."""
    dimensions = struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape)
    return packed_string(name, order) + dimensions + struct.pack(order + "IQ", type_id, offset)


def gguf_bytes(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
    alignment: int = 32,
    order: str = "<",
) -> bytes:
    """A whole file from packed keys and tensor rows; `counts` (tensors, keys) may lie."""
    keys = LEAST_KEYS if keys is None else keys
    tensors = tensors or []
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack(order + "IQQ", version, n_tensors, n_keys) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment if tensors else 0) + data


LEAST_KEYS = [
    packed_key("general.architecture", "llama"),
    packed_key("llama.block_count", 1),
    packed_key("llama.embedding_length", 32),
    packed_key("llama.attention.head_count", 4),
]


class Raw:
    """What tests pack files from."""

    key = staticmethod(packed_key)
    string = staticmethod(packed_string)
    tensor = staticmethod(packed_tensor)
    file = staticmethod(gguf_bytes)
    least_keys = LEAST_KEYS


@pytest.fixture(scope="session")
def two_seconds() -> float:
    """CPU seconds here for what takes two on the machine of the design: a loop over 25 million packed lengths."""
    content = struct.pack("<Q", 8) * 1_000_000
    length_at = struct.Struct("<Q").unpack_from
    times = []
    for _ in range(3):
        started = time.process_time()
        for offset in range(0, len(content), 8):
            length_at(content, offset)
        times.append(time.process_time() - started)
    return 25 * min(times)


@pytest.fixture(scope="session")
def raw() -> type[Raw]:
    """Builders of raw GGUF bytes."""
    return Raw


@pytest.fixture(scope="session")
def model_writer() -> Callable[..., Path]:
    """Writes one of the known architectures to a path."""
    pytest.importorskip("gguf", reason="the gguf package writes the test models")
    return write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, model_writer: Callable[..., Path]) -> Callable[[str], Path]:
    """The tiny model of an architecture, written once a session."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def path_of(architecture: str) -> Path:
        if architecture not in written:
            written[architecture] = model_writer(folder / f"{architecture}.gguf", architecture)
        return written[architecture]

    return path_of


@pytest.fixture(scope="session", params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    """Each architecture that has a tiny model."""
    return str(request.param)
