"""Scoring coefficients: figures of each kind, and orders inside sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from magnitude_tune.cli.app import build
from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.cases import Models
from magnitude_tune.learning.evaluation import evaluate, evaluation_document, figures, score_rows, spearman
from magnitude_tune.learning.table import KINDS, read_devices, read_rows
from magnitude_tune.pipeline.resolve import shipped_coefficients

NAMES = (
    "rows",
    "devices",
    "median_error",
    "p90_error",
    "within_25",
    "coverage_90",
    "median_width_90",
    "rank_correlation",
)


def evaluated(*arguments: str) -> Any:
    """What the command gives."""
    return CliRunner().invoke(build(("evaluate", "train")), ["evaluate", *arguments])


def test_every_kind_has_all_figures(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """The JSON names every kind; what a kind has no rows for is null, and rates are fractions."""
    rows = [*tables.rows(), tables.row(rate=30, ngl=16), tables.row(rate=40, depth=4096), tables.row(engine="x")]
    done = evaluated(str(written(*rows[:-2], {**rows[-2]})), "--devices", str(sheets), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["schema_version"] == 1
    assert tuple(document["kinds"]) == KINDS
    for kind in document["kinds"].values():
        assert set(NAMES) <= set(kind)
    assert document["kinds"]["tg"]["devices"] == 10
    assert 0 <= document["kinds"]["tg"]["within_25"] <= 1
    assert document["kinds"]["partial_offload"]["rows"] == 1
    assert document["kinds"]["depth"]["rows"] == 1
    assert document["kinds"]["moe_on_cpu"]["median_error"] is None
    assert document["skipped"] == {}


def test_the_page_shows_what_was_left_out(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """Unknown devices, empty cells, absurd values and more columns give figures for the rest, and counts."""
    rows = [
        tables.row(colour="red"),
        tables.row("Abacus", colour=""),
        tables.row(rate="", colour="\x00\x1b[31m"),
        tables.row(params_b="1e99", colour="🙂"),
    ]
    done = evaluated(str(written(*rows)), "--devices", str(sheets))
    assert done.exit_code == 0, done.output
    assert "device not in the device table" in done.output
    assert "no rate" in done.output
    assert "absurd" in done.output


def test_a_perfect_table_has_no_error(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """Rows that hold what is predicted have no error, full coverage and a positive width."""
    devices = read_devices(sheets)
    models = Models(shipped_coefficients(), devices)
    rows = read_rows(written(*tables.rows()), devices).rows
    exact = [row._replace(rate=models.interval(row).value) for row in rows]
    for kind in ("tg", "pp"):
        found = figures(score_rows(exact, models), kind)
        assert found.median_error == pytest.approx(0, abs=1e-9)
        assert found.coverage_90 == 1.0
        assert found.within_25 == 1.0
        assert found.median_width_90 is not None
        assert found.median_width_90 > 0


def test_devices_weigh_alike(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """A hundred rows of one device count as much as one row of another."""
    many = [tables.row(rate=50 + i / 100) for i in range(100)]
    one = tables.row("NVIDIA GeForce RTX 4080", 1.0)
    found = evaluate(written(*many, one), sheets, shipped_coefficients()).kinds["tg"]
    assert found.rows == 101
    assert found.devices == 2
    assert found.p90_error is not None
    assert found.p90_error > 10


def test_a_sweep_of_layers_is_ordered(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """More layers on the card are faster; the end of the sweep, where all are, belongs to it."""
    sweep = [tables.row(rate=5 + n, ngl=n, sweep="ngl") for n in (0, 8, 16, 24, 40, 99)]
    scored = evaluate(written(*sweep), sheets, shipped_coefficients())
    found = scored.kinds["partial_offload"]
    assert (found.rows, found.sweeps, found.rank_correlation) == (4, 1, pytest.approx(1.0))
    backwards = [tables.row(rate=50 - n, ngl=n, sweep="ngl") for n in (0, 8, 16, 24)]
    found = evaluate(written(*backwards), sheets, shipped_coefficients()).kinds["partial_offload"]
    assert found.rank_correlation == pytest.approx(-1.0)


def test_rank_correlation_shares_ties() -> None:
    """Spearman's correlation: order alone counts, ties share their rank, constants have none."""
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1], [1]) is None


def test_a_table_without_usable_rows_gives_empty_figures(
    tables: Any, sheets: Path, written: Callable[..., Path]
) -> None:
    """Nothing to score is no error: every kind is empty and the rows are counted."""
    scored = evaluate(written(tables.row("Abacus")), sheets, shipped_coefficients())
    document = evaluation_document(scored)
    assert json.dumps(document, allow_nan=False)
    assert all(kind.rows == 0 for kind in scored.kinds.values())
    assert sum(scored.skipped.values()) == 1


@pytest.mark.parametrize(
    ("table", "devices", "code"),
    [("none.csv", "devices.csv", 3), ("devices.csv", "devices.csv", 3), ("devices.csv", None, 2)],
)
def test_bad_input_ends_with_its_exit_code(sheets: Path, table: str, devices: str | None, code: int) -> None:
    """A missing file or another table is bad input, a missing option is usage; neither is a traceback."""
    folder = sheets.parent
    options = [] if devices is None else ["--devices", str(folder / devices)]
    done = evaluated(str(folder / table), *options)
    raised = done.exception
    assert isinstance(raised, (InputFileError, SystemExit))
    assert (raised.exit_code if isinstance(raised, InputFileError) else done.exit_code) == code
