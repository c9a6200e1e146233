"""The matrix as a dated page: sums by architecture and term, and every miss with its cause."""

from __future__ import annotations

import datetime
import platform
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from footprint.matrix.comparison import Cell
from footprint.matrix.engines import here
from footprint.matrix.whole import Outcome, Results

from magnitude_tune.units import MIB

__all__ = ["cause_of", "known_causes", "write_table"]

_CAUSES: Final = Path(__file__).with_name("causes.toml")
_FEATURES: Final = ("avx2", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm", "sve")

_FOLDERS: Final = re.compile(r"\S*/(?=[^/\s])")
_MOST_SAID: Final = 160
_RULE: Final = (
    "A cell is one term on one device. Weights, caches and repacked copies hit where they equal the printed figure;"
    " compute and output where they are within 5 % or 0.25 MiB and not more than 2 % under."
)


def write_table(results: Results, *, command: str) -> str:
    """The page as Markdown."""
    causes = known_causes()
    cells = [(outcome, cell) for outcome in results.outcomes for cell in outcome.cells]
    hits = sum(cell.hit for _, cell in cells)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    features = here(0).cpu.features
    shown = ", ".join(name for name in _FEATURES if name in features) or "none"
    share = 100 * hits / max(1, len(cells))
    lines = [
        "# Footprint: predicted and printed",
        "",
        f"Made on {today} by `{command}`.",
        "",
        f"- engines: {'; '.join(results.engines)}",
        f"- magnitude-tune {version('magnitude-tune')}, Python {platform.python_version()}, gguf {version('gguf')}",
        f"- processor: {platform.machine()} with {shown}; layouts for repacking: {'; '.join(results.layouts)}",
        f"- {len(results.outcomes)} configurations, {len(cells)} cells, {hits} hits ({share:.1f} %)",
        *_repetitions(results),
        "",
        _RULE,
        "",
        "| architecture | engine | term | cells | hits | misses | worst error |",
        "|---|---|---|---|---|---|---|",
        *_sums(results.outcomes),
        "",
        "## Misses",
        "",
        *_misses(cells, causes),
        *_refusals(results.outcomes, causes),
    ]
    return "\n".join(lines) + "\n"


def _repetitions(results: Results) -> Iterator[str]:
    if results.repeated:
        same = results.repeated - len(results.differing)
        yield (
            "- the server's libraries are driven by a child; llama-server itself, started for"
            f" {results.repeated} of the configurations, printed the same figures in {same}"
        )
    for name in results.differing:
        yield f"- llama-server printed other figures for {name}"


def known_causes() -> list[dict[str, Any]]:
    """Rows of `causes.toml`."""
    rows: list[dict[str, Any]] = tomllib.loads(_CAUSES.read_text(encoding="utf-8")).get("cause", [])
    return rows


def cause_of(outcome: Outcome, cell: Cell | None, causes: Sequence[dict[str, Any]]) -> str:
    """The first known cause whose architectures, engine, term and settings all fit; a question mark where none does."""
    about = {
        "architecture": outcome.architecture,
        "engine": outcome.engine,
        "term": cell.term if cell else "refusal",
        "device": cell.device if cell else "",
        "shape": outcome.configuration.shape,
        **outcome.configuration.changes,
    }
    for cause in causes:
        wanted = {name: value for name, value in cause.items() if name != "because"}
        if all(_fits(about.get(name), value) for name, value in wanted.items()):
            return str(cause["because"])
    return "?"


def _fits(value: Any, wanted: Any) -> bool:
    plain = list(value) if isinstance(value, tuple) else value
    return plain == wanted or (isinstance(wanted, list) and plain in wanted)


def _sums(outcomes: Sequence[Outcome]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for outcome in outcomes:
        for cell in outcome.cells:
            groups[outcome.architecture, outcome.engine, cell.term].append(cell)
    for (architecture, engine, term), cells in groups.items():
        hits = sum(cell.hit for cell in cells)
        worst = max(cells, key=lambda cell: (not cell.hit, abs(cell.error) / max(1, cell.actual)))
        yield (
            f"| {architecture} | {engine} | {term} | {len(cells)} | {hits} | {len(cells) - hits} | {_error(worst)} |"
        )


def _error(cell: Cell) -> str:
    if not cell.error:
        return "0"
    share = f" ({100 * cell.error / cell.actual:+.1f} %)" if cell.actual else ""
    return f"{cell.error / MIB:+.2f} MiB{share}"


def _misses(cells: Sequence[tuple[Outcome, Cell]], causes: Sequence[dict[str, Any]]) -> Iterator[str]:
    missed = [(outcome, cell) for outcome, cell in cells if not cell.hit]
    if not missed:
        yield "None."
        return
    yield "| architecture | engine | configuration | device | term | predicted MiB | printed MiB | error | cause |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for outcome, cell in missed:
        figures = f"{cell.predicted / MIB:.2f} | {cell.actual / MIB:.2f} | {_error(cell)}"
        yield (
            f"| {outcome.architecture} | {outcome.engine} | {_words(outcome)} | {cell.device} | {cell.term} | {figures}"
            f" | {cause_of(outcome, cell, causes)} |"
        )


def _refusals(outcomes: Sequence[Outcome], causes: Sequence[dict[str, Any]]) -> Iterator[str]:
    refused = [outcome for outcome in outcomes if outcome.refusal]
    if not refused:
        return
    yield from ("", "## Configurations that the engine refused", "")
    yield "| architecture | engine | configurations | what it said, for instance | cause |"
    yield "|---|---|---|---|---|"
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in refused:
        groups[outcome.architecture, outcome.engine, cause_of(outcome, None, causes)].append(outcome)
    for (architecture, engine, cause), group in groups.items():
        yield f"| {architecture} | {engine} | {len(group)} | {_said(group[0].refusal or '')} | {cause} |"


def _said(refusal: str) -> str:
    """The beginning of what the engine said, without the folders of the machine that built it."""
    words = _FOLDERS.sub("", " ".join(refusal.split()))
    return words[:_MOST_SAID].replace("|", "/")


def _words(outcome: Outcome) -> str:
    changes = outcome.configuration.changes
    words = [
        f"{name} {'/'.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in changes.items()
    ]
    return ", ".join([outcome.configuration.shape, *words])
