"""Every child process: in a group of its own, gone with its parent, bounded in time and output.

A guard (a shell that waits for the end of its input) leads each child's process group. Its input is a pipe that only
this process holds open, so whatever ends this process, SIGKILL included, makes the guard kill the group with all
grandchildren. No signal handler is needed, so nobody else's are disturbed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

__all__ = ["Child", "Completed", "GroupMemory", "child_environment", "run", "start"]

_OUTPUT_LIMIT_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 16
_GONE_SECONDS: Final = 10.0
_POSIX: Final = os.name == "posix"
_SHELL: Final = Path("/bin/sh")
_GUARD_SCRIPT: Final = "trap '' TERM INT HUP; read -r line; kill -KILL 0"
_PYTHON_GUARD_SCRIPT: Final = (
    "import os,signal,sys\n"
    "for s in (signal.SIGTERM,signal.SIGINT,signal.SIGHUP): signal.signal(s,signal.SIG_IGN)\n"
    "sys.stdin.buffer.read()\n"
    "os.kill(0,signal.SIGKILL)"
)
_DROPPED_PREFIX: Final = "LLAMA_ARG_"


class Completed(NamedTuple):
    """How a command ended. Return code None: timed out and killed; 126: not executable; 127: not found.

    A negative return code is the signal that ended it.
    """

    returncode: int | None
    stdout: str
    stderr: str


class GroupMemory(NamedTuple):
    """Memory of a process group in bytes: sums over its living members. The peak is the sum of the members' peaks."""

    anonymous_bytes: int
    resident_bytes: int
    peak_resident_bytes: int
    swap_bytes: int


def child_environment(
    extra: Mapping[str, str] | None = None,
    *,
    library_dirs: Sequence[str] = (),
    base: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment for one engine's child, and the names that were dropped from it.

    Args:
        extra: variables of this child alone; they may be `LLAMA_ARG_*`, since they are not inherited.
        library_dirs: folders searched first for shared libraries, by this child only.
        base: what is inherited; this process's environment where None.

    Returns:
        A copy of `base` without `LLAMA_ARG_*`, which would change the plan, and the sorted names left out.
    """
    inherited = dict(os.environ if base is None else base)
    dropped = tuple(sorted(name for name in inherited if name.startswith(_DROPPED_PREFIX)))
    for name in dropped:
        del inherited[name]
    inherited.update(extra or {})
    if library_dirs:
        variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
        inherited[variable] = os.pathsep.join([*library_dirs, *filter(None, [inherited.get(variable)])])
    return inherited, dropped


def run(argv: Sequence[str], *, timeout_seconds: float, env: Mapping[str, str] | None = None) -> Completed:
    """Run a command to its end or to the time limit, and everything it started with it.

    Output is decoded as UTF-8 with replacements; what exceeds 4 MiB of a stream is read and dropped.
    """
    try:
        child = Child(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError as error:
        return Completed(127, "", str(error))
    except (OSError, ValueError) as error:
        return Completed(126, "", str(error))
    with child:
        readers = [_Reader(stream) for stream in (child.stdout, child.stderr) if stream is not None]
        returncode = child.wait(timeout_seconds)
        child.close(grace_seconds=0)
        texts = [reader.text() for reader in readers]
    return Completed(returncode, *texts)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    pipes: bool = False,
) -> Child:
    """Start a long-running child; use it in a `with` block or close it.

    Args:
        argv: the program and its arguments.
        env: its whole environment; this process's where None.
        log_path: a file that takes its stderr, and its stdout too unless `pipes`; nothing is kept where None.
        pipes: give it pipes as stdin and stdout (binary, unbuffered writes).

    Raises:
        OSError: the program is not there or cannot be executed.
    """
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | int = subprocess.DEVNULL
        if log_path is not None:
            log = stack.enter_context(log_path.open("wb"))
        stdin, stdout = (subprocess.PIPE, subprocess.PIPE) if pipes else (subprocess.DEVNULL, log)
        return Child(argv, env=env, stdin=stdin, stdout=stdout, stderr=log, log_path=log_path)


class Child:
    """A process in a group of its own that ends with this process, however this process ends.

    On Windows there is no guard: the tree is killed by `close` and at exit.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        stdin: IO[bytes] | int,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        log_path: Path | None = None,
    ) -> None:
        self.log_path = log_path
        self._closed = False
        self._guard = _start_guard() if _POSIX else None
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=None if env is None else dict(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                process_group=None if self._guard is None else self._guard.pid,
            )
        except BaseException:
            if self._guard is not None:
                _end_guard(self._guard)
            raise
        _living.add(self)

    @property
    def pid(self) -> int:
        """Process id of the child itself."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        """Its input, where it has a pipe."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Its output, where it has a pipe."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """Its error output, where it has a pipe."""
        return self._process.stderr

    def poll(self) -> int | None:
        """Its return code (negative: the signal that ended it), None while it runs."""
        return self._process.poll()

    def wait(self, timeout_seconds: float) -> int | None:
        """Its return code, None if it still runs after that time."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def log_tail(self, limit_bytes: int = 1 << 16) -> str:
        """The end of its log file; empty without one."""
        if self.log_path is None:
            return ""
        try:
            with self.log_path.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - limit_bytes))
                return stream.read(limit_bytes).decode("utf-8", "replace")
        except OSError:
            return ""

    def members(self) -> tuple[int, ...]:
        """Process ids of the living members of its group: itself and what it started."""
        if self._guard is None:
            return _tree(self._process.pid)
        return tuple(pid for pid in _group_members(self._guard.pid) if pid != self._guard.pid)

    def memory(self) -> GroupMemory:
        """Memory of the group now; all zero when nobody is left."""
        readings = [reading for pid in self.members() if (reading := _memory_of(pid)) is not None]
        return GroupMemory(
            anonymous_bytes=sum(reading.anonymous_bytes for reading in readings),
            resident_bytes=sum(reading.resident_bytes for reading in readings),
            peak_resident_bytes=sum(reading.peak_resident_bytes for reading in readings),
            swap_bytes=sum(reading.swap_bytes for reading in readings),
        )

    def close(self, grace_seconds: float = 2.0) -> int | None:
        """End the whole group and wait until nobody of it is left; may be called again.

        Args:
            grace_seconds: time to end in peace after the input is closed and SIGTERM is sent; then it is killed.

        Returns:
            The return code.
        """
        if self._closed:
            return self._process.returncode
        try:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            if grace_seconds > 0 and self.poll() is None:
                self._signal(signal.SIGTERM)
                self.wait(grace_seconds)
        finally:
            self._kill()
            self._closed = True
            _living.discard(self)
            if self._process.stdout is not None and self._process.stderr is None:
                self._process.stdout.close()
        return self._process.returncode

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._guard is None:
                self._process.terminate()
            else:
                os.killpg(self._guard.pid, number)

    def _kill(self) -> None:
        if self._guard is None:
            for pid in self.members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)  # on Windows this is TerminateProcess
            self._process.wait()
            return
        # The guard leads the group and is not reaped before this line: its number cannot be anybody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _GONE_SECONDS
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.005)
        _end_guard(self._guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_living: set[Child] = set()


@atexit.register
def _close_all() -> None:
    for child in tuple(_living):
        child.close(grace_seconds=0)


def _start_guard() -> subprocess.Popen[bytes]:
    if _SHELL.exists():
        argv = [str(_SHELL), "-c", _GUARD_SCRIPT]
    else:
        argv = [sys.executable, "-I", "-S", "-c", _PYTHON_GUARD_SCRIPT]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        process_group=0,
    )


def _end_guard(guard: subprocess.Popen[bytes]) -> None:
    guard.kill()
    guard.wait()
    if guard.stdin is not None:
        guard.stdin.close()


class _Reader:
    """Reads a stream to its end in a thread and keeps the first part."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := self._stream.read(_CHUNK_BYTES):
                self._kept += chunk[: _OUTPUT_LIMIT_BYTES - len(self._kept)]

    def text(self) -> str:
        """What was read, once the writers are gone."""
        self._thread.join(_GONE_SECONDS)
        if not self._thread.is_alive():
            self._stream.close()
        return bytes(self._kept).decode("utf-8", "replace")


def _group_members(group: int) -> tuple[int, ...]:
    """Living (not zombie) processes of a group: /proc/<pid>/stat where there is one, psutil elsewhere."""
    if not sys.platform.startswith("linux"):
        return _group_members_elsewhere(group)
    members = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # pid (name) state ppid pgrp ...; the name may hold spaces and brackets.
            state, _, pgrp = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[:3]
            if int(pgrp) == group and state not in b"ZX":
                members.append(int(entry.name))
    return tuple(members)


def _group_members_elsewhere(group: int) -> tuple[int, ...]:
    import psutil

    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return tuple(members)


def _tree(pid: int) -> tuple[int, ...]:
    import psutil

    try:
        root = psutil.Process(pid)
        return tuple(process.pid for process in [root, *root.children(recursive=True)] if process.is_running())
    except psutil.Error:
        return ()


def _memory_of(pid: int) -> GroupMemory | None:
    """One process's memory: RssAnon, VmRSS, VmHWM and VmSwap of /proc/<pid>/status, or psutil's nearest."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None if sys.platform.startswith("linux") else _memory_elsewhere(pid)
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines) if "kB" in rest}
    resident = sizes.get("VmRSS", 0)
    return GroupMemory(sizes.get("RssAnon", resident), resident, sizes.get("VmHWM", resident), sizes.get("VmSwap", 0))


def _memory_elsewhere(pid: int) -> GroupMemory | None:
    import psutil

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return GroupMemory(info.rss, info.rss, max(info.rss, getattr(info, "peak_wset", 0)), 0)
