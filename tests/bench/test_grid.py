"""A grid in rounds: order, when a configuration is finished, what survives an interruption, what crashes."""

from __future__ import annotations

import io
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.grid_stand_ins import KEY, Engines, configurations, grid

from magnitude_tune.bench.journal import RESUMED_FOR_SECONDS, Journal, open_journal
from magnitude_tune.bench.values import Ending, Progress
from magnitude_tune.engines.crashes import engine_crash
from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Rule
from magnitude_tune.observations.store import store_path
from magnitude_tune.storage import data_dir

WIDE = [30.0, 50.0]


def runs_stored() -> Counter[str]:
    """Rows of each stored run."""
    if not store_path().exists():
        return Counter()
    connection = sqlite3.connect(store_path())
    found = Counter(run_id for (run_id,) in connection.execute("SELECT run_id FROM llama_bench"))
    connection.close()
    return found


def raising(error: BaseException, opening: int, piece: int) -> Callable[[int, int], None]:
    """Raises at one piece of work of one opening."""

    def before(at_opening: int, at_piece: int) -> None:
        if (at_opening, at_piece) == (opening, piece):
            raise error

    return before


def test_configurations_are_measured_in_rounds(tmp_path: Path) -> None:
    """Round after round, one process at a time; steady ones are known after two."""
    engines = Engines()
    outcomes, interrupted = grid(engines, tmp_path, 1, 2, 4)
    assert engines.opened == [1, 2, 4, 1, 2, 4]
    assert not interrupted
    assert [(outcome.status, outcome.rounds) for outcome in outcomes] == [("measured", 2)] * 3
    assert all(len(outcome.result.measurement.tg_samples) == 6 for outcome in outcomes if outcome.result)
    assert sorted(runs_stored().values()) == [2, 2, 2]


def test_only_what_is_not_known_well_enough_has_a_third_round(tmp_path: Path) -> None:
    """Wide intervals cost a third process; the steady ones beside it are left alone."""
    engines = Engines(rates={2: WIDE * 10})
    outcomes, _ = grid(engines, tmp_path, 1, 2, 4, budget_seconds=90.0)
    assert engines.opened == [1, 2, 4, 1, 2, 4, 2]
    assert [outcome.rounds for outcome in outcomes] == [2, 3, 2]


def test_the_budget_bounds_each_configuration(tmp_path: Path) -> None:
    """A third of the budget for each process, and one sample of each test at least."""
    engines = Engines(rates={1: WIDE * 20})
    grid(engines, tmp_path, 1, budget_seconds=30.0)
    assert engines.now < 3 * (1.0 + 10.0 + 2 * 7.0)


def test_every_process_has_a_warm_up_of_its_own(tmp_path: Path) -> None:
    """A cold first sample of a later process is warm-up, as that of the first one is."""
    engines = Engines(rates={1: [20.0, 40.0, 40.0, 40.0]})
    (outcome,), _ = grid(engines, tmp_path, 1)
    assert outcome.result is not None
    measurement = outcome.result.measurement
    assert {round(sample.rate) for sample in measurement.tg_samples} == {40}
    assert [left.reason for left in measurement.left_out] == ["warm-up", "warm-up"]


def test_an_interrupted_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    """Ctrl-C in the second round: what was measured is shown, and the next time only the rest is."""
    engines = Engines(before=raising(KeyboardInterrupt(), 4, 4))
    outcomes, interrupted = grid(engines, tmp_path, 1, 2, 4)
    assert interrupted
    assert [(outcome.status, outcome.rounds) for outcome in outcomes] == [
        ("measured", 2),
        ("unfinished", 1),
        ("unfinished", 1),
    ]
    again = Engines()
    outcomes, interrupted = grid(again, tmp_path, 1, 2, 4)
    assert again.opened == [2, 4]
    assert not interrupted
    assert [outcome.rounds for outcome in outcomes] == [2, 2, 2]
    assert sorted(runs_stored().values()) == [2, 2, 2]


def test_a_crash_of_one_leaves_the_others(tmp_path: Path) -> None:
    """A configuration that dies in the middle keeps its samples, is stored as incomplete, and is not tried again."""
    engines = Engines(before=raising(engine_crash("llama-server", -9, ""), 1, 5))
    outcomes, _ = grid(engines, tmp_path, 1, 2, 4)
    assert [outcome.status for outcome in outcomes] == ["measured", "crashed", "measured"]
    crashed = outcomes[1]
    assert crashed.reason is not None
    assert "out of memory" in crashed.reason
    assert crashed.result is not None
    assert not crashed.result.measurement.complete
    assert [finding.rule for finding in crashed.result.findings] == [Rule.ENGINE_ENDED]
    assert engines.opened == [1, 2, 4, 1, 4]
    again = Engines()
    grid(again, tmp_path, 1, 2, 4)
    assert again.opened == []


def test_a_configuration_that_does_not_start_is_remembered_with_its_cause(tmp_path: Path) -> None:
    """A crash before the first sample leaves no result, the cause, and no second try after an interruption."""
    engines = Engines(before=raising(engine_crash("llama-server", -6, "GGML_ASSERT failed"), 0, 0))
    (first, second), _ = grid(engines, tmp_path, 1, 2)
    assert (first.status, first.result, second.status) == ("crashed", None, "measured")
    assert first.reason is not None
    assert "GGML_ASSERT" in first.reason
    again = Engines()
    grid(again, tmp_path, 1, 2)
    assert again.opened == []


def test_b34_memory_is_looked_at_before_each_launch(tmp_path: Path) -> None:
    """A plan that no longer fits is not launched, and says why; the others are measured."""
    engines = Engines()
    outcomes, _ = grid(
        engines, tmp_path, 1, 2, shortage=lambda s: "ram is full" if s.resolution.settings.n_threads == 2 else None
    )
    assert engines.opened == [1, 1]
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [
        ("measured", None),
        ("no longer fits", "ram is full"),
    ]


def test_what_no_longer_fits_after_a_round_is_kept_as_incomplete(tmp_path: Path) -> None:
    """Samples of the first round outlive the journal, and are no calibration."""
    engines = Engines()
    outcomes, _ = grid(
        engines,
        tmp_path,
        1,
        2,
        shortage=lambda s: "full" if s.resolution.settings.n_threads == 2 and len(engines.opened) > 2 else None,
    )
    assert engines.opened == [1, 2, 1]
    assert [(outcome.status, outcome.rounds) for outcome in outcomes] == [("measured", 2), ("no longer fits", 1)]
    connection = sqlite3.connect(store_path())
    found = connection.execute("SELECT DISTINCT run_id, complete FROM llama_bench ORDER BY complete").fetchall()
    connection.close()
    assert found == [(outcomes[1].stored, 0), (outcomes[0].stored, 1)]


def test_the_remaining_time_is_told_and_sinks(tmp_path: Path) -> None:
    """Each report names its configuration and round; the time that is left goes down to less than one process."""
    told: list[Progress] = []
    grid(Engines(), tmp_path, 1, 2, told=told)
    assert told[0].title == "1 of 2, round 1, n_threads=1"
    assert told[-1].title == "2 of 2, round 2, n_threads=2"
    remaining = [progress.remaining_seconds for progress in told if progress.stage == "loading"]
    assert all(seconds is not None for seconds in remaining)
    assert remaining == sorted(remaining, reverse=True, key=float)


def test_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    """A journal that ends in the middle of a line, as after a power cut, loses that process only."""
    engines = Engines(before=raising(KeyboardInterrupt(), 2, 0))
    grid(engines, tmp_path, 1, 2)
    path = data_dir() / "grids" / f"{KEY}.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    again = Engines()
    grid(again, tmp_path, 1, 2)
    assert again.opened == [2, 1, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"n_prompt":512', '"n_prompt":"x"'),
        lambda text: text.replace('"slice":', '"slices":'),
        lambda text: text.replace('"schema":1', '"schema":2'),
        lambda _: "\x00\xff[]\n{}\nnull\n",
        lambda _: "",
    ],
)
def test_a_journal_of_another_shape_is_passed_over(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    """Lines that do not mean what ours mean are no measurement, and no error."""
    grid(Engines(before=raising(KeyboardInterrupt(), 1, 0)), tmp_path, 1, 2)
    path = data_dir() / "grids" / f"{KEY}.jsonl"
    path.write_text(spoil(path.read_text()))
    again = Engines()
    outcomes, _ = grid(again, tmp_path, 1, 2)
    assert again.opened == [1, 2, 1, 2]
    assert [outcome.status for outcome in outcomes] == ["measured", "measured"]


def test_after_a_day_a_grid_begins_anew() -> None:
    """A day counts from the last line, however long ago the grid began; a clock that was set back loses nothing."""
    (configuration,) = configurations(1)
    settings = configuration.subject.resolution.settings
    # The journal was begun at some other time: only the time of its last line counts.
    with open_journal(KEY, clock=lambda: 0.0) as journal:
        journal.add(configuration.point, settings, Ending("crashed", "it died", None))
    path = data_dir() / "grids" / f"{KEY}.jsonl"
    for now, known in (
        (1e9, True),
        (1e9 - 10 * RESUMED_FOR_SECONDS, True),
        (1e9 + RESUMED_FOR_SECONDS, True),
        (1e9 + RESUMED_FOR_SECONDS + 1, False),
    ):
        os.utime(path, (1e9, 1e9))
        with open_journal(KEY, clock=lambda now=now: now) as journal:  # type: ignore[misc]
            assert (journal.failure(configuration.point, settings) is not None) is known


def test_journals_that_nobody_goes_on_with_are_removed() -> None:
    """A week after its last line a journal goes, unless it is being measured; a younger one stays."""
    pytest.importorskip("fcntl", reason="files cannot be locked here")
    for key in ("abandoned", "young"):
        with open_journal(key):
            pass
    folder = data_dir() / "grids"
    with open_journal("measured"):
        for key, age in (("abandoned", 8), ("measured", 8), ("young", 6)):
            at = time.time() - age * 24 * 3600
            os.utime(folder / f"{key}.jsonl", (at, at))
        with open_journal(KEY):
            assert {path.stem for path in folder.iterdir()} == {"measured", "young", KEY}


class _FullDisk(io.FileIO):
    """A file on a disk with room for half a line more."""

    def write(self, line: bytes) -> int:  # type: ignore[override]
        return super().write(line[: len(line) // 2])


def test_a_line_that_is_written_in_part_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A full disk takes a part of a line without an error of its own."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"schema":1}\n')
    (configuration,) = configurations(1)
    with _FullDisk(path, "a+") as stream, pytest.raises(UsageError, match="cannot keep the grid's journal"):
        Journal(path, stream).add(  # type: ignore[arg-type]
            configuration.point, configuration.subject.resolution.settings, Ending("crashed", "it died", None)
        )
    assert path.read_bytes() == b'{"schema":1}\n'


def test_a_point_that_is_planned_otherwise_now_is_measured_again(tmp_path: Path) -> None:
    """Samples of other settings say nothing about these, even where the point reads the same."""
    grid(Engines(before=raising(KeyboardInterrupt(), 1, 0)), tmp_path, 1, 2)
    (one,) = configurations(1)
    (other,) = configurations(8)
    with open_journal(KEY) as journal:
        assert len(journal.slices(one.point, one.subject.resolution.settings)) == 1
        assert journal.slices(one.point, other.subject.resolution.settings) == ()


def test_two_processes_do_not_measure_the_same_grid() -> None:
    """The second one is told so; where files cannot be locked it is not noticed."""
    pytest.importorskip("fcntl", reason="files cannot be locked here")
    with open_journal(KEY), pytest.raises(UsageError, match="measured by another process"), open_journal(KEY):
        pass


def test_an_ended_grid_begins_anew(tmp_path: Path) -> None:
    """A grid that came to its end is measured again when it is asked for again."""
    with open_journal(KEY) as journal:
        grid(Engines(), tmp_path, 1, journal=journal)
        journal.end()
    again = Engines()
    grid(again, tmp_path, 1)
    assert again.opened == [1, 1]
