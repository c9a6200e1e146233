"""A small projector on disk, which the engines load: the vision tower of Gemma 3 in two blocks, all weights 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

N_EMBD, N_FF, HEADS, PATCH = 256, 1024, 4, 14
MODEL_WIDTH = 640
"""Of the real 270M model, beside which it can run."""


def write_projector(path: Path, *, projector_type: str = "gemma3", image_size: int | None = 896) -> Path:
    """Write the file; without an image size its encoder is still one for 896 pixels."""
    import gguf

    writer: Any = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", projector_type)
    counts = {
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "block_count": 2,
        "projection_dim": MODEL_WIDTH,
        "attention.head_count": HEADS,
        "patch_size": PATCH,
    }
    for name, count in (counts if image_size is None else counts | {"image_size": image_size}).items():
        writer.add_uint32(f"clip.vision.{name}", count)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    _add_tensors(writer, ((image_size or 896) // PATCH) ** 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: Any, positions: int) -> None:
    import numpy as np

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float16))

    def vectors(name: str, length: int) -> None:
        for kind in ("weight", "bias"):
            writer.add_tensor(f"{name}.{kind}", np.zeros(length, dtype=np.float32))

    matrix("v.patch_embd", N_EMBD, 3, PATCH, PATCH)
    writer.add_tensor("v.patch_embd.bias", np.zeros(N_EMBD, dtype=np.float32))
    writer.add_tensor("v.position_embd.weight", np.zeros((positions, N_EMBD), dtype=np.float32))
    vectors("v.post_ln", N_EMBD)
    for block in ("v.blk.0", "v.blk.1"):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"{block}.{name}", N_EMBD, N_EMBD)
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(N_EMBD, dtype=np.float32))
        vectors(f"{block}.ln1", N_EMBD)
        vectors(f"{block}.ln2", N_EMBD)
        matrix(f"{block}.ffn_up", N_FF, N_EMBD)
        writer.add_tensor(f"{block}.ffn_up.bias", np.zeros(N_FF, dtype=np.float32))
        matrix(f"{block}.ffn_down", N_EMBD, N_FF)
        writer.add_tensor(f"{block}.ffn_down.bias", np.zeros(N_EMBD, dtype=np.float32))
    matrix("mm.input_projection", N_EMBD, MODEL_WIDTH)
    writer.add_tensor("mm.soft_emb_norm.weight", np.zeros(N_EMBD, dtype=np.float32))
