"""What a projector file says about the encoders in it: enough to tell how much memory they compute in.

Keys: tools/mtmd/clip-impl.h of llama.cpp 0.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from magnitude_tune.header.values import ArraySummary, RawHeader, Scalar

__all__ = ["EncoderFacts", "ProjectorFacts", "projector_facts"]

_Metadata = Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary]
Modality = Literal["vision", "audio"]
_MODALITIES: Final[tuple[Modality, ...]] = ("vision", "audio")
_MAX_COUNT: Final = 1 << 24
_PREFIX: Final[Mapping[Modality, str]] = {"vision": "v", "audio": "a"}


class EncoderFacts(NamedTuple):
    """One encoder; numbers that the file does not say, or that cannot be, are 0.

    Args:
        projector_type: as written (`gemma3`, `qwen2.5vl_merger`); empty where the file does not say.
        n_merge: patches that become one token, a side.
        max_pixels: most pixels of an image that is encoded in one piece.
        gated: whether its feed-forward layers have a gate.
        windowed: whether some of its blocks attend within windows, by a mask.
    """

    modality: Modality
    projector_type: str
    n_embd: int
    n_ff: int
    head_count: int
    image_size: int
    patch_size: int
    n_merge: int
    max_pixels: int
    gated: bool
    windowed: bool


class ProjectorFacts(NamedTuple):
    """A projector file: bytes of its tensors, and its encoders."""

    path: str
    n_bytes: int
    encoders: tuple[EncoderFacts, ...]


def projector_facts(raw: RawHeader) -> ProjectorFacts:
    """The facts of a projector's header; nothing in it is an error, since the engine may know more than we do."""
    names = {tensor.name for tensor in raw.tensors}
    n_bytes = sum(tensor.n_bytes for tensor in raw.tensors)
    encoders = tuple(
        _encoder(raw.metadata, modality, names)
        for modality in _MODALITIES
        if raw.metadata.get(f"clip.has_{modality}_encoder") is True
    )
    # Files from before the keys hold one encoder for images.
    return ProjectorFacts(raw.path, n_bytes, encoders or (_encoder(raw.metadata, "vision", names),))


def _encoder(metadata: _Metadata, modality: Modality, names: set[str]) -> EncoderFacts:
    def count(name: str) -> int:
        value = metadata.get(f"clip.{modality}.{name}")
        return value if type(value) is int and 0 < value <= _MAX_COUNT else 0

    told = metadata.get(f"clip.{modality}.projector_type") or metadata.get("clip.projector_type")
    return EncoderFacts(
        modality=modality,
        projector_type=told if isinstance(told, str) else "",
        n_embd=count("embedding_length"),
        n_ff=count("feed_forward_length"),
        head_count=count("attention.head_count"),
        image_size=count("image_size"),
        patch_size=count("patch_size"),
        n_merge=count("spatial_merge_size") or count("projector.scale_factor"),
        max_pixels=count("image_max_pixels"),
        gated=f"{_PREFIX[modality]}.blk.0.ffn_gate.weight" in names,
        windowed=count("n_wa_pattern") > 0 or count("window_size") > 0,
    )
