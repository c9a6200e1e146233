"""Training: the same bytes each time, as shipped; what it learns; scikit-learn only here."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.card import BEGIN, END, card_with
from magnitude_tune.learning.shipped import stated_document, training_tables
from magnitude_tune.learning.train import MOST_BYTES, document_text, train
from magnitude_tune.throughput.coefficients import parse_coefficients

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "magnitude_tune"


@pytest.fixture
def sklearn() -> None:
    """Skips where scikit-learn is not installed."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'magnitude-tune[train]'")


@pytest.fixture(scope="module")
def whole() -> Any:
    """What training on the shipped tables gives, once."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'magnitude-tune[train]'")
    return train(*training_tables(), *stated_document())


def test_the_shipped_file_is_reproduced_byte_for_byte(whole: Any) -> None:
    """`train` on the shipped tables writes `models/throughput.json` again."""
    assert document_text(whole.document).encode() == (ROOT / "models" / "throughput.json").read_bytes()


def test_the_shipped_card_holds_these_figures(whole: Any) -> None:
    """The card's trained section is what training writes."""
    card = (ROOT / "models" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card_with(card, whole, "card") == card


def test_unseen_devices_are_predicted_better_than_by_the_known_ridge(whole: Any) -> None:
    """Not worse than a ridge on 40 features: tg 12.8 %, pp 26.5 %; the interval's coverage lies in its band."""
    assert whole.unseen["tg"].median_error <= 0.128
    assert whole.unseen["pp"].median_error <= 0.265
    assert 0.86 <= whole.unseen["tg"].coverage_90 <= 0.94
    assert whole.unseen["tg"].median_width_90 <= 0.60
    assert whole.unseen["tg"].rows > 1500


def test_a_small_table_gives_the_same_bytes_in_any_order(
    sklearn: None, tables: Any, sheets: Path, written: Callable[..., Path]
) -> None:
    """The same data gives the same bytes; the hash tells other data."""
    stated = stated_document()
    first = document_text(train(written(*tables.rows()), sheets, *stated).document)
    again = document_text(train(written(*tables.rows()), sheets, *stated).document)
    assert first == again
    other = train(written(*tables.rows()[:-2]), sheets, *stated).document
    assert other["training"]["hash"] != json.loads(first)["training"]["hash"]


def test_what_is_written_can_be_read(sklearn: None, tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """The document is small, readable JSON that the speed model takes."""
    trained = train(written(*tables.rows()), sheets, *stated_document())
    text = document_text(trained.document)
    assert len(text.encode()) <= MOST_BYTES
    assert max(map(len, (line for line in text.splitlines() if '"source"' not in line))) <= 125
    coefficients = parse_coefficients(json.loads(text), "here")
    assert coefficients.learned is not None
    assert any("family:" in name for term in coefficients.learned.tg.terms for name in term.factors)
    assert trained.n_devices == 10


def test_many_rows_of_one_device_do_not_rule(
    sklearn: None, tables: Any, sheets: Path, written: Callable[..., Path]
) -> None:
    """Fifty times the rows of one device move its rivals' prediction by less than half of how far they are apart."""
    rows = tables.rows()
    flood = [
        {**row, "tps_mean": round(0.4 * row["tps_mean"] * (1 + i / 1000), 3)}
        for row in rows
        if row["device_norm"] == "AMD Radeon RX 7600"
        for i in range(50)
    ]
    stated = stated_document()
    before, after = (
        parse_coefficients(train(written(*table), sheets, *stated).document, "here") for table in (rows, rows + flood)
    )
    from magnitude_tune.learning.evaluation import evaluate

    scored = [evaluate(written(*rows[:12]), sheets, each).kinds["tg"] for each in (before, after)]
    assert scored[1].median_error is not None
    assert scored[0].median_error is not None
    assert scored[1].median_error < scored[0].median_error + 0.2


def test_too_few_rows_are_a_clear_error(sklearn: None, tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """A table without generation, without prompts or with two devices cannot be trained on."""
    prompts = [row for row in tables.rows() if row["n_prompt"]]
    for rows in (prompts, tables.rows()[:12]):
        with pytest.raises(InputFileError, match="too few devices"):
            train(written(*rows), sheets, *stated_document())


def test_without_scikit_learn_the_extra_is_named(tmp_path: Path) -> None:
    """`train` ends with exit code 6 and says what to install."""
    code = (
        "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.linear_model'] = None\n"
        "sys.argv = ['magnitude-tune', 'train']\n"
        "from magnitude_tune.cli.start import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "magnitude-tune[train]" in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluate_needs_neither_scikit_learn_nor_numpy(
    tables: Any, sheets: Path, written: Callable[..., Path], tmp_path: Path
) -> None:
    """Scoring works where neither is installed."""
    code = (
        "import sys\nfor name in ('sklearn', 'numpy', 'scipy', 'pandas'): sys.modules[name] = None\n"
        f"sys.argv = ['magnitude-tune', 'evaluate', {str(written(*tables.rows()))!r}, '--devices', {str(sheets)!r}]\n"
        "from magnitude_tune.cli.start import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tg" in done.stdout


def test_only_the_regression_imports_scikit_learn() -> None:
    """No other module of the package names it in an import."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "sklearn" for name in names):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"learning/regression.py"}


def test_the_card_keeps_what_others_wrote(whole: Any) -> None:
    """Only the trained section is written anew; a card without one is an error."""
    card = card_with(f"before\n{BEGIN}\nold\n{END}\nafter\n", whole, "card.md")
    assert card.startswith("before\n")
    assert card.endswith("\nafter\n")
    assert "\nold\n" not in card
    with pytest.raises(InputFileError, match="no section"):
        card_with("nothing here", whole, "card.md")
