"""What a GGUF file is for, and which of them an engine can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.facts import Facts
from magnitude_tune.header.values import ArraySummary, FileKind, ModelHeader, Scalar

__all__ = ["kind_of", "require_complete", "require_runnable"]

_BY_GENERAL_TYPE: Final = {
    "mmproj": FileKind.PROJECTOR,
    "adapter": FileKind.ADAPTER,
    "imatrix": FileKind.IMATRIX,
}
_BY_KEY: Final = (
    ("clip.has_vision_encoder", FileKind.PROJECTOR),
    ("clip.has_audio_encoder", FileKind.PROJECTOR),
    ("adapter.type", FileKind.ADAPTER),
    ("imatrix.chunk_count", FileKind.IMATRIX),
)
_REFUSALS: Final = {
    FileKind.PROJECTOR: (
        "this is a vision or audio projector, not a language model",
        "pass it as mmproj, and name the model it belongs to",
    ),
    FileKind.ADAPTER: (
        "this is a LoRA adapter, not a base model",
        "name the base model it was trained on, and pass this file as its adapter",
    ),
    FileKind.IMATRIX: (
        "this is an importance matrix for quantising, not a model",
        "name the model's own .gguf file",
    ),
    FileKind.VOCAB_ONLY: (
        "this file holds a vocabulary only, no weights",
        "name a file of the model with its weights",
    ),
    FileKind.METADATA_ONLY: (
        "this file holds metadata only, no weights",
        "name a file of the model with its weights",
    ),
}


def kind_of(metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary], *, has_tensors: bool) -> FileKind:
    """What a file is for, by its own word first, then by the keys that only its kind has."""
    told = metadata.get("general.type")
    if isinstance(told, str) and told in _BY_GENERAL_TYPE:
        return _BY_GENERAL_TYPE[told]
    if metadata.get("general.architecture") == "clip":
        return FileKind.PROJECTOR
    for key, kind in _BY_KEY:
        if key in metadata:
            return kind
    if has_tensors:
        return FileKind.MODEL
    return FileKind.VOCAB_ONLY if Facts(metadata, "").length("tokenizer.ggml.tokens") else FileKind.METADATA_ONLY


def require_complete(header: ModelHeader) -> None:
    """Refuse a file whose weights are cut short.

    Raises:
        HeaderError: says how many bytes are missing, and of which file.
    """
    for shard in header.shards:
        if shard.missing_bytes:
            raise HeaderError(
                f"the file is truncated: {shard.missing_bytes} bytes are missing of "
                f"{shard.n_bytes + shard.missing_bytes}",
                where=shard.path,
                hint="the download stopped early; resume it or download the file again",
            )


def require_runnable(header: ModelHeader) -> None:
    """Refuse what no engine can run as a model: other kinds of file, and truncated ones.

    Raises:
        HeaderError: says what the file is, and what to do with it.
    """
    if header.kind in _REFUSALS:
        what, hint = _REFUSALS[header.kind]
        raise HeaderError(what, where=header.path, hint=hint)
    require_complete(header)
