"""A running engine as the rest of the house sees it, whichever engine it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from magnitude_tune.request import NO_COMPANIONS, Companions, Settings

__all__ = [
    "BufferKind",
    "BufferLine",
    "CrashKind",
    "EngineSession",
    "Launch",
    "MemoryReading",
    "Sample",
]

BufferKind = Literal["model", "kv", "recurrent", "compute", "output"]


class CrashKind(StrEnum):
    """How a child ended that should not have."""

    ILLEGAL_INSTRUCTION = "illegal instruction"
    HOST_OUT_OF_MEMORY = "killed, suspected out of memory"
    DEVICE_OUT_OF_MEMORY = "device out of memory"
    ABORT = "abort"
    STOPPED = "stopped from outside"
    HANG = "hang"
    MISSING_LIBRARY = "missing library"
    SEGMENTATION_FAULT = "segmentation fault"
    EXIT = "exited"


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed piece of work."""

    n_tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class BufferLine:
    """One buffer as the engine's log states it: `load_tensors: CPU_Mapped model buffer size = 240.94 MiB`."""

    buffer: str
    kind: BufferKind
    n_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory of the engine's process group in bytes, now, and the peak of its resident memory."""

    anonymous_bytes: int
    resident_bytes: int
    peak_resident_bytes: int
    swap_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything an engine needs to start: the model, every setting, what runs beside it, devices over RPC, variables.

    `environment` is added to a cleaned copy of ours; `ready_timeout_seconds` covers loading.
    """

    model_path: str
    settings: Settings
    rpc: tuple[str, ...] = ()
    companions: Companions = NO_COMPANIONS
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_seconds: float = 300.0


class EngineSession(Protocol):
    """One engine with one model and one configuration, in a process group of its own."""

    buffers: tuple[BufferLine, ...]
    pid: int
    """A process of its group; 0 where none of ours lasts from one piece of work to the next."""

    @property
    def ready_seconds(self) -> float | None:
        """Seconds from the launch until it could work; None where that cannot be told."""

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read `n_prompt` tokens after `depth` tokens of context; only the reading is timed."""

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Generate exactly `n_gen` tokens, one at a time, after `depth` tokens of context."""

    def memory(self) -> MemoryReading | None:
        """Memory of the process group; None where it says nothing about the plan."""

    def close(self) -> None:
        """End the process group and wait until it is gone."""
