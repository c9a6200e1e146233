"""Every sensible setting for one request, priced once.

The set depends on the model, the machine and the request, never on the magnitude: choosing at a magnitude, the
curve over magnitudes and the needed magnitude are filters over one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.magnitude import magnitude_of_bytes, magnitude_of_threads
from magnitude_tune.request import LoadMode, Settings, Workload
from magnitude_tune.resolver.placements import Placement, placements
from magnitude_tune.resolver.subject import Subject

__all__ = ["TIE", "Base", "Candidate", "Search", "Shape", "Table", "build_table", "thread_counts"]

UBATCHES: Final = (64, 128, 256, 512, 1024, 2048)
BATCH: Final = 512
"""n_batch is at least this, so that only ubatches beyond it move it."""

TIE: Final = 0.03
"""Rows within 3 % of the best turn time count as equally fast."""

_EVERY_COUNT_UP_TO: Final = 16


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


def thread_counts(usable: int) -> tuple[int, ...]:
    """Thread counts worth pricing: all up to 16, then four to an octave, and all usable cores."""
    counts = set(range(1, min(usable, _EVERY_COUNT_UP_TO) + 1))
    step = _EVERY_COUNT_UP_TO
    while step < usable:
        counts.update(range(step, min(2 * step, usable) + 1, step // 4))
        step *= 2
    counts.add(usable)
    return tuple(sorted(counts))


class Search(NamedTuple):
    """What the candidates are made for."""

    subject: Subject
    workload: Workload
    pins: Mapping[str, int | str | bool]


def build_table(search: Search, shape: Shape) -> Table:
    """Price every candidate of one shape."""
    totals = tuple(search.subject.machine.pool(name).total_bytes for name in search.subject.footprint.pools)
    bases = tuple(_price(search, settings, totals) for settings in _bases(search, shape))
    rows = tuple(_rows(search, bases))
    return Table(shape, search.subject.footprint.pools, bases, rows)


def _price(search: Search, settings: Settings, totals: tuple[int, ...]) -> Base:
    reserved = search.subject.footprint.reserved(settings)
    mu = max(magnitude_of_bytes(n_bytes, total) for n_bytes, total in zip(reserved, totals, strict=True))
    return Base(settings, reserved, search.subject.footprint.reserved_by_device(settings), mu)


def _bases(search: Search, shape: Shape) -> Iterator[Settings]:
    for placement in placements(search.subject.header, search.subject.machine, search.pins):
        for flash_attn in _flash_attention(search, shape, placement):
            for repack in _repacking(search, placement):
                for load_mode in _load_modes(search):
                    for n_batch, n_ubatch in _batches(search, shape):
                        yield Settings(
                            n_gpu_layers=placement.n_gpu_layers,
                            n_threads=1,
                            n_threads_batch=1,
                            n_batch=n_batch,
                            n_ubatch=n_ubatch,
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
    if shape.type_v not in ("f32", "f16", "bf16"):
        return (True,)
    if (pinned := search.pins.get("flash_attn")) is not None:
        return (bool(pinned),)
    return (True,) if placement.n_gpu_layers else (True, False)


def _repacking(search: Search, placement: Placement) -> tuple[bool, ...]:
    """Off; on too where the engine has layouts to repack into and the CPU keeps layers."""
    possible = bool(extra_buffers(search.subject.engine, search.subject.machine.cpu))
    if (pinned := search.pins.get("repack")) is not None:
        return (bool(pinned) and possible,)
    keeps_layers = placement.n_gpu_layers < search.subject.header.all_layers or placement.n_cpu_moe > 0
    return (False, True) if possible and keeps_layers else (False,)


def _load_modes(search: Search) -> tuple[LoadMode, ...]:
    pinned = search.pins.get("load_mode")
    if pinned is not None:
        return ("mmap",) if pinned == "mmap" else ("none",)
    return ("mmap", "none")


def _free_batches(header: ModelHeader, shape: Shape) -> tuple[tuple[int, int], ...]:
    """Pairs (n_batch, n_ubatch). An embedding model reads each input in one piece, so both hold a slot's context."""
    per_slot = shape.n_ctx if shape.kv_unified else max(1, shape.n_ctx // shape.n_parallel)
    if not header.causal:
        return ((per_slot, per_slot),)
    sizes = sorted({min(size, shape.n_ctx) for size in UBATCHES})
    return tuple((max(size, min(BATCH, shape.n_ctx)), size) for size in sizes)


def _batches(search: Search, shape: Shape) -> tuple[tuple[int, int], ...]:
    """Pairs (n_batch, n_ubatch) with 1 <= n_ubatch <= n_batch <= n_ctx, pins kept."""
    pairs = _free_batches(search.subject.header, shape)
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


def _rows(search: Search, bases: tuple[Base, ...]) -> Iterator[Candidate]:
    """All rows: each base with each pair of thread counts, times looked up once per setting that changes them."""
    usable = search.subject.machine.cpu.usable_cores
    pairs = _ThreadPairs(search, thread_counts(usable))
    n_gen, n_prompt = search.workload.n_gen, search.workload.n_prompt
    mu_of = {n: magnitude_of_threads(n, usable) for n in pairs.counts}
    for index, base in enumerate(bases):
        pp = pairs.pp_seconds(base.settings, n_prompt)
        reserved = sum(base.reserved)
        for n_threads, n_threads_batch, tg in pairs.decoding(base.settings):
            turn_seconds = pp[n_threads_batch] + n_gen * tg
            mu = max(base.mu, mu_of[max(n_threads, n_threads_batch)])
            yield Candidate(turn_seconds, index, mu, n_threads, n_threads_batch, reserved)


class _ThreadPairs:
    """Thread counts to price, and times per count, remembered by the settings that they depend on."""

    def __init__(self, search: Search, counts: tuple[int, ...]) -> None:
        self._speed = search.subject.speed
        self._decoding: dict[tuple[object, ...], tuple[tuple[int, int, float], ...]] = {}
        self._pp: dict[tuple[object, ...], dict[int, float]] = {}
        pinned = search.pins
        self._threads = (int(pinned["n_threads"]),) if "n_threads" in pinned else counts
        self._threads_batch = (int(pinned["n_threads_batch"]),) if "n_threads_batch" in pinned else counts
        self._free = "n_threads" not in pinned and "n_threads_batch" not in pinned
        self.counts = tuple(sorted({*self._threads, *self._threads_batch}))

    def decoding(self, settings: Settings) -> tuple[tuple[int, int, float], ...]:
        """Pairs of decode and prompt threads to price, with the seconds a token takes; a single token sees no batch."""
        key = _placed(settings)
        if key not in self._decoding:
            tg = {n: self._speed.tg_seconds(settings, n) for n in self._threads}
            self._decoding[key] = tuple((t, tb, tg[t]) for t, tb in self._pairs(tg))
        return self._decoding[key]

    def _pairs(self, tg: Mapping[int, float]) -> Iterator[tuple[int, int]]:
        """For each count of prompt threads the decode threads that are fastest, and the fewest nearly as fast.

        Any other pair with that count is slower and takes more threads than one of these.
        """
        if not self._free:
            yield from ((t, tb) for t in self._threads for tb in self._threads_batch)
            return
        for position, count in enumerate(self._threads):
            tried = self._threads[: position + 1]
            best = min(tg[t] for t in tried)
            fastest = next(t for t in tried if tg[t] <= best * (1 + 1e-9))
            fewest = next(t for t in tried if tg[t] <= best * (1 + TIE))
            yield fastest, count
            if fewest != fastest:
                yield fewest, count

    def pp_seconds(self, settings: Settings, n_prompt: int) -> dict[int, float]:
        """Seconds to read the prompt, by prompt threads."""
        key = (*_placed(settings), settings.n_batch, settings.n_ubatch)
        if key not in self._pp:
            self._pp[key] = {n: self._speed.pp_seconds(settings, n, n_prompt) for n in self._threads_batch}
        return self._pp[key]


def _placed(settings: Settings) -> tuple[object, ...]:
    """What speed depends on in any phase; how the file is loaded changes none of it."""
    return (
        settings.n_gpu_layers,
        settings.devices,
        settings.n_cpu_moe,
        settings.repack,
        settings.flash_attn,
    )
