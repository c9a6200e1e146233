"""The whole matrix: every architecture in every configuration, in parallel children."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import tiny_models
from footprint.matrix.comparison import Cell, Predictor, compare, printed_lines
from footprint.matrix.configurations import Configuration, EngineKind, configurations
from footprint.matrix.engines import Library, real_server_log

from magnitude_tune.errors import MagnitudeTuneError
from magnitude_tune.header.read import read_model

__all__ = ["Outcome", "Results", "run_architecture", "run_matrix"]


class Outcome(NamedTuple):
    """One configuration of one architecture; `refusal` where the engine, or our own code, gave no figures."""

    engine: EngineKind
    architecture: str
    configuration: Configuration
    cells: tuple[Cell, ...]
    lines: tuple[tuple[str, str, int], ...] = ()
    refusal: str | None = None


class Results(NamedTuple):
    """All outcomes, and what they were made with.

    `repeated`: how many configurations the real llama-server was started with, too; `differing` names those of which
    it printed other figures than its libraries driven by a child.
    """

    outcomes: tuple[Outcome, ...]
    engines: tuple[str, ...]
    layouts: tuple[str, ...]
    repeated: int
    differing: tuple[str, ...]


class _Group(NamedTuple):
    outcomes: list[Outcome]
    repeated: int
    differing: list[str]


def run_matrix(
    architectures: Sequence[str], kinds: Sequence[EngineKind], folder: Path, *, jobs: int, n_repeated: int
) -> Results:
    """Every architecture by every engine; `jobs` children work at a time.

    `n_repeated` configurations of each architecture are also given to the real llama-server.
    """

    def work(task: tuple[EngineKind, str]) -> _Group:
        group = _one_architecture(*task, folder, n_repeated)
        missed = sum(not cell.hit for outcome in group.outcomes for cell in outcome.cells)
        sys.stderr.write(f"{task[1]}, {task[0]}: {len(group.outcomes)} configurations, {missed} misses\n")
        return group

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        groups = list(pool.map(work, [(kind, name) for kind in kinds for name in architectures]))
    engines, layouts = [], []
    for kind in kinds:
        with Library(kind) as library:
            facts = library.facts
        engines.append(f"{facts.name} {facts.build} (ggml {facts.ggml_version})")
        layouts.append(f"{facts.name}: {', '.join(facts.extra_buffers) or 'none'}")
    return Results(
        outcomes=tuple(outcome for group in groups for outcome in group.outcomes),
        engines=tuple(engines),
        layouts=tuple(layouts),
        repeated=sum(group.repeated for group in groups),
        differing=tuple(name for group in groups for name in group.differing),
    )


def _one_architecture(kind: EngineKind, name: str, folder: Path, n_repeated: int) -> _Group:
    with Library(kind) as library:
        outcomes = run_architecture(library, Predictor(library), name, configurations(kind), folder)
    if kind != "server":
        return _Group(outcomes, 0, [])
    # Those with most devices first: there is most to compare.
    able = sorted((outcome for outcome in outcomes if outcome.cells), key=lambda outcome: -len(outcome.cells))
    chosen = able[:n_repeated]
    differing = [f"{name}: {outcome.configuration}" for outcome in chosen if not _repeats(outcome, folder)]
    return _Group(outcomes, len(chosen), differing)


def _repeats(outcome: Outcome, folder: Path) -> bool:
    """Whether the real llama-server prints the figures that its libraries printed."""
    model = tiny_models.write(outcome.architecture, outcome.configuration.shape, folder)
    settings = outcome.configuration.settings(read_model(model).block_count)
    return printed_lines(real_server_log(model, settings)) == outcome.lines


def run_architecture(
    library: Library, predictor: Predictor, name: str, rows: Iterable[Configuration], folder: Path
) -> list[Outcome]:
    """The given configurations of one architecture."""
    return [_outcome(library, predictor, name, row, folder) for row in rows]


def _outcome(library: Library, predictor: Predictor, name: str, row: Configuration, folder: Path) -> Outcome:
    model = tiny_models.write(name, row.shape, folder)
    try:
        settings = row.settings(predictor.header(model).block_count)
        footprint = predictor.footprint(model, settings)
    except MagnitudeTuneError as error:
        return Outcome(library.kind, name, row, (), refusal=f"not predicted: {error}")
    loaded = library.load(model, settings)
    if loaded.error:
        return Outcome(library.kind, name, row, (), refusal=loaded.error)
    return Outcome(library.kind, name, row, compare(footprint, loaded), printed_lines(loaded))
