"""How an engine's process ended, in words a person can act on.

Return codes are those of the process itself (-9), of a shell around it (137), or Windows' status (0xC000001D).
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.engines.cpu_flags import cpu_flags
from magnitude_tune.engines.values import CrashKind
from magnitude_tune.errors import EngineError

__all__ = ["Crash", "EngineCrash", "classify", "engine_crash", "oom_kill_count"]

_SIGNALS: Final = {
    int(signal.SIGILL): CrashKind.ILLEGAL_INSTRUCTION,
    int(signal.SIGABRT): CrashKind.ABORT,
    7: CrashKind.SEGMENTATION_FAULT,  # SIGBUS on Linux: a mapped file that shrank, or memory the kernel cannot give
    9: CrashKind.HOST_OUT_OF_MEMORY,
    int(signal.SIGSEGV): CrashKind.SEGMENTATION_FAULT,
    int(signal.SIGTERM): CrashKind.STOPPED,
}
_WINDOWS: Final = {0xC000001D: CrashKind.ILLEGAL_INSTRUCTION, 0xC0000005: CrashKind.SEGMENTATION_FAULT}
_COMMAND_NOT_FOUND: Final = 127
# What builds for x86 desktops and servers take for granted; a CPU without one of these cannot run them.
_COMMON_X86_FLAGS: Final = ("avx", "avx2", "bmi2", "f16c", "fma")
_MISSING_LIBRARY: Final = re.compile(
    r"error while loading shared libraries: (?P<a>[^:\s]+)|(?P<b>[\w.+-]+\.(?:so[.\d]*|dylib|dll)): cannot open shared"
    r"|Library not loaded: (?P<c>\S+)"
)
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|cudaMalloc failed|failed to allocate|unable to allocate|OutOfDeviceMemory|OutOfHostMemory"
    r"|ErrorOutOfMemory|insufficient memory|not enough memory|cannot allocate memory|std::bad_alloc",
    re.IGNORECASE,
)
_OF_THE_HOST: Final = re.compile(
    r"(?<![a-z])cpu|OutOfHostMemory|cannot allocate memory|bad_alloc|host memory", re.IGNORECASE
)
_CAUSE: Final = re.compile(
    r"\b(?:error|failed|unable|cannot|aborted|assert|exception|invalid|unsupported|requires|unknown model|no module)\b",
    re.IGNORECASE,
)
# These only say again that loading failed; the line before them says why.
_RESTATEMENT: Final = re.compile(
    r"failed to load model|error loading model|model loading error|loading model from|could not load", re.IGNORECASE
)
_CAUSE_LIMIT: Final = 300


class Crash(NamedTuple):
    """What happened, what to do, and the engine's own line about it where its log has one."""

    kind: CrashKind
    advice: str
    cause: str | None = None


class EngineCrash(EngineError):  # noqa: N818 - what happened, not a fault of the caller
    """The engine's process ended, or stopped answering, while it was needed.

    `returncode` is None for a hang, and where it refused without ending; `log_tail` is the end of the engine's log.
    """

    def __init__(self, engine: str, crash: Crash, *, returncode: int | None, log_tail: str) -> None:
        ending = "" if returncode is None else f" (return code {returncode})"
        cause = f": {crash.cause}" if crash.cause else ""
        super().__init__(f"{crash.kind.value}{ending}{cause}", where=engine, hint=crash.advice)
        self.kind = crash.kind
        self.advice = crash.advice
        self.returncode = returncode
        self.log_tail = log_tail


def engine_crash(
    engine: str, returncode: int | None, log_tail: str, *, oom_kills_before: int | None = None
) -> EngineCrash:
    """The error for a process that ended with `returncode` (None: it hung and was killed by us).

    Args:
        engine: how to name it in the message.
        oom_kills_before: `oom_kill_count()` from before the launch, so that new kills can be told.
    """
    oom_kills = None
    if oom_kills_before is not None and (now := oom_kill_count()) is not None:
        oom_kills = now - oom_kills_before
    crash = classify(returncode, log_tail, oom_kills=oom_kills, flags=cpu_flags())
    return EngineCrash(engine, crash, returncode=returncode, log_tail=log_tail)


def classify(
    returncode: int | None,
    log_tail: str,
    *,
    oom_kills: int | None = None,
    flags: Iterable[str] | None = None,
) -> Crash:
    """What a return code and the end of a log mean.

    Args:
        returncode: None for a process that did not answer in time.
        oom_kills: kills counted by this cgroup since the launch; None where nobody counts.
        flags: the CPU's instruction-set flags on x86; None where unknown or another architecture.
    """
    kind = _kind(returncode, log_tail)
    if kind is CrashKind.MISSING_LIBRARY:
        name = _missing_library(log_tail)
        return Crash(kind, _missing_library_advice(name), f"{name} is missing" if name else None)
    if kind in (CrashKind.HOST_OUT_OF_MEMORY, CrashKind.DEVICE_OUT_OF_MEMORY):
        return Crash(
            kind, _memory_advice(kind, oom_kills, killed=returncode in (-9, 137)), _line(log_tail, _OUT_OF_MEMORY)
        )
    if kind is CrashKind.ILLEGAL_INSTRUCTION:
        return Crash(kind, _illegal_instruction_advice(flags))
    cause = None if kind in (CrashKind.STOPPED, CrashKind.HANG) else _line(log_tail, _CAUSE, skip=_RESTATEMENT)
    return Crash(kind, _ADVICE[kind], cause)


_ADVICE: Final = {
    CrashKind.STOPPED: "something outside sent it SIGTERM (a service manager, a scheduler, a person); "
    "this is not a lack of memory: start it again",
    CrashKind.HANG: "it did not answer in time and was killed; look at the end of its log, try fewer threads or a "
    "smaller model, or allow more time",
    CrashKind.ABORT: "the engine gave up on a check of its own; its last lines say which; the same settings will end "
    "the same way",
    CrashKind.SEGMENTATION_FAULT: "a fault in the engine or its driver, or a layout of weights that this machine "
    "cannot run; try repack: false, fewer GPU layers, or another build",
    CrashKind.EXIT: "the engine's own message says why; the same settings will end the same way",
}


def _kind(returncode: int | None, log_tail: str) -> CrashKind:
    if returncode is None:
        return CrashKind.HANG
    by_code = _WINDOWS.get(returncode & 0xFFFFFFFF) or _SIGNALS.get(_signal_number(returncode))
    # An abort is how the engine ends after an allocation that failed; the line before it is the cause.
    if by_code not in (None, CrashKind.ABORT):
        return by_code
    if _missing_library(log_tail) or returncode == _COMMAND_NOT_FOUND:
        return CrashKind.MISSING_LIBRARY
    if line := _line(log_tail, _OUT_OF_MEMORY):
        return CrashKind.HOST_OUT_OF_MEMORY if _OF_THE_HOST.search(line) else CrashKind.DEVICE_OUT_OF_MEMORY
    return by_code or CrashKind.EXIT


def _signal_number(returncode: int) -> int:
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode < 160 else 0


def _missing_library(log_tail: str) -> str | None:
    found = _MISSING_LIBRARY.search(log_tail)
    return next((name for name in found.groups() if name), None) if found else None


def _missing_library_advice(name: str | None) -> str:
    if name is None:
        return "the program or a library it needs is not installed here; install it or choose another engine"
    if name.startswith(("libcuda", "nvcuda")):
        return f"{name} comes with the NVIDIA driver: install the driver, or use a build of the engine without CUDA"
    return f"install what provides {name}, or set its folder in the library path of this engine only"


def _memory_advice(kind: CrashKind, oom_kills: int | None, *, killed: bool) -> str:
    if kind is CrashKind.DEVICE_OUT_OF_MEMORY:
        return "the device had too little free memory: use fewer GPU layers, a smaller context or n_ubatch, or free it"
    smaller = "use a smaller magnitude or context, or free memory"
    if not killed:
        return f"the host had too little memory for an allocation: {smaller}"
    if oom_kills is None:
        return f"SIGKILL is most often the kernel's out-of-memory killer, which leaves no message: {smaller}"
    if oom_kills > 0:
        return f"the kernel's out-of-memory killer counted oom_kill {oom_kills} in this cgroup meanwhile: {smaller}"
    return f"SIGKILL, but this cgroup's oom_kill did not rise: killed from outside, or by the host's memory: {smaller}"


def _illegal_instruction_advice(flags: Iterable[str] | None) -> str:
    known = frozenset(flags) if flags is not None else frozenset(_COMMON_X86_FLAGS)
    if missing := [flag for flag in _COMMON_X86_FLAGS if flag not in known]:
        return f"this CPU lacks {', '.join(missing)}, which the build uses: install one built for this CPU"
    return "the build uses instructions that this machine does not run: set repack: false, or build the engine here"


def _line(log_tail: str, pattern: re.Pattern[str], *, skip: re.Pattern[str] | None = None) -> str | None:
    """The last line that matches, shortened; one that `skip` matches too only where there is no other."""
    found = [line for line in log_tail.splitlines() if pattern.search(line)]
    better = [line for line in found if skip is None or not skip.search(line)]
    chosen = better or found
    return chosen[-1].strip()[:_CAUSE_LIMIT] if chosen else None


def oom_kill_count() -> int | None:
    """How many processes of this cgroup the kernel has killed for want of memory; None where nobody counts."""
    for path in _counters():
        with contextlib.suppress(OSError):
            if found := re.search(
                r"^oom_kill (\d+)$", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE
            ):
                return int(found[1])
    return None


def _counters() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    paths = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                paths.append(root / group.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                paths.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
    return [*paths, root / "memory.events", root / "memory" / "memory.oom_control"]
