"""Writes the synthetic model of the replay tables: a small dense decoder with random weights, 0.15 GB.

    python tests/benchmarks/replay_model.py FOLDER

The same numbers every time: the generator is seeded. Weights are random so that no engine can take a short cut; norms
are 1. Twelve blocks of 1024 x 4096, grouped-query attention, q8_0 attention and q4_0 feed-forward, 32,000 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models.drafts import Draft
from tiny_models.parts import Size, start

NAME: Final = "replay-dense-q4_0.gguf"
SIZE: Final = Size(n_embd=1024, n_layer=12, n_ff=4096, n_head=16, n_head_kv=4, head=64, n_vocab=32000)


def write_model(folder: Path) -> Path:
    """Write the model into `folder` unless it is there already, and return its path."""
    path = folder / NAME
    if not path.exists():
        begun = path.with_suffix(".begun")
        _draft().save(begun)
        _fill(begun)
        begun.replace(path)
    return path


def _draft() -> Draft:
    size = SIZE
    draft = start("llama", size)
    draft.matrix("token_embd", size.n_embd, size.n_vocab, type_name="Q8_0")
    draft.vector("output_norm", size.n_embd)
    for index in range(size.n_layer):
        block = f"blk.{index}"
        draft.vector(f"{block}.attn_norm", size.n_embd)
        for name, rows in (("q", size.n_head), ("k", size.n_head_kv), ("v", size.n_head_kv)):
            draft.matrix(f"{block}.attn_{name}", size.n_embd, rows * size.head, type_name="Q8_0")
        draft.matrix(f"{block}.attn_output", size.n_head * size.head, size.n_embd, type_name="Q8_0")
        draft.vector(f"{block}.ffn_norm", size.n_embd)
        for name, columns, rows in (
            ("gate", size.n_embd, size.n_ff),
            ("up", size.n_embd, size.n_ff),
            ("down", size.n_ff, size.n_embd),
        ):
            draft.matrix(f"{block}.ffn_{name}", columns, rows, type_name="Q4_0")
    return draft


def _fill(path: Path) -> None:
    """Random weights of a sensible size in place of the zeros: a scale of 0.01 for each block of 32."""
    dice = np.random.default_rng(270)
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            tensor.data[...] = 1.0
            continue
        block = {GGMLQuantizationType.Q8_0: 34, GGMLQuantizationType.Q4_0: 18}[tensor.tensor_type]
        rows = tensor.data.reshape(-1, block)
        rows[:, :2] = scale
        rows[:, 2:] = dice.integers(0, 256, (len(rows), block - 2), np.uint8)


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
