"""What a journal holds is believed only where a clock could have given it."""

from __future__ import annotations

import json
import math

import pytest
from bench.grid_stand_ins import Engines, configurations

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.grid import measure_grid
from magnitude_tune.bench.journal import open_journal
from magnitude_tune.storage import data_dir


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan, 1e308])
def test_impossible_times_are_measured_again(seconds: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A slice with times that no clock gives is dropped, as if it had not been measured."""
    engines = Engines()
    watch = Watch(root=tmp_path_factory.mktemp("empty"), clock=engines.clock, cpus=frozenset({0}))
    with open_journal("values") as journal:
        measure_grid(
            configurations(1),
            engines.opener,
            journal,
            budget_seconds=9.0,
            keep=lambda *_: None,
            watch=watch,
            clock=engines.clock,
        )
    (path,) = (data_dir() / "grids").glob("*.jsonl")
    lines = []
    for line in path.read_text().splitlines():
        document = json.loads(line)
        for taken in document.get("slice", {}).get("pp", []):
            sample = taken[0] if isinstance(taken, list) else taken["sample"]
            sample["seconds" if isinstance(sample, dict) else 1] = seconds
        lines.append(json.dumps(document))
    path.write_text("\n".join(lines) + "\n")
    (each,) = configurations(1)
    with open_journal("values") as journal:
        assert journal.slices(each.point, each.subject.resolution.settings) == ()
