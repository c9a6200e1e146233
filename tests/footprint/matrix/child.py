"""The child that makes contexts and says what the engine allocated: `python tests/footprint/matrix/child.py`.

One JSON object a line on stdin, `{"model": PATH, "settings": {...}, "rpc": [ADDRESS, ...]}`; one answer a line
on stdout, `{"log": TEXT}` or `{"error": MESSAGE, "log": TEXT}`. `{"facts": true}` asks what the library is. Nothing
is decoded. The library is llama-cpp-python's own, or the one of a server's package in the folder that
`LLAMA_CPP_LIB_PATH` names: there the binding's functions that it lacks are left out, and a layout of parameters is
taken under which its defaults make sense.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from magnitude_tune.engines.binding import device_handles, engine_function, library_facts, load_binding
from magnitude_tune.engines.decoding import Decoder, DecodingError


class TolerantLibrary(ctypes.CDLL):
    """A library that a binding for a newer one can be laid over: what it lacks does nothing when it is declared."""

    binding_is_loading = True

    def __getattr__(self, name: str) -> Any:
        """The function, or a stand-in while the binding declares it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or not TolerantLibrary.binding_is_loading:
                raise
            return ctypes.CFUNCTYPE(None)()


def bind() -> Any:
    """The binding over the library that this process shall use."""
    ctypes.CDLL = TolerantLibrary  # type: ignore[misc]
    binding = load_binding()
    TolerantLibrary.binding_is_loading = False
    for left_out in ((), ("lazy_mode",)):  # llama.cpp before lazy loading has no such field
        fields = [field for field in binding.llama_model_params._fields_ if field[0] not in left_out]
        layout = type("ModelParameters", (ctypes.Structure,), {"_fields_": fields})
        binding.llama_model_default_params.restype = layout
        binding.llama_model_load_from_file.argtypes = [ctypes.c_char_p, layout]
        defaults = binding.llama_model_default_params()
        if defaults.use_extra_bufts and not (defaults.vocab_only or defaults.check_tensors or defaults.no_alloc):
            return binding
    raise SystemExit("the library's model parameters are laid out in a way that is not known here")


class Lines:
    """What the engine logged since it was last taken."""

    def __init__(self, binding: Any) -> None:
        self._texts: list[bytes] = []
        self._callback = binding.llama_log_callback(self._keep)  # the engine holds no reference
        binding.llama_log_set(self._callback, ctypes.c_void_p())

    def take(self) -> str:
        """The log so far, which starts anew."""
        text = b"".join(self._texts).decode("utf-8", "replace")
        self._texts.clear()
        return text

    def _keep(self, _level: int, text: bytes, _user_data: object) -> None:
        self._texts.append(text)


class Loader:
    """Loads models and makes contexts."""

    def __init__(self) -> None:
        self._binding = bind()
        self._lines = Lines(self._binding)
        self._known: set[str] = set()

    def answer(self, request: Mapping[str, Any]) -> dict[str, object]:
        """What loading and making a context logged."""
        self._lines.take()
        if request.get("facts"):
            return library_facts(self._binding)
        settings = dict(request["settings"])
        try:
            for address in request.get("rpc", ()):
                self._add_rpc(address)
            Decoder(self._binding, request["model"], settings).close()
        except DecodingError as error:
            return {"error": str(error), "log": self._lines.take()}
        return {"log": self._lines.take()}

    def _add_rpc(self, address: str) -> None:
        if address in self._known:
            return
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        by_name = engine_function(self._binding, "ggml_backend_reg_by_name", pointer, text)
        find = engine_function(self._binding, "ggml_backend_reg_get_proc_address", pointer, pointer, text)
        register = engine_function(self._binding, "ggml_backend_register", None, pointer)
        registry = by_name(b"RPC") if by_name is not None else None
        if not registry or find is None or register is None:
            raise DecodingError("this library has no RPC backend")
        add = ctypes.CFUNCTYPE(pointer, text)(find(registry, b"ggml_backend_rpc_add_server"))
        register(add(address.encode()))
        self._known.add(address)
        if not any(name.startswith("RPC") for name in device_handles(self._binding)):
            raise DecodingError(f"no RPC device at {address}")


def main() -> None:
    """Answer requests until the end of input."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        loader = Loader()
        for line in sys.stdin:
            answers.write(json.dumps(loader.answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
