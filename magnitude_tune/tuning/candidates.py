"""Which settings are worth a thought beside the plan: none that changes answers, none that was pinned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

from magnitude_tune.request import Settings
from magnitude_tune.tuning.values import Candidate

__all__ = ["candidates_around"]

_BATCHES: Final = (64, 128, 256, 512, 1024)
_SHARES: Final = (1.0, 0.75, 0.5, 0.25)


def candidates_around(
    plan: Settings, *, usable_cores: int, all_layers: int, pinned: frozenset[str] = frozenset()
) -> tuple[Candidate, ...]:
    """The plan first, then every combination of other thread counts, physical batches, attention and layers.

    Context, slots and the types of the KV cache stay as planned. Where the V cache is quantised, flash attention
    stays on. Nothing here looks at memory: whether a candidate fits is asked before it is run.

    Args:
        usable_cores: the most threads.
        all_layers: layers that can be offloaded, with the output layer.
        pinned: settings that a person set: they stay.
    """
    axes = dict(_axes(plan, usable_cores, all_layers))
    free = {name: values for name, values in axes.items() if name not in pinned and len(values) > 1}
    found: dict[Settings, Candidate] = {plan: Candidate(plan)}
    for values in product(*free.values()):
        chosen: dict[str, Any] = dict(zip(free, values, strict=True))
        settings = replace(plan, **chosen)
        changes = tuple((name, _written(value)) for name, value in chosen.items() if value != getattr(plan, name))
        found.setdefault(settings, Candidate(settings, changes))
    return tuple(found.values())


def _axes(plan: Settings, usable_cores: int, all_layers: int) -> Iterator[tuple[str, tuple[int | bool, ...]]]:
    threads = {max(1, round(usable_cores * share)) for share in _SHARES}
    yield "n_threads", tuple(sorted({*threads, plan.n_threads}))
    yield "n_threads_batch", tuple(sorted({*threads, plan.n_threads_batch}))
    if plan.n_ubatch < plan.n_batch or plan.n_ubatch in _BATCHES:
        yield "n_ubatch", tuple(sorted({plan.n_ubatch, *(size for size in _BATCHES if size <= plan.n_batch)}))
    if plan.type_v in ("f16", "bf16", "f32"):
        yield "flash_attn", (True, False)
    if plan.devices and len(plan.devices) == 1:
        layers = {plan.n_gpu_layers, all_layers, all_layers // 2, all_layers * 3 // 4}
        yield "n_gpu_layers", tuple(sorted(layers - {0}))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
