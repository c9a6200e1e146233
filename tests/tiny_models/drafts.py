"""A model in the making: keys and tensors of one architecture, written as a GGUF file of zeros.

The data section is a hole in the file: writing takes milliseconds and no room, whatever the tensors measure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

__all__ = ["Draft", "ShapeName"]

ShapeName = Literal["small", "large"]

_CONTROL, _BYTE, _UNKNOWN, _NORMAL = 3, 6, 2, 1
_SPECIAL: Final = ("<unk>", "<s>", "</s>")
# Mixed as a real file mixes them, so that each kind of repacked layout occurs; the first that the row allows is taken.
_TYPES_OF_ROLE: Final = {
    "attn_q": ("Q4_0",),
    "attn_k": ("Q4_K", "Q4_0"),
    "attn_v": ("Q6_K", "Q8_0"),
    "attn_output": ("Q4_K", "Q4_0"),
    "attn_qkv": ("Q5_K", "Q8_0"),
    "ffn_gate": ("Q4_K", "Q4_0"),
    "ffn_up": ("Q4_0",),
    "ffn_down": ("Q6_K", "Q8_0"),
    "ffn_gate_exps": ("Q4_K", "Q4_0"),
    "ffn_up_exps": ("Q4_0",),
    "ffn_down_exps": ("Q8_0",),
    "ffn_gate_inp": ("F32",),
    "token_embd": ("Q8_0",),
    "output": ("Q6_K", "Q8_0"),
}


class Draft:
    """Keys and tensors; shapes are written as the engine does, ne0 first."""

    def __init__(self, architecture: str, *, n_vocab: int, n_ctx: int = 32768) -> None:
        self.architecture = architecture
        self.n_vocab = n_vocab
        self._writer = GGUFWriter(path=None, arch=architecture)
        self._n_bytes = 0
        self.keys(context_length=n_ctx)
        self._tokenizer()

    def keys(self, **values: object) -> None:
        """Add keys under the architecture's prefix; `__` in a name stands for a dot."""
        for name, value in values.items():
            self.key(f"{self.architecture}.{name.replace('__', '.')}", value)

    def matrix(self, name: str, *shape: int, type_name: str | None = None) -> None:
        """A weight `NAME.weight` in a quantised type that its role has and its row allows, else f16."""
        role = name.rsplit(".", 1)[-1]
        wanted = (type_name,) if type_name else (*_TYPES_OF_ROLE.get(role, ("Q8_0",)), "Q8_0", "F16")
        chosen = next(kind for kind in wanted if shape[0] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] == 0)
        self.tensor(f"{name}.weight", *shape, type_name=chosen)

    def vector(self, name: str, *shape: int) -> None:
        """A tensor `NAME.weight` of f32."""
        self.tensor(f"{name}.weight", *shape)

    def bias(self, name: str, *shape: int) -> None:
        """A tensor `NAME.bias` of f32."""
        self.tensor(f"{name}.bias", *shape)

    def tensor(self, name: str, *shape: int, type_name: str = "F32") -> None:
        """Any tensor under its full name."""
        kind = GGMLQuantizationType[type_name]
        block, size = GGML_QUANT_SIZES[kind]
        if shape[0] % block:
            raise ValueError(f"{name}: a row of {shape[0]} does not fit {type_name}")
        n_bytes = int(np.prod(shape, dtype=np.int64)) // block * size
        self._writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), n_bytes, raw_dtype=kind)
        self._n_bytes += GGUFWriter.ggml_pad(n_bytes, self._writer.data_alignment)

    def save(self, path: Path) -> None:
        """Write header and hole; the file appears whole or not at all."""
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        self._writer.write_header_to_file(unfinished)
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()
        self._writer.close()
        start = GGUFWriter.ggml_pad(unfinished.stat().st_size, self._writer.data_alignment)
        os.truncate(unfinished, start + self._n_bytes)
        unfinished.replace(path)

    def key(self, key: str, value: object) -> None:
        """Add a key under its full name."""
        if isinstance(value, bool):
            self._writer.add_bool(key, value)
        elif isinstance(value, int):
            self._writer.add_uint32(key, value)
        elif isinstance(value, float):
            self._writer.add_float32(key, value)
        elif isinstance(value, str):
            self._writer.add_string(key, value)
        elif isinstance(value, Sequence):
            self._writer.add_array(key, value)
        else:
            raise TypeError(f"{key}: {value!r}")

    def _tokenizer(self) -> None:
        """The least tokenizer that both engines load: bytes, and fillers up to the vocabulary's size."""
        tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
        kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
        fillers = self.n_vocab - len(tokens)
        self._writer.add_tokenizer_model("llama")
        self._writer.add_token_list([*tokens, *(f"w{index}" for index in range(fillers))])
        self._writer.add_token_scores([0.0] * self.n_vocab)
        self._writer.add_token_types([*kinds, *[_NORMAL] * fillers])
        self._writer.add_bos_token_id(1)
        self._writer.add_eos_token_id(2)
