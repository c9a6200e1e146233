"""The table of one shape: every candidate priced once, without those that another is never worse than."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from magnitude_tune.magnitude import MAX_MAGNITUDE, magnitude_of_bytes, magnitude_of_threads
from magnitude_tune.request import Settings
from magnitude_tune.resolver.candidates import (
    MU_SLACK,
    TIE,
    Base,
    Candidate,
    Family,
    Search,
    Shape,
    Table,
    candidate_families,
)

__all__ = ["build_table", "thread_counts"]

_EVERY_COUNT_UP_TO: Final = 16


def thread_counts(usable: int) -> tuple[int, ...]:
    """Thread counts worth pricing: all up to 16, then four to an octave, and all usable cores."""
    counts = set(range(1, min(usable, _EVERY_COUNT_UP_TO) + 1))
    step = _EVERY_COUNT_UP_TO
    while step < usable:
        counts.update(range(step, min(2 * step, usable) + 1, step // 4))
        step *= 2
    counts.add(usable)
    return tuple(sorted(counts))


class _Priced(NamedTuple):
    """A base with its times: a token's for each pair of thread counts, the prompt's for each count."""

    base: Base
    decoding: tuple[tuple[int, int, float], ...]
    prompt: Mapping[int, float]

    def never_worse_than(self, other: _Priced) -> bool:
        """Whether this one takes no more of any pool or device, and is as fast with every pair of thread counts."""
        return (
            _takes_no_more(self.base, other.base)
            and self.decoding == other.decoding
            and all(seconds <= other.prompt[count] for count, seconds in self.prompt.items())
        )


def _takes_no_more(one: Base, other: Base) -> bool:
    return all(map(int.__le__, one.reserved, other.reserved)) and all(map(int.__le__, one.by_device, other.by_device))


def build_table(search: Search, shape: Shape, *, beyond: bool = False) -> Table:
    """Price every candidate of one shape.

    Left out is what no magnitude and no limit would choose: what is larger than any magnitude allows, a base that an
    earlier one of its family is never worse than, and threads that gain nothing. Everything on the CPU and everything
    offloaded stay in whatever their size: they say what is missing.

    Args:
        beyond: keep what is larger than any magnitude allows; so it is done too where nothing else is left.
    """
    pricing = _Pricing(search, beyond=beyond)
    bases: list[Base] = []
    rows: list[Candidate] = []
    for family in candidate_families(search, shape):
        for priced in pricing.worth_keeping(family):
            rows += pricing.rows(priced, len(bases))
            bases.append(priced.base)
    if not rows and not beyond:
        return build_table(search, shape, beyond=True)
    return Table(shape, search.subject.footprint.pools, tuple(bases), tuple(rows))


class _Pricing:
    """Bytes, times and magnitudes of one search's candidates."""

    def __init__(self, search: Search, *, beyond: bool) -> None:
        self._beyond = beyond
        self._n_all = search.subject.header.all_layers
        self._footprint = search.subject.footprint
        self._totals = tuple(search.subject.machine.pool(name).total_bytes for name in self._footprint.pools)
        self._n_prompt, self._n_gen = search.workload.n_prompt, search.workload.n_gen
        usable = search.subject.machine.cpu.usable_cores
        self._pairs = _ThreadPairs(search, thread_counts(usable))
        self._mu_of = {n: magnitude_of_threads(n, usable) for n in self._pairs.counts}

    def worth_keeping(self, family: Family) -> list[_Priced]:
        """The family's candidates without those too large for any magnitude, or never better than another.

        Batches only grow: where the smallest is too large, all are. How weights are loaded changes no time, and bytes
        of weights only, whatever the batch: one comparison decides.
        """
        kept: list[_Priced] = []
        for batches in family:
            first = kept[0].base if kept else None
            for settings in batches:
                fitting = [base for base in map(self._base, settings) if self._can_be_held(base)]
                if not fitting or (first is not None and _takes_no_more(first, fitting[0])):
                    break
                first = None
                for base in fitting:
                    priced = self._timed(base)
                    if not any(other.never_worse_than(priced) for other in kept):
                        kept.append(priced)
        return kept

    def _can_be_held(self, base: Base) -> bool:
        settings = base.settings
        outermost = settings.n_gpu_layers == 0 or (settings.n_gpu_layers == self._n_all and settings.n_cpu_moe == 0)
        return self._beyond or outermost or base.mu <= MAX_MAGNITUDE + MU_SLACK

    def _timed(self, base: Base) -> _Priced:
        settings = base.settings
        return _Priced(base, self._pairs.decoding(settings), self._pairs.pp_seconds(settings, self._n_prompt))

    def _base(self, settings: Settings) -> Base:
        reserved = self._footprint.reserved(settings)
        mu = max(map(magnitude_of_bytes, reserved, self._totals))
        return Base(settings, reserved, self._footprint.reserved_by_device(settings), mu)

    def rows(self, priced: _Priced, index: int) -> Iterator[Candidate]:
        """The base with each pair of thread counts, but for pairs with no fewer threads than one as fast."""
        base, prompt, n_gen = priced.base, priced.prompt, self._n_gen
        reserved = sum(base.reserved)
        fastest: Candidate | None = None
        for n_threads, n_threads_batch, tg in priced.decoding:
            turn_seconds = prompt[n_threads_batch] + n_gen * tg
            if fastest is not None and _gains_nothing(fastest, turn_seconds, n_threads, n_threads_batch):
                continue
            mu = max(base.mu, self._mu_of[max(n_threads, n_threads_batch)])
            row = Candidate(turn_seconds, index, mu, n_threads, n_threads_batch, reserved)
            if fastest is None or turn_seconds < fastest.turn_seconds:
                fastest = row
            yield row


def _gains_nothing(row: Candidate, turn_seconds: float, n_threads: int, n_threads_batch: int) -> bool:
    return turn_seconds >= row.turn_seconds and n_threads >= row.n_threads and n_threads_batch >= row.n_threads_batch


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
        settings.tensor_split,
        settings.n_cpu_moe,
        settings.repack,
        settings.flash_attn,
    )
