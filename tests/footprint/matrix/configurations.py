"""Configurations in which every pair of values of two settings occurs at least once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any, Final, Literal, NamedTuple

from magnitude_tune.request import Settings

__all__ = ["Configuration", "EngineKind", "configurations", "settings_of"]

EngineKind = Literal["embedded", "server"]
Row = tuple[tuple[str, Any], ...]

_AXES: Final[dict[str, tuple[Any, ...]]] = {
    "n_ctx": (512, 1000, 2048, 5000, 8192, 12345, 32768),
    "n_ubatch": (32, 100, 256, 512, 1024, 2048),
    "kv": (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0")),
    "flash_attn": (True, False),
    "slots": ((1, False), (4, False), (4, True)),
    "repack": (False, True),
    "load_mode": ("mmap", "none"),
    "shape": ("small", "large"),
}
# The embedded engine has no device here.
_DEVICE_AXES: Final[dict[str, tuple[Any, ...]]] = {
    "layers": ("none", "one", "half", "all"),
    "n_devices": (1, 2),
}


class Configuration(NamedTuple):
    """One row: the shape of the model, and settings of which `layers` is still a word."""

    shape: Literal["small", "large"]
    changes: Mapping[str, Any]

    def settings(self, block_count: int) -> Settings:
        """Complete settings for a model with that many blocks."""
        return settings_of(block_count, **self.changes)


def configurations(engine: EngineKind) -> tuple[Configuration, ...]:
    """All pairs of values, about 40 rows; the same ones each time."""
    axes = _AXES if engine == "embedded" else {**_AXES, **_DEVICE_AXES}
    rows = [dict(row) for row in _all_pairs(axes)]
    return tuple(Configuration(row.pop("shape"), row) for row in rows)


def settings_of(
    block_count: int,
    *,
    n_ctx: int = 4096,
    n_ubatch: int = 512,
    kv: tuple[str, str] = ("f16", "f16"),
    flash_attn: bool = True,
    slots: tuple[int, bool] = (1, False),
    repack: bool = False,
    load_mode: Literal["mmap", "none"] = "mmap",
    layers: str = "none",
    n_devices: int = 1,
) -> Settings:
    """Settings in the words of the axes; `layers` is none, one, half or all."""
    n_gpu_layers = {"none": 0, "one": 1, "half": block_count // 2 + 1, "all": block_count + 1}[layers]
    names = tuple(f"RPC{index}" for index in range(min(n_devices, n_gpu_layers)))
    first = (n_gpu_layers + 1) // 2
    return Settings(
        n_gpu_layers=n_gpu_layers,
        n_threads=2,
        n_threads_batch=2,
        n_batch=2048,
        n_ubatch=n_ubatch,
        n_ctx=n_ctx,
        n_parallel=slots[0],
        kv_unified=slots[1],
        flash_attn=flash_attn,
        type_k=kv[0],
        type_v=kv[1],
        load_mode=load_mode,
        repack=repack,
        devices=names,
        tensor_split=(first, n_gpu_layers - first) if len(names) > 1 else (),
    )


def _can_be(chosen: Mapping[str, Any]) -> bool:
    """Rules of the engine: a quantised V cache needs flash attention; two devices need more than one layer."""
    if chosen.get("flash_attn") is False and chosen.get("kv", ("f16", "f16"))[1] != "f16":
        return False
    return not (chosen.get("n_devices", 1) > 1 and chosen.get("layers") in ("none", "one"))


def _all_pairs(axes: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Greedy: each row starts from a pair that no row has yet, and takes for each other axis what covers most."""
    order = {name: index for index, name in enumerate(axes)}
    open_pairs = {
        ((one, a), (two, b)): None
        for one, two in combinations(axes, 2)
        for a, b in product(axes[one], axes[two])
        if _can_be({one: a, two: b})
    }
    rows: list[Row] = []
    while open_pairs:
        chosen = dict(next(iter(open_pairs)))
        for name, values in axes.items():
            if name not in chosen:
                possible = [value for value in values if _can_be({**chosen, name: value})]
                # Among equals another value each row.
                shift = len(rows) % len(possible)
                gain = partial(_gain, chosen, name, open_pairs, order)
                chosen[name] = max(possible[shift:] + possible[:shift], key=gain)
        rows.append(tuple(sorted(chosen.items(), key=lambda item: order[item[0]])))
        for pair in _pairs(rows[-1]):
            open_pairs.pop(pair, None)
    return rows


def _gain(
    chosen: Mapping[str, Any], name: str, open_pairs: Mapping[Any, None], order: Mapping[str, int], value: Any
) -> int:
    """How many open pairs the value makes with what is chosen."""
    row = sorted([*chosen.items(), (name, value)], key=lambda item: order[item[0]])
    return sum((name, value) in pair and pair in open_pairs for pair in _pairs(row))


def _pairs(row: Iterable[tuple[str, Any]]) -> combinations[tuple[str, Any]]:
    return combinations(row, 2)
