"""Engines found here: asked once in a child, kept under a key that notices changes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.engines import find, llama_cpp_python, server_probe
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.processes import run

ANSWER: dict[str, Any] = {
    "event": "facts",
    "path": "lib/libllama.so",
    "build": "9.9",
    "ggml_version": "1.2.3",
    "backends": ["cpu", "cuda"],
    "devices": [],
    "extra_buffers": ["amx", "cpu_repack"],
    "gpu_offload": True,
}


class Package:
    """An installed llama_cpp package on disk, and how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "lib").mkdir(parents=True)
        (folder / "__init__.py").write_text('__version__ = "9.9"\n')
        (folder / "lib/libllama.so").write_bytes(b"library")
        self.answer: dict[str, Any] | EngineError = dict(ANSWER)
        self.asked = 0

    def probe(self) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.answer, EngineError):
            raise self.answer
        return self.answer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    made = Package(tmp_path / "llama_cpp")
    spec = importlib.machinery.ModuleSpec("llama_cpp", None, is_package=True)
    spec.submodule_search_locations = [str(made.folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(llama_cpp_python, "probe", made.probe)
    monkeypatch.setattr(server_probe, "find_server", lambda **_: None)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    return made


def test_the_second_look_asks_nobody(package: Package) -> None:
    """The answer of the first look is kept and is the same."""
    first = find.find_engines()
    assert find.find_engines() == first
    assert package.asked == 1
    assert first == (
        EngineFacts(
            name="llama_cpp_python",
            path="lib/libllama.so",
            build="9.9",
            ggml_version="1.2.3",
            backends=("cpu", "cuda"),
            extra_buffers=("amx", "cpu_repack"),
            gpu_offload=True,
        ),
    )


@pytest.mark.parametrize("change", ["library", "new library", "package", "variable", "cpu"])
def test_a_change_is_noticed(package: Package, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Another library file, another version, another CPU or another choice of devices is asked again."""
    find.find_engines()
    if change == "library":
        (package.folder / "lib/libllama.so").write_bytes(b"another library")
    elif change == "new library":
        (package.folder / "lib/libggml-cuda.so").write_bytes(b"new")
    elif change == "package":
        (package.folder / "__init__.py").write_text('__version__ = "9.9.1"\n')
    elif change == "variable":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    else:
        monkeypatch.setattr(find, "_cpu_line", lambda: "another CPU")
    find.find_engines()
    assert package.asked == 2


def test_free_memory_of_devices_is_asked_again_after_a_while(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with devices holds their free memory, so it is kept for seconds only."""
    row = {"name": "CUDA0", "description": "a card", "total_bytes": 10, "free_bytes": 5}
    package.answer = {**ANSWER, "devices": [row]}
    (engine,) = find.find_engines()
    assert engine.devices[0].free_bytes == 5
    find.find_engines()
    assert package.asked == 1
    now = find.time.time()
    monkeypatch.setattr(find.time, "time", lambda: now + 3600)
    find.find_engines()
    assert package.asked == 2


def test_an_engine_that_cannot_be_loaded_is_listed_with_its_problem(package: Package) -> None:
    """B21: a missing libcuda.so.1 is a problem of the engine, not a traceback; it is looked at again next time."""
    package.answer = EngineError("libcuda.so.1 is missing", hint="install the driver")
    (engine,) = find.find_engines()
    assert engine.problem == "libcuda.so.1 is missing; install the driver"
    package.answer = dict(ANSWER)
    (engine,) = find.find_engines()
    assert engine.problem is None


@pytest.mark.parametrize("answer", [{}, {**ANSWER, "devices": 5}, {**ANSWER, "devices": [{"name": "x"}]}])
def test_an_answer_that_means_nothing_is_a_problem(package: Package, answer: dict[str, Any]) -> None:
    """A worker's answer is checked before it is believed or kept."""
    package.answer = answer
    (engine,) = find.find_engines()
    assert engine.problem is not None


def test_no_package_is_no_engine(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is not installed is not listed; a server that was found is."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert find.find_engines() == ()
    server = EngineFacts(name="llama_server", path="/s", build="1", ggml_version=None)
    asked: list[dict[str, Any]] = []

    def found(**arguments: Any) -> EngineFacts:
        asked.append(arguments)
        return server

    monkeypatch.setattr(server_probe, "find_server", found)
    assert find.find_engines(engine_path="/s", rpc=("127.0.0.1:1",)) == (server,)
    assert asked == [{"engine_path": "/s", "rpc": ("127.0.0.1:1",)}]


LOADS_IMPORT_ERROR = """
import sys
from magnitude_tune.engines import llama_cpp_python
from magnitude_tune.errors import EngineError
try:
    llama_cpp_python.probe()
except EngineError as error:
    print(error.what, "|", error.hint)
"""


def test_the_real_worker_reports_a_library_that_does_not_load(tmp_path: Path) -> None:
    """B21 end to end: a package whose shared library needs libcuda.so.1 gives one sentence that names it."""
    folder = tmp_path / "llama_cpp"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    message = "Failed to load shared library: libcuda.so.1: cannot open shared object file: No such file"
    (folder / "llama_cpp.py").write_text(f"raise RuntimeError({message!r})\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run([sys.executable, "-c", LOADS_IMPORT_ERROR], timeout_seconds=60, env=env)
    assert "libcuda.so.1 is missing" in done.stdout
    assert "NVIDIA driver" in done.stdout
    assert done.stderr == ""


@pytest.mark.engine
def test_the_real_library_is_found_without_importing_it() -> None:
    """The installed library says its version, backends and layouts; this process does not load it, nor numpy."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    script = (
        "import sys\nfrom magnitude_tune.engines.find import find_engines\n"
        "engine = next(engine for engine in find_engines() if engine.name == 'llama_cpp_python')\n"
        "assert engine.problem is None, engine\n"
        "print(engine.build, engine.ggml_version, *engine.backends, engine.extra_buffers)\n"
        "assert not {'llama_cpp', 'numpy', 'pydantic'} & set(sys.modules)\n"
    )
    first = run([sys.executable, "-c", script], timeout_seconds=120)
    assert first.returncode == 0, first.stderr
    assert run([sys.executable, "-c", script], timeout_seconds=60) == first
    assert "cpu" in first.stdout
