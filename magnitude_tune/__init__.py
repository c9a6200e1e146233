"""magnitude-tune: one dial for how hard a local GGUF model may use this machine."""

__all__ = ["__version__"]

__version__ = "0.1.0"
