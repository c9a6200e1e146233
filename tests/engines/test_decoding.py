"""What the worker decodes, held with a binding that only counts."""

# ruff: noqa: ARG002 - the stand-in has the binding's signatures

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from magnitude_tune.engines.decoding import BufferOverride, Decoder, DecodingError

SETTINGS = {
    "n_gpu_layers": 0,
    "n_threads": 2,
    "n_threads_batch": 3,
    "n_batch": 64,
    "n_ubatch": 32,
    "n_ctx": 1024,
    "n_parallel": 2,
    "kv_unified": False,
    "flash_attn": True,
    "type_k": "q8_0",
    "type_v": "f16",
    "load_mode": "mmap",
    "repack": False,
    "n_cpu_moe": 0,
    "devices": [],
    "tensor_split": [],
    "main_gpu": 0,
}


class CountingBinding:
    """Stands for `llama_cpp.llama_cpp`: records decodes and context clears."""

    def __init__(self, *, add_bos: bool = True, failing: bool = False) -> None:
        self.calls: list[Any] = []
        self.tokens: list[int] = []
        self.model_params = SimpleNamespace(load_mode=-1)
        self.context_params = SimpleNamespace(n_outputs_max=0)
        self._lib = SimpleNamespace()
        self._add_bos = add_bos
        self._code = 1 if failing else 0

    def llama_model_default_params(self) -> Any:
        return self.model_params

    def llama_context_default_params(self) -> Any:
        return self.context_params

    def llama_model_load_from_file(self, path: bytes, params: Any) -> int:
        return 1 if path == b"model.gguf" else 0

    def llama_init_from_model(self, model: int, params: Any) -> int:
        return 2

    def llama_get_memory(self, context: int) -> int:
        return 3

    def llama_model_get_vocab(self, model: int) -> int:
        return 4

    def llama_n_ctx(self, context: int) -> int:
        return 1024

    def llama_vocab_n_tokens(self, vocabulary: int) -> int:
        return 1000

    def llama_vocab_get_add_bos(self, vocabulary: int) -> bool:
        return self._add_bos

    def llama_vocab_bos(self, vocabulary: int) -> int:
        return 777_777

    def llama_memory_clear(self, memory: int, data: bool) -> None:
        self.calls.append("clear")

    def llama_synchronize(self, context: int) -> None:
        self.calls.append("wait")

    def llama_batch_get_one(self, tokens: Any, n_tokens: int) -> Any:
        return list(tokens)[:n_tokens]

    def llama_max_devices(self) -> int:
        return 4

    def llama_decode(self, context: int, batch: Any) -> int:
        self.calls.append(len(batch))
        self.tokens += batch
        return self._code


def decoder(binding: CountingBinding, **changes: Any) -> Decoder:
    return Decoder(binding, "model.gguf", {**SETTINGS, **changes})


def test_a_prompt_is_read_in_batches_and_waited_for_once() -> None:
    """Exactly n_prompt tokens in batches of n_batch, after an empty context."""
    binding = CountingBinding()
    made = decoder(binding)
    assert made.prompt(150, 0) > 0
    assert binding.calls == ["clear", "wait", 64, 64, 22, "wait"]
    assert made.decoded == 150


def test_generation_is_one_token_at_a_time() -> None:
    """Exactly n_gen decodes of one token, each waited for."""
    binding = CountingBinding()
    made = decoder(binding)
    made.generate(3, 0)
    assert binding.calls == ["clear", "wait", 1, "wait", 1, "wait", 1, "wait"]
    assert made.decoded == 3


def test_depth_is_filled_before_the_time_starts() -> None:
    """The context is filled with `depth` tokens first, and they are counted too."""
    binding = CountingBinding()
    made = decoder(binding)
    made.generate(2, 100)
    assert binding.calls == ["clear", 64, 36, "wait", 1, "wait", 1, "wait"]
    assert made.decoded == 102


def test_tokens_are_the_same_every_time_and_start_with_bos() -> None:
    """The same random text each time, inside the vocabulary, with the model's first token where it wants one."""
    binding = CountingBinding()
    decoder(binding).prompt(50, 0)
    assert binding.tokens[0] == 777_777
    assert all(0 <= token < 1000 for token in binding.tokens[1:])
    assert len(set(binding.tokens)) > 20
    again = CountingBinding()
    decoder(again).prompt(50, 0)
    assert again.tokens == binding.tokens
    without = CountingBinding(add_bos=False)
    decoder(without).prompt(50, 0)
    assert without.tokens[1:] == binding.tokens[1:]
    assert without.tokens[0] < 1000


def test_the_warm_up_reads_several_tokens_and_generates_one() -> None:
    """Kernels for one and for several tokens both run before the session is ready."""
    binding = CountingBinding()
    decoder(binding).warm_up()
    assert [call for call in binding.calls if isinstance(call, int)] == [8, 1]


def test_settings_reach_the_engine() -> None:
    """Every setting is handed over; nothing is left to the engine's defaults."""
    binding = CountingBinding()
    made = decoder(binding, repack=True, load_mode="none", flash_attn=False)
    model, context = binding.model_params, binding.context_params
    assert (model.n_gpu_layers, model.use_extra_bufts, model.load_mode, model.main_gpu) == (0, True, 0, 0)
    assert model.devices  # an empty list, not the engine's choice
    assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max) == (1024, 64, 32, 2)
    assert (context.n_threads, context.n_threads_batch) == (2, 3)
    assert (context.flash_attn_type, context.type_k, context.type_v) == (0, 8, 1)
    assert (context.offload_kqv, context.swa_full, context.kv_unified, context.n_outputs_max) == (True, False, False, 2)
    assert made.n_ctx == 512
    assert decoder(CountingBinding(), kv_unified=True).n_ctx == 1024


def test_a_model_a_device_or_a_batch_that_is_refused_is_said() -> None:
    """What the engine refuses ends in one sentence."""
    with pytest.raises(DecodingError, match="load the model"):
        Decoder(CountingBinding(), "other.gguf", SETTINGS)
    with pytest.raises(DecodingError, match="CUDA0"):
        decoder(CountingBinding(), devices=["CUDA0"])
    failing = decoder(CountingBinding(failing=True))
    with pytest.raises(DecodingError, match="llama_decode"):
        failing.prompt(1, 0)
    assert failing.decoded == 0


def with_devices(binding: CountingBinding) -> CountingBinding:
    """Gives the binding two devices and a CPU buffer type, as the engine's library has them."""
    names = [b"CPU", b"CUDA0", b"CUDA1"]
    binding._lib.ggml_backend_dev_count = lambda: len(names)
    binding._lib.ggml_backend_dev_get = lambda index: 100 + index
    binding._lib.ggml_backend_dev_name = lambda handle: names[handle - 100]
    binding._lib.ggml_backend_cpu_buffer_type = lambda: 55
    return binding


def test_devices_shares_and_experts_are_handed_over_as_lists() -> None:
    """Devices by name ended by NULL, shares of layers padded with zeros, expert matrices of the first layers kept."""
    binding = with_devices(CountingBinding())
    decoder(binding, n_gpu_layers=9, devices=["CUDA1", "CUDA0"], tensor_split=[6, 3], n_cpu_moe=2)
    params = binding.model_params
    handles = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
    assert handles[0:3] == [102, 101, None]
    assert list(params.tensor_split) == [6.0, 3.0, 0.0, 0.0]
    rows = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(BufferOverride))
    assert [(row.pattern, row.buffer_type) for row in rows[0:3]] == [
        (rb"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps", 55),
        (rb"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps", 55),
        (None, None),
    ]
