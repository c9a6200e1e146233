"""The rows of a measured grid: sorted by the turn, each beside the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from magnitude_tune.bench.grid import Outcome
from magnitude_tune.bench.values import Quantity
from magnitude_tune.observations.statistics import MIN_SAMPLES, Summary, differ

__all__ = ["GridResult", "GridRow", "LeftOut", "Standing", "grid_rows", "measured"]

Standing = Literal["best", "as good as the best", "slower", "undecided", "not measured"]


class LeftOut(NamedTuple):
    """A point of the grid that is not measured, with the reason."""

    point: str
    kind: Literal["does not fit", "cannot run so", "repeats another"]
    reason: str


class GridResult(NamedTuple):
    """A grid as it is shown: the names of its axes, what came of each configuration, and points that were left out."""

    axes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    left_out: tuple[LeftOut, ...]
    interrupted: bool


class GridRow(NamedTuple):
    """One configuration beside the best: `slower_by` is its turn over the best one's, less 1."""

    outcome: Outcome
    standing: Standing
    slower_by: float | None


def grid_rows(outcomes: Sequence[Outcome]) -> tuple[GridRow, ...]:
    """Fastest turn first, those without a turn last.

    A row is slower where the 90 % interval of the difference to the best does not hold 0, and as good where it does.
    Nothing is decided by fewer than three samples, nor where the samples in use are disturbed.
    """
    with_turn = [(turn.median, outcome) for outcome in outcomes if (turn := measured(outcome, "turn_seconds"))]
    ordered = [outcome for _, outcome in sorted(with_turn, key=lambda pair: pair[0])]
    best = next((outcome for outcome in ordered if _decides(outcome)), None)
    rows = [_row(outcome, best) for outcome in ordered]
    return (*rows, *(GridRow(each, "not measured", None) for each in outcomes if each not in ordered))


def measured(outcome: Outcome, quantity: Quantity) -> Summary | None:
    """What was measured of a quantity."""
    return outcome.result.promise.item(quantity).measured if outcome.result else None


def _decides(outcome: Outcome) -> bool:
    turn = measured(outcome, "turn_seconds")
    clean = outcome.result is not None and outcome.result.measurement.disturbance.clean
    return turn is not None and turn.n >= MIN_SAMPLES and clean and outcome.status == "measured"


def _row(outcome: Outcome, best: Outcome | None) -> GridRow:
    turn = measured(outcome, "turn_seconds")
    against = measured(best, "turn_seconds") if best else None
    if turn is None or against is None:
        return GridRow(outcome, "undecided", None)
    slower_by = turn.median / against.median - 1
    if outcome is best:
        return GridRow(outcome, "best", 0.0)
    if not _decides(outcome):
        return GridRow(outcome, "undecided", slower_by)
    return GridRow(outcome, "slower" if differ(turn, against) else "as good as the best", slower_by)
