"""A machine as one JSON object: the same document that `--machine` reads back."""

from __future__ import annotations

from magnitude_tune.fingerprint.stored import to_document
from magnitude_tune.fingerprint.values import Fingerprint

__all__ = ["fingerprint_document"]


def fingerprint_document(fingerprint: Fingerprint) -> dict[str, object]:
    """The document of `fingerprint --json`; saved to a file, it is a machine that can be planned for."""
    return to_document(fingerprint)
