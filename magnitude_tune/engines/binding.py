"""The low-level binding of llama-cpp-python, and what the library says of itself. Runs in a worker child only.

The package's own `__init__` also loads numpy, jinja2 and more; a stand-in package leaves only the ctypes binding,
so that a worker's memory is the engine's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any, Final

__all__ = ["device_handles", "engine_function", "library_facts", "library_folder", "load_binding", "package_version"]

_GPU_TYPES: Final = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_INTEGRATED_TYPE: Final = 2
_CPU_TYPE: Final = 0
_MAX_EXTRA_BUFFERS: Final = 16
# Any of these lets ggml repack for some type (ggml/src/ggml-cpu/repack.cpp, ggml_repack_get_optimal_repack_type).
_REPACK_FEATURES: Final = ("avx2", "dotprod", "matmul_int8", "sve", "riscv_v")
_LAYOUT_NAMES: Final = {"AMX": "amx", "CPU_KLEIDIAI": "kleidiai", "CPU_REPACK": "cpu_repack"}


@functools.cache
def load_binding() -> Any:
    """The module `llama_cpp.llama_cpp`, without running the package's `__init__`.

    Raises:
        ImportError: the package is not installed.
        OSError, RuntimeError, AttributeError: its shared library cannot be loaded or lacks a symbol.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("llama_cpp is not installed")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    binding = importlib.import_module("llama_cpp.llama_cpp")
    binding.llama_backend_init()
    _load_dynamic_backends(binding)
    return binding


def library_folder(binding: Any) -> Path:
    """Where the shared libraries are."""
    return Path(binding._base_path)


def package_version(binding: Any) -> str:
    """The package's version as its `__init__` states it; `unknown` where it does not."""
    with contextlib.suppress(OSError):
        text = Path(binding.__file__).with_name("__init__.py").read_text(encoding="utf-8")
        if found := re.search(r'^__version__\s*=\s*"([^"]{1,64})"', text, re.MULTILINE):
            return found[1]
    return "unknown"


def engine_function(binding: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A C function of the engine's libraries that the binding does not declare; None if none of them has it."""
    for library in _libraries(binding):
        with contextlib.suppress(AttributeError):
            function = getattr(library, name)
            function.restype = result
            function.argtypes = list(arguments)
            return function
    return None


def _libraries(binding: Any) -> list[Any]:
    # On Linux and macOS the handle of libllama also finds the symbols of the ggml libraries it depends on.
    libraries = [binding._lib]
    if sys.platform == "win32":
        for path in sorted(library_folder(binding).glob("*ggml*.dll")):
            with contextlib.suppress(OSError):
                libraries.append(ctypes.CDLL(str(path)))
    return libraries


def _load_dynamic_backends(binding: Any) -> None:
    count = engine_function(binding, "ggml_backend_reg_count", ctypes.c_size_t)
    load = engine_function(binding, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)
    if count is not None and load is not None and count() == 0:
        load(str(library_folder(binding)).encode())


def device_handles(binding: Any) -> dict[str, int]:
    """Every registered device by the engine's name for it."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    count = engine_function(binding, "ggml_backend_dev_count", size)
    get = engine_function(binding, "ggml_backend_dev_get", pointer, size)
    name = engine_function(binding, "ggml_backend_dev_name", ctypes.c_char_p, pointer)
    if count is None or get is None or name is None:
        return {}
    handles = [get(index) for index in range(count())]
    return {name(handle).decode("utf-8", "replace"): handle for handle in handles}


def library_facts(binding: Any) -> dict[str, object]:
    """What the library can do, as JSON-able values: see `EngineFacts` for their meaning."""
    version = engine_function(binding, "ggml_version", ctypes.c_char_p)
    library = Path(getattr(binding._lib, "_name", "") or library_folder(binding))
    return {
        "path": str(library),
        "build": package_version(binding),
        "ggml_version": version().decode("ascii", "replace") if version is not None else None,
        "backends": _backends(binding),
        "devices": _accelerators(binding),
        "extra_buffers": _extra_buffers(binding),
        "gpu_offload": bool(binding.llama_supports_gpu_offload()),
        "system_info": binding.llama_print_system_info().decode("utf-8", "replace"),
    }


def _backends(binding: Any) -> list[str]:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    count = engine_function(binding, "ggml_backend_reg_count", size)
    get = engine_function(binding, "ggml_backend_reg_get", pointer, size)
    name = engine_function(binding, "ggml_backend_reg_name", ctypes.c_char_p, pointer)
    if count is None or get is None or name is None:
        return ["cpu"]
    return [name(get(index)).decode("utf-8", "replace").lower() for index in range(count())]


def _accelerators(binding: Any) -> list[dict[str, object]]:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    describe = engine_function(binding, "ggml_backend_dev_description", text, pointer)
    sizes = ctypes.POINTER(ctypes.c_size_t)
    memory = engine_function(binding, "ggml_backend_dev_memory", None, pointer, sizes, sizes)
    kind = engine_function(binding, "ggml_backend_dev_type", ctypes.c_int, pointer)
    if describe is None or memory is None or kind is None:
        return []
    found: list[dict[str, object]] = []
    for name, handle in device_handles(binding).items():
        if kind(handle) not in _GPU_TYPES:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        description = describe(handle).decode("utf-8", "replace")
        found.append(
            {
                "name": name,
                "description": description,
                "total_bytes": total.value,
                "free_bytes": free.value,
                "integrated": kind(handle) == _INTEGRATED_TYPE,
            }
        )
    return found


def _extra_buffers(binding: Any) -> list[str]:
    """Names of the CPU device's extra buffer types that this CPU can use, in the order the engine tries them.

    The engine lists AMX and KleidiAI only where the CPU and the kernel allow them, but CPU_REPACK always.
    """
    pointer = ctypes.c_void_p
    kind = engine_function(binding, "ggml_backend_dev_type", ctypes.c_int, pointer)
    registry = engine_function(binding, "ggml_backend_dev_backend_reg", pointer, pointer)
    find = engine_function(binding, "ggml_backend_reg_get_proc_address", pointer, pointer, ctypes.c_char_p)
    name = engine_function(binding, "ggml_backend_buft_name", ctypes.c_char_p, pointer)
    if kind is None or registry is None or find is None or name is None:
        return []
    found: list[str] = []
    for device in (handle for handle in device_handles(binding).values() if kind(handle) == _CPU_TYPE):
        address = find(registry(device), b"ggml_backend_dev_get_extra_bufts")
        if not address:
            continue
        types_ = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
        for index in range(_MAX_EXTRA_BUFFERS if types_ else 0):
            if not types_[index]:
                break
            raw = name(types_[index]).decode("ascii", "replace")
            found.append(_LAYOUT_NAMES.get(raw, raw.lower()))
    return [layout for layout in found if layout != "cpu_repack" or _can_repack(binding)]


def _can_repack(binding: Any) -> bool:
    checks = [engine_function(binding, f"ggml_cpu_has_{feature}", ctypes.c_int) for feature in _REPACK_FEATURES]
    return any(check is not None and check() for check in checks)
