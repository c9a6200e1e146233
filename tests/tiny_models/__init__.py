"""Small GGUF models of many architectures for tests: `write("qwen3moe", "small", folder)`.

A `small` shape loads in well under a second; a `large` one has a compute buffer of 100 MiB or more at a micro batch
of 512. Weights are zeros that take no room on the disk. One family of architectures a module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tiny_models import converted, dense, embedding, hybrid, look_alikes, mixers, mixtures, moe, recurrent, sliding
from tiny_models.drafts import Draft, ShapeName

__all__ = ["ARCHITECTURES", "ShapeName", "write"]

_WRITERS: Final[dict[str, Callable[[ShapeName], Draft]]] = {
    **dense.WRITERS,
    **sliding.WRITERS,
    **moe.WRITERS,
    **mixtures.WRITERS,
    **recurrent.WRITERS,
    **hybrid.WRITERS,
    **mixers.WRITERS,
    **converted.WRITERS,
    **embedding.WRITERS,
    **look_alikes.WRITERS,
}

ARCHITECTURES: Final = tuple(_WRITERS)
"""Names that `write` knows: an architecture, or one with a variant after a dash that no architecture has."""


def write(name: str, shape: ShapeName, folder: Path) -> Path:
    """Write the model into `folder` unless it is there already, and return its path."""
    path = folder / f"{name}-{shape}.gguf"
    if not path.exists():
        _WRITERS[name](shape).save(path)
    return path
