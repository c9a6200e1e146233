"""Finds llama-bench and asks it what it can do, without a model. It is used only where it is asked for by name."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Final

from magnitude_tune import storage
from magnitude_tune.engines import server_files
from magnitude_tune.engines.server_probe import from_stored, to_stored
from magnitude_tune.fingerprint.values import EngineFacts

__all__ = ["bench_program", "find_llama_bench", "is_bench_only"]

_PROGRAM: Final = server_files.program_name("llama-bench")
_FOLDERS: Final = ("", "bin", "build/bin", "build/bin/Release")
_BUILD: Final = r"^build: (?P<commit>\S{1,40}) \((?P<number>\d{1,9})\)\s*$"
_EXPECTED_OPTIONS: Final = frozenset({"model", "n-prompt", "n-gen", "repetitions", "output"})


def bench_program(engine_path: str | None) -> Path | None:
    """llama-bench: at `engine_path` or beside it, else on PATH, else beside an installed llama-server."""
    if engine_path is not None:
        return _named(Path(engine_path).expanduser())
    if on_path := shutil.which(_PROGRAM):
        return Path(on_path).absolute()
    beside = (server.resolve().with_name(_PROGRAM) for server in server_files.installed_programs())
    return next((program for program in beside if program.is_file()), None)


def _named(path: Path) -> Path | None:
    if path.is_dir():
        candidates = [path / folder / _PROGRAM for folder in _FOLDERS]
    elif path.name == _PROGRAM:
        candidates = [path]
    else:
        candidates = [path.with_name(_PROGRAM), path.resolve().with_name(_PROGRAM)]
    return next((candidate.absolute() for candidate in candidates if candidate.is_file()), None)


def is_bench_only(engine_path: str) -> bool:
    """Whether that path names llama-bench, or a folder that holds it but no llama-server."""
    path = Path(engine_path).expanduser()
    if not path.is_dir():
        return path.name == _PROGRAM and path.is_file()
    server = server_files.program_name("llama-server")
    return _named(path) is not None and not any((path / folder / server).is_file() for folder in _FOLDERS)


def find_llama_bench(program: Path) -> EngineFacts | None:
    """What that llama-bench can do, remembered until its files change; None if it is another program."""
    name = f"llama-bench-{hashlib.sha256(str(program).encode(errors='surrogateescape')).hexdigest()[:12]}"
    key = server_files.identity(program)
    stored = storage.read_cached(name, key)
    facts = from_stored(stored, "llama_bench") if stored is not None else None
    if facts is None:
        facts = _probe(program)
        if facts is not None:
            storage.write_cached(name, key, to_stored(facts))
    if facts is None or not facts.devices:
        return facts
    from magnitude_tune.engines.server_questions import with_devices

    return with_devices(facts, ())


def _probe(program: Path) -> EngineFacts | None:
    from magnitude_tune.engines import rpc as rpc_devices
    from magnitude_tune.engines.cpu_flags import cpu_flags
    from magnitude_tune.engines.llama_bench_arguments import parse_help
    from magnitude_tune.engines.server_questions import ask, library_backends, problem_of

    answer = ask(program, "--help")
    flags = parse_help(answer.stdout)
    known = flags >= _EXPECTED_OPTIONS
    problem = problem_of(answer)
    if not known and problem is None:
        return None
    build, devices = "unknown", rpc_devices.parse_devices("")
    if known:
        # With no test to run it loads nothing, and its table ends with the build.
        footer = ask(program, "-m", "none", "-p", "0", "-n", "0", "-o", "md")
        problem = problem_of(footer)
        if match := re.search(_BUILD, footer.stdout, re.MULTILINE):
            build = f"{match['number']} ({match['commit']})"
        if "list-devices" in flags:
            listed = ask(program, "--list-devices")
            devices = rpc_devices.parse_devices(listed.stdout, listed.stderr)
    return EngineFacts(
        name="llama_bench",
        path=str(program),
        build=build,
        ggml_version=server_files.ggml_version(program),
        problem=problem,
        backends=tuple(sorted({"cpu", *library_backends(program)})),
        devices=devices,
        # It says nothing about how it was compiled: what every usual build does on such a CPU. AMX is not assumed.
        extra_buffers=("cpu_repack",) if {"avx2", "asimddp"} & (cpu_flags() or frozenset()) else (),
        gpu_offload=bool(devices),
        flags=flags,
    )
