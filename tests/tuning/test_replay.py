"""The judge of the replay tables: figures of a made-up table are what the table was made with."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from benchmarks.replay_judge import (
    WITHIN,
    always_usual,
    errors_after,
    judged,
    noise_floor,
    random_search,
    read_tables,
    space_of,
    tuned,
)
from tuning.stand_in_table import write_table

MEASURED = Path(__file__).parents[1] / "benchmarks" / "replay"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up table with structure and 1 % of scatter between runs."""
    return write_table(tmp_path_factory.mktemp("tables") / "made-up.json")


def test_a_file_is_one_table_for_each_device(table: Path) -> None:
    """Rows over RPC with one and with two threads there belong to different machines; those on the CPU to both."""
    one, two = read_tables(table)
    assert {row.setting["rpc_threads"] for row in one.rows} == {0, 1}
    assert {row.setting["rpc_threads"] for row in two.rows} == {0, 2}
    assert len(one.rows) == len(two.rows) >= 20


def test_the_noise_floor_is_what_the_runs_scatter(table: Path) -> None:
    """Runs that scatter by 1 % are off the median of the others by about that."""
    one, _ = read_tables(table)
    assert 0.004 < noise_floor(one, "tg") < 0.02


def test_runs_here_sharpen_the_other_settings(table: Path) -> None:
    """On a machine 30 % slower than predicted, one run helps and three help more; intervals hold most figures."""
    _, two = read_tables(table)
    for quantity in ("pp", "tg"):
        shipped, one, three = (errors_after(two, n, quantity, draws=20) for n in (0, 1, 3))
        assert three.error <= one.error < shipped.error
        assert three.error < 0.2
        assert three.coverage > 0.7


def test_tuning_beats_random_search_and_the_usual_setting(table: Path) -> None:
    """After six runs at most, the turn is no longer than what chance finds, nor than the usual setting's."""
    for each in read_tables(table):
        space = space_of(each)
        found, chance = tuned(space, 6), random_search(space, 6)
        assert max(found.runs) <= 6
        assert median(found.over_best) <= median(chance.over_best) + WITHIN
        assert median(found.over_best) <= always_usual(space, 6).over_best[0] + WITHIN
        assert max(found.over_best) <= max(chance.over_best)


def test_a_flat_table_is_said_to_be_flat(tmp_path: Path) -> None:
    """Where every setting is as fast, nothing is told about tuning."""
    flat = write_table(tmp_path / "flat.json", structure=0.0)
    assert any("Too flat to tell" in line for line in judged(next(iter(read_tables(flat)))))


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_measured_tables_are_whole(path: Path) -> None:
    """At least 24 settings, three rounds of each, with what disturbed them; every path in them is a plain name."""
    document = json.loads(path.read_text())
    rows = [row for row in document["rows"] if row["failure"] is None]
    assert len(rows) >= 24
    assert all(len(row["rounds"]) == 3 for row in rows)
    assert all("disturbance" in each for row in rows for each in row["rounds"])
    assert "/" not in document["model"]["path"]
    assert list(read_tables(path))
