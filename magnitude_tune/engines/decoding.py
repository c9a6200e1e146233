"""One model and one context in a worker child: reads and generates random tokens as llama-bench does.

Method (llama.cpp, tools/llama-bench/llama-bench.cpp): random token ids, prompts in batches of `n_batch` with the
logits of each batch's last token only, generation one token a time, no sampling; time is taken around decoding and
`llama_synchronize`.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnitude_tune.engines.binding import device_handles, engine_function

__all__ = ["BufferOverride", "Decoder", "DecodingError"]

_GGML_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_LOAD_MODES: Final = {"none": 0, "mmap": 1}
# Kernels for one token differ from those for several: a repacked layout that this CPU cannot run shows at 2 to 8.
_WARM_UP_TOKENS: Final = 8
_SEED: Final = 20_240_229


class DecodingError(Exception):
    """The engine refused a model, a context or a batch."""


class BufferOverride(ctypes.Structure):
    """llama.h: struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Decoder:
    """A loaded model with a context; every token it decodes is counted in `decoded`."""

    def __init__(self, binding: Any, model_path: str, settings: Mapping[str, Any]) -> None:
        self._binding = binding
        self._kept: list[object] = []  # arrays that the engine reads while the model loads
        self.decoded = 0
        self._n_batch = int(settings["n_batch"])
        self._model = binding.llama_model_load_from_file(os.fsencode(model_path), self._model_params(settings))
        if not self._model:
            raise DecodingError("the engine could not load the model")
        self._context = binding.llama_init_from_model(self._model, self._context_params(settings))
        if not self._context:
            raise DecodingError("the engine could not make a context")
        self._memory = binding.llama_get_memory(self._context)
        self._vocabulary = binding.llama_model_get_vocab(self._model)
        self.n_ctx = int(binding.llama_n_ctx(self._context)) // (
            1 if settings["kv_unified"] else max(1, int(settings["n_parallel"]))
        )

    def warm_up(self) -> None:
        """Read a few tokens and generate one: pages are touched, and a layout that cannot run ends the process here."""
        n_tokens = max(1, min(_WARM_UP_TOKENS, self._n_batch, self.n_ctx - 1))
        self.prompt(n_tokens, 0)
        self.generate(1, 0)

    def prompt(self, n_prompt: int, depth: int) -> float:
        """Seconds to read `n_prompt` tokens after `depth` tokens of context."""
        self._fill(depth)
        batches = self._batches(self._tokens(n_prompt, first=depth == 0))
        started = time.perf_counter()
        for batch in batches:
            self._decode(batch)
        self._binding.llama_synchronize(self._context)
        return time.perf_counter() - started

    def generate(self, n_gen: int, depth: int) -> float:
        """Seconds to generate `n_gen` tokens, one at a time, after `depth` tokens of context."""
        self._fill(depth)
        steps = [(ctypes.c_int32 * 1)(token) for token in self._tokens(n_gen, first=depth == 0)]
        started = time.perf_counter()
        for step in steps:
            self._decode(step)
            self._binding.llama_synchronize(self._context)
        return time.perf_counter() - started

    def close(self) -> None:
        """Give everything back to the engine."""
        self._binding.llama_free(self._context)
        self._binding.llama_model_free(self._model)

    def _fill(self, depth: int) -> None:
        self._binding.llama_memory_clear(self._memory, False)
        for batch in self._batches(self._tokens(depth, first=True)):
            self._decode(batch)
        self._binding.llama_synchronize(self._context)

    def _tokens(self, n_tokens: int, *, first: bool) -> list[int]:
        binding = self._binding
        source = random.Random(_SEED)  # noqa: S311 - the same text every time, not a secret
        n_vocab = binding.llama_vocab_n_tokens(self._vocabulary)
        tokens = [source.randrange(n_vocab) for _ in range(n_tokens)]
        if tokens and first and binding.llama_vocab_get_add_bos(self._vocabulary):
            tokens[0] = binding.llama_vocab_bos(self._vocabulary)
        return tokens

    def _batches(self, tokens: Sequence[int]) -> list[ctypes.Array[ctypes.c_int32]]:
        parts = [tokens[start : start + self._n_batch] for start in range(0, len(tokens), self._n_batch)]
        return [(ctypes.c_int32 * len(part))(*part) for part in parts]

    def _decode(self, tokens: ctypes.Array[ctypes.c_int32]) -> None:
        code = self._binding.llama_decode(self._context, self._binding.llama_batch_get_one(tokens, len(tokens)))
        if code != 0:
            raise DecodingError(f"llama_decode returned {code} for {len(tokens)} tokens")
        self.decoded += len(tokens)

    def _model_params(self, settings: Mapping[str, Any]) -> Any:
        params = self._binding.llama_model_default_params()
        params.n_gpu_layers = int(settings["n_gpu_layers"])
        params.main_gpu = int(settings["main_gpu"])
        params.use_extra_bufts = bool(settings["repack"])
        if hasattr(params, "load_mode"):
            params.load_mode = _LOAD_MODES[settings["load_mode"]]
        else:
            params.use_mmap = settings["load_mode"] == "mmap"
        params.devices = self._keep(self._devices(settings["devices"]))
        if shares := settings["tensor_split"]:
            split = (ctypes.c_float * max(len(shares), self._binding.llama_max_devices()))(*shares)
            self._kept.append(split)
            params.tensor_split = split
        if settings["n_cpu_moe"] and settings["devices"]:
            params.tensor_buft_overrides = self._keep(self._expert_overrides(int(settings["n_cpu_moe"])))
        return params

    def _keep(self, array: Any) -> int | None:
        self._kept.append(array)
        return ctypes.cast(array, ctypes.c_void_p).value

    def _devices(self, names: Sequence[str]) -> Any:
        """A list that ends in NULL; an empty one keeps every accelerator out, as the plan without devices says."""
        known = device_handles(self._binding)
        if missing := [name for name in names if name not in known]:
            raise DecodingError(f"the engine has no device {missing[0]!r}; it has {', '.join(known) or 'none'}")
        return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)

    def _expert_overrides(self, n_layers: int) -> Any:
        """Expert matrices of the first layers stay in host memory (llama.cpp, common/common.h, --n-cpu-moe)."""
        cpu_type = engine_function(self._binding, "ggml_backend_cpu_buffer_type", ctypes.c_void_p)
        if cpu_type is None:
            raise DecodingError("the engine's library cannot keep experts on the CPU")
        patterns = [rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode() for layer in range(n_layers)]
        rows = [BufferOverride(pattern, cpu_type()) for pattern in patterns]
        return (BufferOverride * (n_layers + 1))(*rows, BufferOverride(None, None))

    def _context_params(self, settings: Mapping[str, Any]) -> Any:
        params = self._binding.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch"):
            setattr(params, name, int(settings[name]))
        n_parallel = int(settings["n_parallel"])
        params.n_seq_max = n_parallel
        params.flash_attn_type = int(bool(settings["flash_attn"]))
        params.type_k = _GGML_TYPES[settings["type_k"]]
        params.type_v = _GGML_TYPES[settings["type_v"]]
        params.offload_kqv = True
        params.swa_full = False
        params.kv_unified = bool(settings["kv_unified"])
        if hasattr(params, "n_outputs_max"):
            params.n_outputs_max = n_parallel
        return params
