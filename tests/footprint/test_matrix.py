"""The fast part of the matrix: small models of every class beside what real engines print for them.

`python tests/benchmarks/footprint_matrix.py` compares all pairs of settings; here each architecture has three
configurations, which together load, offload and repack, with and without flash attention.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from footprint.matrix.comparison import Cell, Predictor, printed_lines
from footprint.matrix.configurations import Configuration, EngineKind, configurations, settings_of
from footprint.matrix.engines import Library, real_server_log, server_folder
from footprint.matrix.table import cause_of, known_causes, write_table
from footprint.matrix.whole import Outcome, Results, run_architecture

from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.units import MIB

Cells = Callable[[EngineKind, str], list[tuple[Outcome, Cell]]]

_ROWS = (
    Configuration("small", {"n_ctx": 5000, "n_ubatch": 256, "repack": True, "layers": "half"}),
    Configuration("small", {"n_ctx": 1000, "flash_attn": False, "slots": (4, True), "layers": "all", "n_devices": 2}),
    Configuration("large", {"n_ctx": 2048, "n_ubatch": 512, "kv": ("q8_0", "q8_0"), "slots": (4, False)}),
)
# The large row quantises the cache of V, which grok cannot have.
_NO_LARGE_ROW = frozenset({"grok"})
_UNKNOWN_TO_SERVER = frozenset({"cohere2moe", "minimax-01", "bailingmoe3"})
_OF_DEVICES = frozenset({"layers", "n_devices"})
# AMX takes matrices of latent attention that it cannot multiply; an older indexer and encoders with a decoder have one
# stream only; grok's V cache cannot be quantised. The engine ends or refuses there, whatever is planned.
_ENGINE_REFUSES = frozenset(
    {"deepseek2", "deepseek2-lite", "mistral4", "deepseek32", "glm-dsa", "kimi-linear", "bailingmoe3", "grok", "t5"}
)
_ENGINES: tuple[EngineKind, ...] = ("embedded", "server")


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    """All cells of one engine and architecture, loaded once."""
    folder = tmp_path_factory.mktemp("models")
    libraries: dict[EngineKind, Library] = {}

    @functools.cache
    def of(kind: EngineKind, name: str) -> list[tuple[Outcome, Cell]]:
        if kind == "server" and name in _UNKNOWN_TO_SERVER:
            pytest.skip(f"the packaged llama-server does not know {name}")
        library = libraries.get(kind)
        if library is None:
            library = libraries[kind] = _library(kind)
        outcomes = run_architecture(library, Predictor(library), name, _rows(kind), folder)
        refused = [outcome.refusal for outcome in outcomes if outcome.refusal]
        assert not refused or (name in _ENGINE_REFUSES and len(refused) < len(_ROWS)), refused
        return [(outcome, cell) for outcome in outcomes for cell in outcome.cells]

    yield of
    for library in libraries.values():
        library.close()


def _rows(kind: EngineKind) -> list[Configuration]:
    """The rows; without layers on devices where the engine has none."""
    if kind == "server":
        return list(_ROWS)
    return [
        Configuration(row.shape, {name: row.changes[name] for name in row.changes if name not in _OF_DEVICES})
        for row in _ROWS
    ]


def _library(kind: EngineKind) -> Library:
    if kind == "server" and server_folder() is None:
        pytest.skip("the package with a real llama-server is not installed")
    library = Library(kind)
    try:
        assert library.facts.path
    except ChildProcessError as error:
        library.close()
        pytest.skip(f"the engine's libraries cannot be loaded here: {error}")
    return library


@pytest.mark.engine
@pytest.mark.parametrize("kind", _ENGINES)
@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_weights_caches_and_copies_are_equal(cells: Cells, name: str, kind: EngineKind) -> None:
    """Every device's weights, caches, states and repacked copies equal the engine's figures at their precision."""
    assert [cell for _, cell in cells(kind, name) if cell.term not in ("compute", "output") and not cell.hit] == []


@pytest.mark.engine
@pytest.mark.parametrize("kind", _ENGINES)
@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_compute_and_output_are_close(cells: Cells, name: str, kind: EngineKind) -> None:
    """Every device's compute and output buffer is within 5 % or 0.25 MiB, and never 2 % under, but for known causes."""
    causes = known_causes()
    missed = [
        (outcome, cell) for outcome, cell in cells(kind, name) if cell.term in ("compute", "output") and not cell.hit
    ]
    assert [cell for outcome, cell in missed if cause_of(outcome, cell, causes) == "?"] == []


@pytest.mark.engine
@pytest.mark.parametrize("name", [name for name in tiny_models.ARCHITECTURES if name not in _NO_LARGE_ROW])
def test_a_large_model_needs_a_large_buffer(cells: Cells, name: str) -> None:
    """The large shapes are what they are for: their compute buffer measures 60 MiB at least with 2048 tokens."""
    assert max(cell.actual for _, cell in cells("embedded", name) if cell.term == "compute") > 60 * MIB


@pytest.mark.engine
def test_the_real_server_prints_the_same_lines(real_server: EngineFacts, tmp_path: Path) -> None:
    """llama-server itself allocates for a split model what its libraries allocate when a child drives them."""
    model = tiny_models.write("gemma3", "small", tmp_path)
    settings = settings_of(7, n_ctx=5000, n_ubatch=256, slots=(4, False), repack=True, layers="half", n_devices=2)
    started = real_server_log(model, settings)
    assert started.error is None
    with Library("server") as library:
        driven = library.load(model, settings)
    assert driven.error is None
    assert printed_lines(started) == printed_lines(driven) != ()


@pytest.mark.parametrize("kind", _ENGINES)
def test_all_pairs_of_values_occur(kind: EngineKind) -> None:
    """About forty configurations hold every pair of values that can go together."""
    rows = [{"shape": row.shape, **row.changes} for row in configurations(kind)]
    assert len(rows) < 50
    names = sorted(rows[0])
    for one, two in itertools.combinations(names, 2):
        met = {(row[one], row[two]) for row in rows}
        wanted = itertools.product({row[one] for row in rows}, {row[two] for row in rows})
        assert {pair for pair in wanted if _can_go_together(one, two, pair)} == met


def _can_go_together(one: str, two: str, pair: tuple[Any, Any]) -> bool:
    chosen = dict(zip((one, two), pair, strict=True))
    if chosen.get("flash_attn") is False and chosen.get("kv", ("f16",))[0] != "f16":
        return False
    return not (chosen.get("n_devices") == 2 and chosen.get("layers") in ("none", "one"))


def test_figures_are_compared_at_the_printed_precision() -> None:
    """Half a unit of the last digit is no error for weights; a compute buffer may be a little over, hardly under."""
    exact = Cell("CPU", "weights", 10 * MIB + 5000, 10 * MIB, MIB // 200 + 1)
    assert exact.hit
    assert exact.error == 0
    assert not exact._replace(predicted=10 * MIB + 6000).hit
    compute = Cell("CPU", "compute", 104 * MIB, 100 * MIB, 53)
    assert compute.hit
    assert not compute._replace(predicted=106 * MIB).hit
    assert not compute._replace(predicted=97 * MIB).hit
    assert not Cell("CPU", "compute", MIB // 2, 0, 53).hit


def test_every_miss_and_refusal_is_named_with_its_cause() -> None:
    """The page shows a miss with both figures, and the known cause where the engine refuses."""
    row = Configuration("small", {"n_ctx": 512, "slots": (4, False)})
    miss = Outcome("embedded", "llama", row, (Cell("CPU", "compute", 3 * MIB, 2 * MIB, 53),))
    refusal = Outcome("server", "t5", row, (), refusal="the engine ended")
    page = write_table(Results((miss, refusal), ("engine 1",), ("none",), 0, ()), command="the command")
    assert "| llama | embedded | compute | 1 | 0 | 1 | +1.00 MiB (+50.0 %) |" in page
    assert "slots 4/False | CPU | compute | 3.00 | 2.00 | +1.00 MiB (+50.0 %) | ? |" in page
    assert "| the engine ended | the engine ends with an assertion: position biases" in page
    assert "Made on" in page
    assert "`the command`" in page
