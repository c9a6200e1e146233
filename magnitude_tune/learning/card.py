"""The model card's trained section: what the coefficients reach on devices they have not seen, and what they miss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.evaluation import Figures
from magnitude_tune.learning.train import MOST_BYTES, Trained, document_text

__all__ = ["BEGIN", "END", "card_with", "trained_section"]

BEGIN: Final = "<!-- written by `magnitude-tune train`: begin -->"
END: Final = "<!-- written by `magnitude-tune train`: end -->"
_TRAIN: Final = "`magnitude-tune train -o models/throughput.json --card models/MODEL_CARD.md`"
_EVALUATE: Final = "`magnitude-tune evaluate models/training/benchmarks.csv --devices models/training/devices.csv`"


def card_with(text: str, trained: Trained, where: str) -> str:
    """The card `text` from the file `where` with its trained section written anew; the rest stays as it is.

    Raises:
        InputFileError: the card has no trained section.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputFileError(
            "this card has no section to write", where=where, hint=f"put the lines {BEGIN!r} and {END!r} where it goes"
        )
    return f"{before}{BEGIN}\n\n{trained_section(trained)}\n{END}{after}"


def trained_section(trained: Trained) -> str:
    """The section in Markdown: figures beside their targets, other kinds of rows, counts of what was left out."""
    size = len(document_text(trained.document).encode())
    lines = [
        f"Trained on {trained.n_used} rows of {trained.n_devices} devices with {_TRAIN}.",
        "Unseen devices: ten folds, grouped by device; every device weighs the same.",
        "",
        "| what | target | measured | |",
        "|---|---|---|---|",
        *_against_targets(trained, size),
        "",
        "The whole fit on rows of the other kinds, which are not trained on, though their devices are:",
        f"{_EVALUATE}",
        "",
        "| kind | rows | devices | median error | 90th percentile | within 25 % | coverage | width | rank corr. |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(kind, each) for kind, each in trained.others.items()),
        "",
        "Rows left out, by rule:",
        "",
        *(f"- {n}: {reason}" for reason, n in trained.skipped.items()),
        "",
    ]
    return "\n".join(lines)


def _against_targets(trained: Trained, size: int) -> Iterator[str]:
    tg, pp, cpus = trained.unseen["tg"], trained.unseen["pp"], trained.unseen_cpus
    offload = trained.others["partial_offload"]
    checks: tuple[tuple[str, str, float | None, bool], ...] = (
        (
            f"tg, median error of {tg.devices} unseen devices",
            "at most 10 %",
            tg.median_error,
            (tg.median_error or 1) <= 0.10,
        ),
        (f"pp, likewise, {pp.devices} devices", "at most 18 %", pp.median_error, (pp.median_error or 1) <= 0.18),
        ("unseen devices within 25 %, tg", "88 %", tg.within_25, (tg.within_25 or 0) >= 0.88),
        ("unseen devices within 25 %, pp", "72 %", pp.within_25, (pp.within_25 or 0) >= 0.72),
        (
            f"tg of {cpus.devices} unseen processors with known threads ({cpus.rows} rows)",
            "at most 20 %",
            cpus.median_error,
            (cpus.median_error or 1) <= 0.20,
        ),
        ("coverage of the 90 % interval, tg", "86 to 94 %", tg.coverage_90, 0.86 <= (tg.coverage_90 or 0) <= 0.94),
        ("median width of that interval, tg", "at most 60 %", tg.median_width_90, (tg.median_width_90 or 9) <= 0.60),
        ("coverage of the 90 % interval, pp", "reported", pp.coverage_90, True),
        ("median width of that interval, pp", "reported", pp.median_width_90, True),
    )
    for what, target, value, met in checks:
        yield f"| {what} | {target} | {_percent(value)} | {'' if met else '**missed**'} |"
    order = offload.rank_correlation
    met = order is not None and order >= 0.9
    shown = "none" if order is None else f"{order:.2f} ({offload.sweeps} sweeps)"
    yield f"| partial offload, median rank correlation | at least 0.9 | {shown} | {'' if met else '**missed**'} |"
    met = size <= MOST_BYTES
    yield f"| size of throughput.json | {MOST_BYTES} bytes | {size} bytes | {'' if met else '**missed**'} |"


def _line(kind: str, each: Figures) -> str:
    shares = (each.median_error, each.p90_error, each.within_25, each.coverage_90, each.median_width_90)
    order = "-" if each.rank_correlation is None else f"{each.rank_correlation:.2f} ({each.sweeps} sweeps)"
    return f"| {' | '.join((kind, str(each.rows), str(each.devices), *map(_percent, shares), order))} |"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
