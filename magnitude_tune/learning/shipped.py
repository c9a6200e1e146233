"""Where the shipped coefficients and the tables they come from lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnitude_tune.errors import InputFileError
from magnitude_tune.storage import shipped_dir

__all__ = ["stated_document", "training_tables"]


def training_tables() -> tuple[Path, Path]:
    """The shipped benchmarks and data sheets."""
    folder = shipped_dir("models") / "training"
    return folder / "benchmarks.csv", folder / "devices.csv"


def stated_document() -> tuple[Mapping[str, Any], str]:
    """The shipped document, whose stated parts training keeps as they are, and its file.

    Raises:
        InputFileError: it cannot be read.
    """
    path = shipped_dir("models") / "throughput.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")), str(path)
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"the shipped coefficients cannot be read: {error}", where=str(path), hint="install the package again"
        ) from error
