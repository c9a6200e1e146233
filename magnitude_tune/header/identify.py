"""Names files that are not GGUF as what they are."""

from __future__ import annotations

from typing import Final

from magnitude_tune.errors import HeaderError
from magnitude_tune.units import MIB

__all__ = ["HEAD_BYTES", "MAGIC", "require_gguf"]

MAGIC: Final = b"GGUF"
HEAD_BYTES: Final = 512
"""How much of a file's start `require_gguf` looks at."""

_PAGE = (
    "use the download link (on Hugging Face: `resolve`, not `blob`), or log in first where the model is gated",
    "an HTML page was saved instead of the model",
)
_CONVERT = (
    "convert it with llama.cpp's converter, or download a GGUF of the model",
    "a GGML file from before GGUF",
)
_BY_START: Final = (
    (b"version https://git-lfs", ("run `git lfs pull` in the repository", "a git-lfs pointer, not the model itself")),
    (b"lmgg", _CONVERT),
    (b"fmgg", _CONVERT),
    (b"tjgg", _CONVERT),
    (b"algg", _CONVERT),
    (b"PK\x03\x04", ("convert it to GGUF, or download a GGUF of the model", "a ZIP archive or a PyTorch checkpoint")),
    (b"\x1f\x8b", ("unpack it first", "a gzip archive")),
    (b"\x28\xb5\x2f\xfd", ("unpack it first", "a zstd archive")),
    (b"\x89HDF", ("convert it to GGUF, or download a GGUF of the model", "an HDF5 file")),
    (b"FUGG", ("write it again with an up-to-date converter", "a GGUF with its magic reversed")),
)


def require_gguf(head: bytes, path: str, file_bytes: int) -> None:
    """Refuse a file that does not start as a GGUF does, and say what it is.

    Args:
        head: the first `HEAD_BYTES` of the file, fewer where it is shorter.
        path: where it is, for the error.
        file_bytes: its size.

    Raises:
        HeaderError: it is not a GGUF file.
    """
    if head.startswith(MAGIC):
        return
    hint, what = _recognise(head, file_bytes)
    raise HeaderError(f"not a GGUF file: {what}", where=path, hint=hint)


def _recognise(head: bytes, file_bytes: int) -> tuple[str, str]:
    """What to do, and what the file is."""
    if file_bytes < len(MAGIC):
        what = f"it has only {file_bytes} bytes" if file_bytes else "it is empty (0 bytes)"
        return "download the file again", what
    for start, found in _BY_START:
        if head.startswith(start):
            return found
    return _recognise_text(head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()) or _recognise_content(head)


def _recognise_text(text: bytes) -> tuple[str, str] | None:
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")):
        return _PAGE
    if text.startswith((b"{", b"[")):
        return "check the link: the server sent an answer or an index instead of the model", "JSON text"
    return None


def _recognise_content(head: bytes) -> tuple[str, str]:
    if _is_safetensors(head):
        return "convert it with llama.cpp's converter, or download a GGUF of the model", "a safetensors file"
    if not head.strip(b"\0"):
        return "the download was allocated but not filled; download it again", "it begins with zeros"
    return "give a file that ends in .gguf; a later part of a cut-up download must be joined first", (
        f"it begins with {_printable(head[:4])} instead of GGUF"
    )


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes of length, then JSON."""
    return len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 512 * MIB


def _printable(start: bytes) -> str:
    text = start.decode("ascii", "replace")
    return repr(text) if text.isprintable() and text.isascii() else f"the bytes {start.hex(' ')}"
