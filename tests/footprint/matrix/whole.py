"""The whole matrix: every architecture in every configuration, in parallel children."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import tiny_models
from footprint.matrix.comparison import Cell, Predictor, compare
from footprint.matrix.configurations import Configuration, EngineKind, configurations
from footprint.matrix.engines import Library

__all__ = ["Outcome", "Results", "run_architecture", "run_matrix"]


class Outcome(NamedTuple):
    """One configuration of one architecture; `refusal` where the engine, or our own code, gave no figures."""

    engine: EngineKind
    architecture: str
    configuration: Configuration
    cells: tuple[Cell, ...]
    refusal: str | None = None


class Results(NamedTuple):
    """All outcomes, and what they were made with."""

    outcomes: tuple[Outcome, ...]
    engines: tuple[str, ...]
    layouts: tuple[str, ...]


def run_matrix(architectures: Sequence[str], kinds: Sequence[EngineKind], jobs: int, folder: Path) -> Results:
    """Every architecture by every engine; `jobs` children work at a time."""
    tasks = [(kind, name) for kind in kinds for name in architectures]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        outcomes = [
            outcome for group in pool.map(lambda task: _one_architecture(*task, folder), tasks) for outcome in group
        ]
    engines, layouts = [], []
    for kind in kinds:
        with Library(kind) as library:
            facts = library.facts
        engines.append(f"{facts.name} {facts.build} (ggml {facts.ggml_version})")
        layouts.append(f"{facts.name}: {', '.join(facts.extra_buffers) or 'none'}")
    return Results(tuple(outcomes), tuple(engines), tuple(layouts))


def _one_architecture(kind: EngineKind, name: str, folder: Path) -> list[Outcome]:
    with Library(kind) as library:
        return run_architecture(library, Predictor(library), name, configurations(kind), folder)


def run_architecture(
    library: Library, predictor: Predictor, name: str, rows: Iterable[Configuration], folder: Path
) -> list[Outcome]:
    """The given configurations of one architecture."""
    return [_outcome(library, predictor, name, row, folder) for row in rows]


def _outcome(library: Library, predictor: Predictor, name: str, row: Configuration, folder: Path) -> Outcome:
    model = tiny_models.write(name, row.shape, folder)
    settings = row.settings(predictor.header(model).block_count)
    loaded = library.load(model, settings)
    if loaded.error:
        return Outcome(library.kind, name, row, (), loaded.error)
    return Outcome(library.kind, name, row, compare(predictor.footprint(model, settings), loaded))
