"""Which engines are here, and what each can do.

Asking takes a child and tens of milliseconds to seconds; answers are kept under a key that changes with the library,
the CPU and the variables that choose devices, so that a warm look costs a few `stat` calls and imports nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from magnitude_tune.engines.cuda_archs import cuda_archs
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts
from magnitude_tune.storage import read_cached, write_cached

__all__ = ["build_stamp", "find_engines"]

_CACHE_NAME: Final = "engine_llama_cpp_python"
_LIB_PATH_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
_DEVICE_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "ROCR_VISIBLE_DEVICES",
    _LIB_PATH_VARIABLE,
)
_CPUINFO_BYTES: Final = 1 << 13
# Free memory of a card is part of the answer and does not keep.
_DEVICES_KEEP_SECONDS: Final = 30.0
_LIBRARY_MARKS: Final = ("ggml", "llama")


def find_engines(*, engine_path: str | None = None, rpc: tuple[str, ...] = ()) -> tuple[EngineFacts, ...]:
    """Every engine found here; one that is here but cannot be used carries its `problem`.

    Args:
        engine_path: a `llama-server` or `llama-bench` (or their folder) to use instead of looking for one.
        rpc: `host:port` of devices that `llama-server` is to use.
    """
    from magnitude_tune.engines.llama_bench_probe import bench_program, find_llama_bench, is_bench_only
    from magnitude_tune.engines.server_probe import find_server

    program = bench_program(engine_path)
    bench_only = engine_path is not None and is_bench_only(engine_path)
    found = (
        _find_llama_cpp_python(),
        None if bench_only else find_server(engine_path=engine_path, rpc=rpc),
        None if program is None else find_llama_bench(program),
    )
    return tuple(engine for engine in found if engine is not None)


def build_stamp(path: str) -> str:
    """A short text that changes when the engine at `path`, or a ggml or llama library beside it, changes."""
    target = Path(path)
    folder = target if target.is_dir() else target.resolve().parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        entries = []
    rows = [_row(entry) for entry in entries if any(mark in entry.name for mark in _LIBRARY_MARKS)]
    return hashlib.sha256("\n".join([str(folder), *rows]).encode(errors="surrogateescape")).hexdigest()[:16]


def _row(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path.name} gone"
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"


def _find_llama_cpp_python() -> EngineFacts | None:
    try:
        spec = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    libraries = Path(os.environ.get(_LIB_PATH_VARIABLE) or package / "lib")
    key = _key(package, libraries)
    kept = read_cached(_CACHE_NAME, key)
    facts = _facts(kept) if kept is not None and _is_fresh(kept) else None
    return facts or _ask(libraries, key)


def _key(package: Path, libraries: Path) -> str:
    driver = "/proc/driver/nvidia/version"
    parts = [
        sys.executable,
        sys.version,
        _row(package / "__init__.py"),
        build_stamp(str(libraries)),
        _cpu_line(),
        _text_of(driver, _CPUINFO_BYTES),
        *(f"{name}={os.environ.get(name, '')}" for name in _DEVICE_VARIABLES),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _cpu_line() -> str:
    """Model and instruction sets of the first CPU; the rest of the file holds clock rates, which change."""
    names = ("flags", "Features", "isa", "model name")
    lines = _text_of("/proc/cpuinfo", _CPUINFO_BYTES).splitlines()
    return "\n".join([line for line in lines if line.startswith(names)][:2])


def _text_of(path: str, limit_bytes: int) -> str:
    try:
        with Path(path).open("rb") as stream:
            return stream.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_fresh(kept: Mapping[str, object]) -> bool:
    asked = kept.get("asked_at")
    if not kept.get("devices"):
        return True
    return isinstance(asked, int | float) and 0 <= time.time() - asked <= _DEVICES_KEEP_SECONDS


def _ask(libraries: Path, key: str) -> EngineFacts:
    from magnitude_tune.engines.llama_cpp_python import probe

    try:
        answer = probe()
    except EngineError as error:
        # Not kept: what is missing may be installed without a trace in the key.
        return EngineFacts(
            name="llama_cpp_python", path=str(libraries), build="unknown", ggml_version=None, problem=_problem(error)
        )
    facts = _facts(answer)
    if facts is None:
        return EngineFacts(
            name="llama_cpp_python",
            path=str(libraries),
            build="unknown",
            ggml_version=None,
            problem="its worker gave an answer that means nothing",
        )
    write_cached(_CACHE_NAME, key, {**answer, "asked_at": time.time()})
    return facts


def _problem(error: EngineError) -> str:
    return f"{error.what}; {error.hint}" if error.hint else error.what


def _facts(answer: Mapping[str, Any]) -> EngineFacts | None:
    """The facts of a worker's answer or of a kept one; None if anything in it is not what it should be."""
    try:
        devices = tuple(
            EngineDevice(
                str(row["name"]),
                str(row["description"]),
                int(row["total_bytes"]),
                int(row["free_bytes"]),
                row.get("integrated") is True,
            )
            for row in answer["devices"]
        )
        version = answer["ggml_version"]
        return EngineFacts(
            name="llama_cpp_python",
            path=str(answer["path"]),
            build=str(answer["build"]),
            ggml_version=None if version is None else str(version),
            backends=tuple(str(name) for name in answer["backends"]),
            devices=devices,
            extra_buffers=tuple(str(name) for name in answer["extra_buffers"]),
            gpu_offload=answer["gpu_offload"] is True,
            cuda_archs=cuda_archs(str(answer.get("system_info", ""))),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
