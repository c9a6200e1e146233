"""Models of the benchmark table rebuilt: blocks, widths and vocabularies of known ones, an estimate for the rest.

The table has no tensor lists. It says architecture, parameters, active parameters, bytes and quantisation. Shapes of
known models are those of their public configurations.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import Attention, FileKind, LayerKv, ModelHeader, MoeFacts, Role, TensorGroup

__all__ = ["ModelKey", "Shape", "known_shape", "rebuilt", "shape_of"]


class Shape(NamedTuple):
    """Blocks, width, vocabulary, cached elements of K (and of V) in a block, whether the output matrix is tied."""

    blocks: int
    width: int
    vocabulary: int
    cached: int
    tied: bool = False
    window: int = 0


class ModelKey(NamedTuple):
    """What the table says of a model: parameters in billions, bytes, quantisation by its label."""

    architecture: str
    params_b: float
    active_b: float
    n_bytes: float
    quant: str


_KNOWN: Final[tuple[tuple[str, float, Shape], ...]] = (
    ("llama", 1.1, Shape(22, 2048, 32_000, 256)),
    ("llama", 1.24, Shape(16, 2048, 128_256, 512, tied=True)),
    ("llama", 3.21, Shape(28, 3072, 128_256, 1024, tied=True)),
    ("llama", 6.74, Shape(32, 4096, 32_000, 4096)),
    ("llama", 7.24, Shape(32, 4096, 32_000, 1024)),
    ("llama", 8.03, Shape(32, 4096, 128_256, 1024)),
    ("llama", 13.02, Shape(40, 5120, 32_000, 5120)),
    ("llama", 70.0, Shape(80, 8192, 128_256, 1024)),
    ("llama", 405.0, Shape(126, 16384, 128_256, 1024)),
    ("llama4", 108.0, Shape(48, 5120, 202_048, 1024)),
    ("qwen2", 0.49, Shape(24, 896, 151_936, 128, tied=True)),
    ("qwen2", 1.54, Shape(28, 1536, 151_936, 256, tied=True)),
    ("qwen2", 3.09, Shape(36, 2048, 151_936, 256, tied=True)),
    ("qwen2", 7.62, Shape(28, 3584, 152_064, 512)),
    ("qwen2", 14.77, Shape(48, 5120, 152_064, 1024)),
    ("qwen2", 32.76, Shape(64, 5120, 152_064, 1024)),
    ("qwen2", 72.7, Shape(80, 8192, 152_064, 1024)),
    ("qwen3", 0.6, Shape(28, 1024, 151_936, 1024, tied=True)),
    ("qwen3", 1.72, Shape(28, 2048, 151_936, 1024, tied=True)),
    ("qwen3", 4.02, Shape(36, 2560, 151_936, 1024, tied=True)),
    ("qwen3", 8.19, Shape(36, 4096, 151_936, 1024)),
    ("qwen3", 14.77, Shape(40, 5120, 151_936, 1024)),
    ("qwen3", 32.76, Shape(64, 5120, 151_936, 1024)),
    ("qwen3moe", 30.53, Shape(48, 2048, 151_936, 512)),
    ("qwen3moe", 235.0, Shape(94, 4096, 151_936, 512)),
    ("qwen35", 4.2, Shape(32, 2560, 248_320, 256, tied=True)),
    ("qwen35", 9.0, Shape(32, 4096, 248_320, 256)),
    ("qwen35", 27.0, Shape(64, 5120, 248_320, 256)),
    ("qwen35moe", 35.0, Shape(40, 2048, 248_320, 128)),
    ("qwen35moe", 122.0, Shape(48, 3072, 248_320, 128)),
    ("qwen3next", 79.7, Shape(48, 2048, 151_936, 128)),
    ("gpt-oss", 20.9, Shape(24, 2880, 201_088, 512, window=128)),
    ("gpt-oss", 116.8, Shape(36, 2880, 201_088, 512, window=128)),
    ("gemma", 2.5, Shape(18, 2048, 256_000, 256, tied=True)),
    ("gemma", 8.5, Shape(28, 3072, 256_000, 4096, tied=True)),
    ("gemma2", 2.6, Shape(26, 2304, 256_000, 1024, tied=True)),
    ("gemma2", 9.2, Shape(42, 3584, 256_000, 2048, tied=True)),
    ("gemma2", 27.2, Shape(46, 4608, 256_000, 2048, tied=True)),
    ("gemma3", 0.27, Shape(18, 640, 262_144, 256, tied=True, window=512)),
    ("gemma3", 1.0, Shape(26, 1152, 262_144, 256, tied=True, window=512)),
    ("gemma3", 3.88, Shape(34, 2560, 262_144, 1024, tied=True, window=1024)),
    ("gemma3", 11.77, Shape(48, 3840, 262_144, 2048, tied=True, window=1024)),
    ("gemma3", 27.0, Shape(62, 5376, 262_144, 2048, tied=True, window=1024)),
    ("gemma4", 25.2, Shape(30, 2816, 262_144, 2048, tied=True, window=1024)),
    ("gemma4", 30.7, Shape(60, 5376, 262_144, 4096, tied=True, window=1024)),
    ("phi3", 3.82, Shape(32, 3072, 32_064, 3072)),
    ("phi3", 14.66, Shape(40, 5120, 100_352, 1280)),
    ("mistral3", 3.4, Shape(26, 3072, 131_072, 1024, tied=True)),
    ("mistral3", 8.5, Shape(34, 4096, 131_072, 1024)),
    ("mistral3", 13.5, Shape(40, 5120, 131_072, 1024)),
    ("glm4moe", 110.5, Shape(47, 4096, 151_552, 1024)),
    ("glm4moe", 357.0, Shape(93, 5120, 151_552, 1024)),
    ("deepseek2", 15.7, Shape(27, 2048, 102_400, 288)),
    ("deepseek2", 29.9, Shape(47, 2048, 154_880, 288)),
    ("deepseek2", 671.0, Shape(61, 7168, 129_280, 288)),
    ("minimax-m2", 228.7, Shape(62, 3072, 200_064, 1024)),
    ("dots1", 142.8, Shape(62, 4096, 152_064, 4096)),
    ("hunyuan-moe", 80.4, Shape(32, 4096, 128_167, 1024)),
    ("nemotron_h_moe", 31.6, Shape(52, 2688, 131_072, 32)),
)
_NEAR: Final = 0.1
"""Known shapes hold for sizes that differ by less than this, in logarithm."""
_MOE_DENSE_SHARE: Final = 0.05
_EXPERTS: Final = 1000
_HEAD: Final = 128


def known_shape(architecture: str, params_b: float) -> Shape | None:
    """The shape of a known model; None where none of this architecture is about as large."""
    found = [
        (abs(math.log(params_b / size)), shape) for name, size, shape in _KNOWN if name == architecture and params_b > 0
    ]
    distance, shape = min(found, default=(math.inf, None))
    return shape if distance < _NEAR else None


def shape_of(key: ModelKey) -> Shape:
    """A known shape, or an estimate.

    Blocks grow with parameters (7 billion: 32 blocks; the exponent 0.39 meets 40 at 13 and 80 at 70 billion), and the
    width follows from 12 * blocks * width^2 parameters.
    """
    known = known_shape(key.architecture, key.params_b)
    if known is not None:
        return known
    blocks = min(max(round(32 * ((key.active_b * key.params_b) ** 0.5 / 7) ** 0.39), 4), 200)
    width = max(_HEAD, round(math.sqrt(key.active_b * 1e9 / (12 * blocks)) / _HEAD) * _HEAD)
    return Shape(blocks, width, 0, _HEAD * max(width // _HEAD // 4, 1))


def _type_name(key: ModelKey) -> str:
    """The type that most weights have, by the label; labels that the bytes contradict are those of a few tensors.

    `gpt-oss ?B F16` holds 4 bits a weight: its experts are MXFP4.
    """
    bits = 8 * key.n_bytes / (key.params_b * 1e9)
    label = key.quant.lower().removeprefix("ud-").split("-")[0]
    if label.startswith(("bf16", "f16", "f32")) and bits < 0.7 * 16:
        return "mxfp4" if key.architecture == "gpt-oss" else "unknown"
    if label.startswith("q8"):
        return "q8_0"
    for size in (label, "_".join(label.split("_")[:2])):
        if size in TENSOR_TYPES:
            return size
    return "iq2_xxs" if label.startswith("iq2") else "iq3_xxs" if label.startswith("iq3") else "unknown"


@lru_cache(maxsize=1024)
def rebuilt(key: ModelKey) -> ModelHeader:
    """A model with these bytes and parameters.

    The vocabulary takes its part of parameters and bytes; an untied embedding is never read. Of a model with experts
    5 % are taken as dense, and the active parameters say how many experts a token uses.
    """
    shape, kind = shape_of(key), _type_name(key)
    table = shape.vocabulary * shape.width / 1e9
    tables = table * (1 if shape.tied else 2)
    if tables > 0.6 * key.params_b:
        table = tables = 0.0
    body, active = key.params_b - tables, min(key.active_b, key.params_b)
    moe = active < 0.9 * key.params_b
    dense = body * _MOE_DENSE_SHARE if moe else body
    share = min(max((active - tables - dense) / (body - dense), 0.001), 1.0) if moe else 1.0
    per_param = key.n_bytes / key.params_b

    def group(block: int | None, role: Role, params_b: float) -> TensorGroup:
        n_bytes = round(params_b * per_param)
        return TensorGroup(block, role, kind, 1, round(params_b * 1e9), n_bytes, n_bytes, 0)

    groups = [group(i, Role.DENSE_FFN, dense / shape.blocks) for i in range(shape.blocks)]
    if moe:
        groups += [group(i, Role.EXPERT_FFN, (body - dense) / shape.blocks) for i in range(shape.blocks)]
    if table > 0:
        groups += [group(None, Role.TOKEN_EMBEDDING, table)]
        groups += [] if shape.tied else [group(None, Role.OUTPUT, table)]
    heads = max(shape.width // _HEAD, 1)
    heads_kv = max(shape.cached // _HEAD, 1)
    layers = tuple(
        LayerKv(
            Attention.SLIDING if shape.window and (i + 1) % (2 if shape.window == _HEAD else 6) else Attention.FULL,
            max(heads, heads_kv),
            heads_kv,
            shape.cached,
            shape.cached,
        )
        for i in range(shape.blocks)
    )
    return _header(key, shape, tuple(groups), layers, share if moe else None)


def _header(
    key: ModelKey, shape: Shape, groups: tuple[TensorGroup, ...], layers: tuple[LayerKv, ...], used: float | None
) -> ModelHeader:
    return ModelHeader(
        path="row",
        kind=FileKind.MODEL,
        shards=(),
        version=3,
        byte_order="little",
        name=None,
        architecture=key.architecture,
        file_type=None,
        block_count=shape.blocks,
        nextn_predict_layers=0,
        n_embd=shape.width,
        n_vocab=shape.vocabulary,
        context_length=None,
        layers=layers,
        n_ff=(4 * shape.width,) * shape.blocks,
        sliding_window=shape.window,
        moe=None if used is None else MoeFacts(_EXPERTS, max(round(_EXPERTS * used), 1), shape.width),
        recurrent=None,
        causal=True,
        flash_attn=True,
        tied_output=shape.tied,
        has_chat_template=False,
        has_end_token=False,
        n_tensors=len(groups),
        n_params=round(key.params_b * 1e9),
        tensor_bytes=round(key.n_bytes),
        file_bytes=round(key.n_bytes),
        groups=groups,
        content_hash="",
    )
