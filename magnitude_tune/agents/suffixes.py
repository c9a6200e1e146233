"""Which paths name a configuration."""

from __future__ import annotations

from pathlib import Path

__all__ = ["looks_like_agent"]


def looks_like_agent(path: Path) -> bool:
    """Whether a path names a configuration rather than a model: by its suffix, so that it need not exist."""
    return path.suffix.lower() in (".yaml", ".yml", ".json")
