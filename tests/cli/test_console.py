"""What reaches a terminal from strangers' names."""

from __future__ import annotations

import json

import pytest

from magnitude_tune.cli.console import emit_json


def test_json_escapes_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """DEL and the C1 controls (U+009B begins a terminal's command) are escaped, other letters stay readable."""
    controls = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
    document = {"name": f"modèle 模型 \N{NO-BREAK SPACE}\\{controls}", controls: 1}
    emit_json(document, None)
    shown = capsys.readouterr().out
    assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in shown.replace("\n", ""))
    assert "\\u009b" in shown
    assert "modèle 模型" in shown
    assert json.loads(shown) == document
