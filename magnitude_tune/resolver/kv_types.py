"""Which types a model's KV cache can have: a type's block must divide every head (llama.cpp, llama-context.cpp)."""

from __future__ import annotations

from magnitude_tune.errors import UsageError
from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Request

__all__ = ["can_cache_in", "require_cacheable"]


def can_cache_in(header: ModelHeader, kv_type: str) -> bool:
    """Whether the engine would start with keys and values in this type."""
    return _misfit(header, kv_type) is None


def require_cacheable(request: Request, header: ModelHeader) -> None:
    """Refuse a pinned type that the engine refuses.

    Raises:
        UsageError: a head is no multiple of the type's block.
    """
    for name in ("type_k", "type_v"):
        pin = request.pin(name)
        if pin is not None and (head := _misfit(header, str(pin.value))) is not None:
            raise UsageError(
                f"{name} {pin.value} packs {_block(str(pin.value))} elements at a time, "
                f"and this model's heads have {head}",
                where=str(pin.place),
                hint="use f16",
            )


def _misfit(header: ModelHeader, kv_type: str) -> int | None:
    """The head size that the type's block does not divide; None where all fit."""
    block = _block(kv_type)
    for layer in header.layers:
        if layer.head_count_kv > 0:
            for elements in (layer.k, layer.v):
                if (head := elements // layer.head_count_kv) % block:
                    return head
    return None


def _block(kv_type: str) -> int:
    return TENSOR_TYPES[kv_type][0]
