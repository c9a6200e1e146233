"""What may be given up where nothing fits: only what the config allows, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import DEFAULT_N_CTX, PLAIN_KV_TYPES, Request
from magnitude_tune.resolver.candidates import Shape
from magnitude_tune.resolver.kv_types import can_cache_in

__all__ = ["conceding_shapes", "wanted_shape"]

SMALLEST_CONTEXT: Final = 512
_QUANTISED: Final = ("q8_0", "q4_0")


def wanted_shape(request: Request, header: ModelHeader) -> Shape:
    """The context, slots and KV types asked for; unset context is min(8192, trained).

    Where the engine has no flash attention for the architecture, it refuses a quantised V cache: V stays in f16.
    """
    trained = header.context_length or DEFAULT_N_CTX
    types = {name: pin.value for name in ("type_k", "type_v") if (pin := request.pin(name)) is not None}
    if not header.flash_attn and types.get("type_v") not in PLAIN_KV_TYPES:
        types["type_v"] = "f16"
    unified = request.pin("kv_unified")
    return Shape(
        n_ctx=request.n_ctx or min(DEFAULT_N_CTX, trained),
        n_parallel=request.n_parallel,
        kv_unified=bool(unified.value) if unified else False,
        type_k=str(types.get("type_k", "f16")),
        type_v=str(types.get("type_v", "f16")),
    )


def conceding_shapes(request: Request, header: ModelHeader, wanted: Shape) -> Iterator[Shape]:
    """Shapes with ever more given up: quantised KV, then a smaller context, then fewer slots, as far as allowed."""
    shape = wanted
    if "kv_quantisation" in request.concessions and header.flash_attn and header.causal and not _pins_kv(request):
        for kv_type in (name for name in _QUANTISED if can_cache_in(header, name)):
            shape = shape._replace(
                type_k=kv_type,
                type_v=kv_type,
                concessions=(f"KV cache in {kv_type} instead of {wanted.type_k}",),
            )
            yield shape
    given = shape.concessions
    if "smaller_context" in request.concessions:
        while shape.n_ctx // 2 >= SMALLEST_CONTEXT * shape.n_parallel:
            n_ctx = shape.n_ctx // 2
            shape = shape._replace(
                n_ctx=n_ctx, concessions=(*given, f"context of {n_ctx} instead of {wanted.n_ctx} tokens")
            )
            yield shape
    given = shape.concessions
    if "fewer_slots" in request.concessions:
        while shape.n_parallel > 1:
            shape = _fewer_slots(shape, wanted, given)
            yield shape


def _pins_kv(request: Request) -> bool:
    return request.pin("type_k") is not None or request.pin("type_v") is not None


def _fewer_slots(shape: Shape, wanted: Shape, given: tuple[str, ...]) -> Shape:
    """Half the slots, each with the context it had."""
    slots = shape.n_parallel // 2
    n_ctx = shape.n_ctx if shape.kv_unified else shape.n_ctx // shape.n_parallel * slots
    note = f"{slots} slots instead of {wanted.n_parallel}"
    return shape._replace(n_parallel=slots, n_ctx=n_ctx, concessions=(*given, note))
