"""A fake llama-server that behaves as told."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_FAKE = Path(__file__).with_name("fake_llama_server.py")


@pytest.fixture
def fake_program(tmp_path: Path) -> Callable[..., Path]:
    """Makes a program named llama-server, with the given variables set (see `fake_llama_server.py`)."""
    if os.name != "posix":
        pytest.skip("the fake server is started through a shell script")

    def make(folder: str = "fake", **variables: object) -> Path:
        program = tmp_path / folder / "llama-server"
        program.parent.mkdir(exist_ok=True)
        settings = "".join(f"export FAKE_{name.upper()}='{value}'\n" for name, value in variables.items())
        program.write_text(f'#!/bin/sh\n{settings}exec "{sys.executable}" -S "{_FAKE}" "$@"\n', encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program

    return make
