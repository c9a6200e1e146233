"""Every sensible setting for one request.

The set depends on the model, the machine and the request, never on the magnitude: choosing at a magnitude, the
curve over magnitudes and the needed magnitude are filters over one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS
from magnitude_tune.header.values import Attention, ModelHeader
from magnitude_tune.request import PLAIN_KV_TYPES, LoadMode, Settings, Workload, layers_per_device
from magnitude_tune.resolver.placements import Group, Placement, device_groups
from magnitude_tune.resolver.subject import Subject

if TYPE_CHECKING:
    from magnitude_tune.resolver.splits import Splits

__all__ = [
    "MU_SLACK",
    "TIE",
    "Base",
    "Candidate",
    "Family",
    "Search",
    "Shape",
    "Table",
    "can_repack",
    "candidate_families",
]

UBATCHES: Final = (64, 128, 256, 512, 1024, 2048)
BATCH: Final = 512
"""n_batch is at least this, so that only ubatches beyond it move it."""

MU_SLACK: Final = 1e-9
"""A candidate's magnitude may exceed the one that is asked for by no more than rounding."""

TIE: Final = 0.03
"""Rows within 3 % of the best turn time count as equally fast."""


class Shape(NamedTuple):
    """What answers depend on: context, slots and KV types. Only a concession changes it."""

    n_ctx: int
    n_parallel: int
    kv_unified: bool
    type_k: str = "f16"
    type_v: str = "f16"
    concessions: tuple[str, ...] = ()


class Base(NamedTuple):
    """Settings but for threads, with what they reserve: bytes per pool and per capped device."""

    settings: Settings
    reserved: tuple[int, ...]
    by_device: tuple[int, ...]
    mu: float


class Candidate(NamedTuple):
    """One row of the table: a base with a pair of thread counts. `reserved` is the sum over pools, in bytes."""

    turn_seconds: float
    base: int
    mu: float
    n_threads: int
    n_threads_batch: int
    reserved: int


class Table(NamedTuple):
    """The priced candidates of one shape."""

    shape: Shape
    pools: tuple[str, ...]
    bases: tuple[Base, ...]
    rows: tuple[Candidate, ...]

    def settings(self, row: Candidate) -> Settings:
        """The complete settings of a row."""
        base = self.bases[row.base].settings
        return replace(base, n_threads=row.n_threads, n_threads_batch=row.n_threads_batch)


class Search(NamedTuple):
    """What the candidates are made for."""

    subject: Subject
    workload: Workload
    pins: Mapping[str, int | str | bool]


Family = tuple[Iterator[list[Settings]], ...]
"""Candidates of one placement: for each load mode, for each size of batch from the smallest on, each split."""


def candidate_families(search: Search, shape: Shape) -> Iterator[Family]:
    """Every setting worth pricing, for one thread.

    Everything on the CPU first, then each sensible number of layers, and of blocks whose experts stay on the CPU, on
    each sensible set of devices.
    """
    machine, pins = search.subject.machine, search.pins
    wanted = pins.get("n_gpu_layers")
    if wanted is None or int(wanted) == 0 or not machine.devices:
        yield from _families(search, shape, None, [(0, 0)])
    pairs: dict[str, tuple[tuple[int, int], ...]] = {}
    for group in device_groups(machine, pins) if machine.devices else ():
        name = group.devices[0].name
        if name not in pairs:
            pairs[name] = _pairs(search, shape, name)
        yield from _families(search, shape, group, pairs[name])


def _pairs(search: Search, shape: Shape, device: str) -> tuple[tuple[int, int], ...]:
    """Pairs of n_gpu_layers (from 1) and n_cpu_moe, pins kept; the first device stands for its group."""
    header, pins = search.subject.header, search.pins
    wanted, pinned = pins.get("n_gpu_layers"), pins.get("n_cpu_moe")
    counts = [n for n in range(1, header.all_layers + 1) if wanted is None or n == min(int(wanted), header.all_layers)]
    if header.moe is None or pinned is not None:
        n_cpu_moe = 0 if header.moe is None else min(int(pinned or 0), header.block_count)
        return tuple((n_gpu_layers, n_cpu_moe) for n_gpu_layers in counts)
    # Imported here, and below: a machine without accelerators, or a model without experts, needs neither.
    from magnitude_tune.resolver.experts import expert_pairs
    from magnitude_tune.resolver.splits import LayerBytes

    speed, workload, threads = search.subject.speed, search.workload, search.subject.machine.cpu.usable_cores
    template = _template(search, shape, device)

    def turn_seconds(n_gpu_layers: int, n_cpu_moe: int) -> float:
        settings = replace(template, n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe)
        tg_seconds = speed.tg_seconds(settings, threads)
        return speed.pp_seconds(settings, threads, workload.n_prompt) + workload.n_gen * tg_seconds

    return expert_pairs(LayerBytes(search.subject.footprint, template, device, header), counts, turn_seconds)


def _template(search: Search, shape: Shape, device: str) -> Settings:
    """Everything on one device, with the largest batch."""
    placement = Placement(search.subject.header.all_layers, (device,))
    flash_attn = _flash_attention(search, shape, placement)[0]
    return _settings(search, shape, placement, _batches(search, shape)[-1], (flash_attn, False, "mmap"))


def _families(search: Search, shape: Shape, group: Group | None, pairs: Iterable[tuple[int, int]]) -> Iterator[Family]:
    splits = None
    if group is not None and len(group.devices) > 1 and not group.shares:
        from magnitude_tune.resolver.splits import LayerBytes, Splits

        name, header = group.devices[0].name, search.subject.header
        layers = LayerBytes(search.subject.footprint, _template(search, shape, name), name, header)
        splits = Splits(layers, search.subject.machine, group.devices)
    batches = _batches(search, shape)
    for n_gpu_layers, n_cpu_moe in pairs:
        placement = Placement(n_gpu_layers, group.names if group else (), (), n_cpu_moe)
        placed = [
            (pair, [placement._replace(tensor_split=split) for split in _splits(placement, group, splits, pair)])
            for pair in batches
        ]
        for flash_attn in _flash_attention(search, shape, placement):
            for repack in _repacking(search, placement, group):
                yield tuple(
                    _batchwise(search, shape, placed, (flash_attn, repack, load_mode))
                    for load_mode in _load_modes(search)
                )


def _batchwise(
    search: Search,
    shape: Shape,
    placed: Iterable[tuple[tuple[int, int], Iterable[Placement]]],
    how: tuple[bool, bool, LoadMode],
) -> Iterator[list[Settings]]:
    for pair, placements in placed:
        yield [_settings(search, shape, placement, pair, how) for placement in placements]


def _splits(
    placement: Placement, group: Group | None, splits: Splits | None, batches: tuple[int, int]
) -> Iterable[tuple[int, ...]]:
    """Layers per device where there are several, each at least one: fewer devices are a group of their own."""
    if splits is not None:
        return splits.of(placement.n_gpu_layers, placement.n_cpu_moe, batches)
    if group is None or len(group.devices) < 2:
        return ((),)
    pinned = layers_per_device(placement.n_gpu_layers, group.shares)
    return (pinned,) if min(pinned) > 0 else ()


def _settings(
    search: Search, shape: Shape, placement: Placement, batches: tuple[int, int], how: tuple[bool, bool, LoadMode]
) -> Settings:
    flash_attn, repack, load_mode = how
    return Settings(
        n_gpu_layers=placement.n_gpu_layers,
        n_threads=1,
        n_threads_batch=1,
        n_batch=batches[0],
        n_ubatch=batches[1],
        n_ctx=shape.n_ctx,
        n_parallel=shape.n_parallel,
        kv_unified=shape.kv_unified,
        flash_attn=flash_attn,
        type_k=shape.type_k,
        type_v=shape.type_v,
        load_mode=load_mode,
        repack=repack,
        n_cpu_moe=placement.n_cpu_moe,
        devices=placement.devices,
        tensor_split=placement.tensor_split,
        main_gpu=_main_gpu(search, placement),
    )


def _main_gpu(search: Search, placement: Placement) -> int:
    """The pinned number, where there is such a device."""
    number = int(search.pins.get("main_gpu", 0))
    return number if number < len(placement.devices) else 0


def _flash_attention(search: Search, shape: Shape, placement: Placement) -> tuple[bool, ...]:
    """On where the architecture allows it; off is worth pricing only where the CPU does the attention.

    A quantised V cache needs it on (the engine refuses to start otherwise).
    """
    if not search.subject.header.flash_attn:
        return (False,)
    if shape.type_v not in PLAIN_KV_TYPES:
        return (True,)
    if (pinned := search.pins.get("flash_attn")) is not None:
        return (bool(pinned),)
    return (True,) if placement.n_gpu_layers else (True, False)


def can_repack(subject: Subject) -> bool:
    """Whether the engine has a layout to repack this model's weights into.

    MLA multiplies by stacked matrices that AMX buffers take and then cannot compute with: the engine aborts while it
    makes the context (seen at ggml 0.20.0 and 0.25.3).
    """
    buffers = extra_buffers(subject.engine, subject.machine.cpu)
    return bool(buffers) and not (
        "amx" in buffers and any(layer.attention is Attention.MLA for layer in subject.header.layers)
    )


def _repacking(search: Search, placement: Placement, group: Group | None) -> tuple[bool, ...]:
    """Off; on too where the engine has layouts to repack into and the CPU keeps layers in memory of its own.

    Beside a device with host buffers the CPU's weights lie there, and are never repacked.
    """
    possible = can_repack(search.subject)
    if (pinned := search.pins.get("repack")) is not None:
        return (bool(pinned) and possible,)
    keeps_layers = placement.n_gpu_layers < search.subject.header.all_layers or placement.n_cpu_moe > 0
    pinned_memory = group is not None and any(device.backend in HOST_BUFFER_BACKENDS for device in group.devices)
    return (False, True) if possible and keeps_layers and not pinned_memory else (False,)


def _load_modes(search: Search) -> tuple[LoadMode, ...]:
    pinned = search.pins.get("load_mode")
    if pinned is not None:
        return ("mmap",) if pinned == "mmap" else ("none",)
    return ("mmap", "none")


def _free_batches(header: ModelHeader, shape: Shape, n_prompt: int) -> tuple[tuple[int, int], ...]:
    """Pairs (n_batch, n_ubatch), up to the first that reads the prompt in one piece: larger ones only take memory.

    An embedding model reads each input in one piece, so both hold a slot's context.
    """
    per_slot = shape.n_ctx if shape.kv_unified else max(1, shape.n_ctx // shape.n_parallel)
    if not header.causal:
        return ((per_slot, per_slot),)
    enough = next((size for size in UBATCHES if size >= n_prompt), UBATCHES[-1])
    sizes = sorted({min(size, shape.n_ctx) for size in UBATCHES if size <= enough})
    return tuple((max(size, min(BATCH, shape.n_ctx)), size) for size in sizes)


def _batches(search: Search, shape: Shape) -> tuple[tuple[int, int], ...]:
    """Pairs (n_batch, n_ubatch) with 1 <= n_ubatch <= n_batch <= n_ctx, pins kept."""
    pairs = _free_batches(search.subject.header, shape, search.workload.n_prompt)
    n_batch, n_ubatch = (search.pins.get(name) for name in ("n_batch", "n_ubatch"))
    if n_ubatch is not None:
        size = min(int(n_ubatch), shape.n_ctx)
        pairs = ((max(size, min(BATCH, shape.n_ctx)), size),)
        if not search.subject.header.causal:
            pairs = ((size, size),)
    if n_batch is not None:
        limit = min(int(n_batch), shape.n_ctx)
        kept = tuple((limit, size) for _, size in pairs if size <= limit)
        pairs = kept or ((limit, limit),)
    return pairs
