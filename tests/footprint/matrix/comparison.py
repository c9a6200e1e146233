"""What was predicted beside what an engine printed, term by term and device by device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from footprint.matrix.engines import Library, Loaded, here

from magnitude_tune.engines.rpc import device_of_buffer
from magnitude_tune.engines.values import BufferLine
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint, FootprintModel
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

__all__ = ["Cell", "Predictor", "compare", "printed_lines"]

_TERMS: Final = {"kv": "kv_cache", "recurrent": "recurrent_state", "compute": "compute", "output": "output"}
_EXACT: Final = ("weights", "repacked", "kv_cache", "recurrent_state")
_ALL_TERMS: Final = (*_EXACT, "compute", "output")
_REPACKED: Final = frozenset({"AMX", "CPU_REPACK", "CPU_KLEIDIAI"})
# Printed when a context ends: to four digits.
_FINE: Final = re.compile(r"(\S+) compute buffer size is\s+([0-9.]+) MiB, matches expectation")


class Cell(NamedTuple):
    """One term of one device; bytes. `slack` is how far the printed figure may be from the true one."""

    device: str
    term: str
    predicted: int
    actual: int
    slack: int

    @property
    def error(self) -> int:
        """Predicted minus actual, 0 where the printed digits cannot tell."""
        difference = self.predicted - self.actual
        return 0 if abs(difference) <= self.slack else difference

    @property
    def hit(self) -> bool:
        """Weights, caches and copies equal; compute and output within 5 % or 0.25 MiB, never 2 % under."""
        if self.term in _EXACT or not self.error:
            return not self.error
        close = abs(self.error) <= max(0.05 * self.actual, MIB // 4)
        return close and self.predicted + self.slack >= 0.98 * self.actual


class Predictor:
    """Footprints of one engine's plans, models read once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[Path, tuple[ModelHeader, FootprintModel]] = {}

    def header(self, model: Path) -> ModelHeader:
        """The model's header."""
        return self._prepared(model)[0]

    def footprint(self, model: Path, settings: Settings) -> Footprint:
        """All terms."""
        return self._prepared(model)[1].footprint(settings)

    def _prepared(self, model: Path) -> tuple[ModelHeader, FootprintModel]:
        if model not in self._known:
            header = read_model(model)
            machine = here(0 if self._library.kind == "embedded" else 2)
            self._known[model] = header, footprint_model(header, machine, self._library.facts)
        return self._known[model]


def compare(footprint: Footprint, loaded: Loaded) -> tuple[Cell, ...]:
    """A cell for each term and device of which either side knows."""
    predicted: Counter[tuple[str, str]] = Counter()
    for term in footprint.terms:
        if term.name in _ALL_TERMS:
            # The engine prints what it maps of the file, which may be more or less than the plan must hold.
            mapped = term.name == "weights"
            predicted[term.device, term.name] += term.resident_bytes if mapped else term.reserved_bytes
    actual: Counter[tuple[str, str]] = Counter()
    slack: Counter[tuple[str, str]] = Counter()
    for place, n_bytes, precision in _printed(loaded):
        actual[place] += n_bytes
        slack[place] += precision
    places = sorted({*predicted, *actual}, key=lambda place: (place[0], _ALL_TERMS.index(place[1])))
    return tuple(
        Cell(*place, predicted[place], actual[place], slack[place])
        for place in places
        if predicted[place] or actual[place]
    )


def printed_lines(loaded: Loaded) -> tuple[tuple[str, str, int], ...]:
    """Device, buffer kind and bytes of every line, sorted: the same for the same allocations."""
    lines = ((_device_of(line.buffer, loaded.rpc), line.kind, line.n_bytes) for line in loaded.buffers)
    return tuple(sorted(lines))


def _printed(loaded: Loaded) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Device and term, bytes, and half a unit of the last digit, of each buffer line."""
    fine = _fine_sizes(loaded.log)
    for line in loaded.buffers:
        place = _device_of(line.buffer, loaded.rpc), _term_of(line)
        if line.kind == "compute" and line.buffer in fine:
            yield place, fine[line.buffer], MIB // 20_000 + 1
        else:
            yield place, line.n_bytes, MIB // 200 + 1


def _device_of(buffer: str, rpc: tuple[str, ...]) -> str:
    address = buffer.partition("[")[2].rstrip("]")
    return f"RPC{rpc.index(address)}" if address in rpc else device_of_buffer(buffer)


def _fine_sizes(log: str) -> Mapping[str, int]:
    return {buffer: round(float(size) * MIB) for buffer, size in _FINE.findall(log)}


def _term_of(line: BufferLine) -> str:
    if line.kind == "model":
        return "repacked" if line.buffer in _REPACKED else "weights"
    return _TERMS[line.kind]
