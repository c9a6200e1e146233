"""The shapes of a model's tensors, block by block: what an engine's compute graph is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from magnitude_tune.header.values import ArraySummary, ModelShapes, RawTensor, Scalar

__all__ = ["model_shapes"]

_IN_BLOCK: Final = re.compile(r"(enc\.|dec\.)?blk\.(\d{1,9})\.(.+)", re.DOTALL)
_MAX_HPARAMS: Final = 256


def model_shapes(
    tensors: tuple[RawTensor, ...],
    metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary],
    architecture: str,
    n_blocks: int,
) -> ModelShapes:
    """Shapes of every tensor, equal blocks told once, and the architecture's own numbers."""
    outer: dict[str, tuple[int, ...]] = {}
    blocks: list[dict[str, tuple[int, ...]]] = [{} for _ in range(n_blocks)]
    for tensor in tensors:
        match = _IN_BLOCK.fullmatch(tensor.name)
        if match is None:
            outer[tensor.name] = tensor.shape
        elif int(match[2]) < n_blocks:
            blocks[int(match[2])][(match[1] or "") + match[3]] = tensor.shape
    kinds: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    kind_of_block = tuple(kinds.setdefault(tuple(sorted(block.items())), len(kinds)) for block in blocks)
    return ModelShapes(tuple(dict(kind) for kind in kinds), kind_of_block, outer, _hparams(metadata, architecture))


def _hparams(
    metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary], architecture: str
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    prefix = f"{architecture}."
    own = {
        key.removeprefix(prefix): value
        for key, value in metadata.items()
        if key.startswith(prefix) and not isinstance(value, str | ArraySummary)
    }
    return dict(list(own.items())[:_MAX_HPARAMS])
