"""`magnitude-tune train`: fit the speed model on published benchmarks, the same bytes each time."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude_tune.cli.options import JSON, OUTPUT, QUIET

EPILOG = """Examples:

magnitude-tune train -o throughput.json --card MODEL_CARD.md

magnitude-tune train --table mine.csv --devices devices.csv -o mine.json

Needs scikit-learn: pip install 'magnitude-tune\\[train]'.

Exit codes: 0 ok, 2 usage, 3 a table that cannot be used, 6 scikit-learn is missing."""

_TABLE = Annotated[
    str | None, typer.Option("--table", metavar="FILE", help="Benchmarks to train on instead of the shipped ones.")
]
_DEVICES = Annotated[
    str | None, typer.Option("--devices", metavar="FILE", help="Data sheets of their devices instead of the shipped.")
]
_CARD = Annotated[
    str | None, typer.Option("--card", metavar="FILE", help="Also write the figures into this model card.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG)(train)


def train(
    *,
    table: _TABLE = None,
    devices: _DEVICES = None,
    card: _CARD = None,
    json_output: JSON = False,
    output: OUTPUT = None,
    quiet: QUIET = False,
) -> None:
    """Fit the speed model and write its coefficients. The same tables give the same bytes."""
    from pathlib import Path

    from magnitude_tune.cli.console import check_output, emit, emit_json, narrate
    from magnitude_tune.errors import InputFileError
    from magnitude_tune.learning.card import card_with
    from magnitude_tune.learning.shipped import stated_document, training_tables
    from magnitude_tune.learning.train import document_text
    from magnitude_tune.learning.train import train as fit

    check_output(output)
    check_output(card)
    own = training_tables()
    stated, where = stated_document()
    trained = fit(Path(table) if table else own[0], Path(devices) if devices else own[1], stated, where)
    if not quiet:
        for reason, n in trained.skipped.items():
            narrate(f"left out {n:5d} rows: {reason}")
        narrate(f"trained on {trained.n_used} rows of {trained.n_devices} devices")
    if card is not None:
        try:
            text = Path(card).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputFileError(
                f"cannot read this card: {error}", where=card, hint="name a card that this version shipped"
            ) from error
        emit(card_with(text, trained, card), card)
    if json_output:
        emit_json(trained.document, output)
    else:
        emit(document_text(trained.document), output)
