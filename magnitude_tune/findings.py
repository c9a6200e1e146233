"""The closed set of findings: what the tool has to say about a request, a machine or a run, besides its result."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

__all__ = ["Finding", "Place", "Rule", "Severity"]


class Severity(StrEnum):
    """How much a finding matters; `check` turns a threshold on these into its exit code."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Rule(Enum):
    """Every kind of finding: its stable id and its severity.

    An id is never reused: MT012 and MT019 were set aside and never used. The message carries the facts of the case.
    """

    MISMATCH = ("MT001", Severity.WARNING)
    OVERCOMMIT = ("MT002", Severity.WARNING)
    LIGHT_LOAD = ("MT003", Severity.INFO)
    PRESSURE = ("MT004", Severity.WARNING)
    MAGNITUDE_IS_TEXT = ("MT005", Severity.INFO)
    VALUE_IS_TEXT = ("MT006", Severity.INFO)
    ENGINE_WITHOUT_GPU = ("MT007", Severity.WARNING)
    ENGINE_UNUSABLE = ("MT008", Severity.WARNING)
    NO_ENGINE = ("MT009", Severity.INFO)
    DEVICE_LEFT_OUT = ("MT010", Severity.WARNING)
    THREADS_UNSET = ("MT011", Severity.INFO)
    CONTEXT_BEYOND_TRAINED = ("MT013", Severity.WARNING)
    CONTEXT_DEFAULTED = ("MT014", Severity.INFO)
    CONCESSION = ("MT015", Severity.WARNING)
    FLASH_ATTENTION_FORCED = ("MT016", Severity.WARNING)
    PIN_ADJUSTED = ("MT017", Severity.WARNING)
    UNKNOWN_TENSOR_TYPE = ("MT018", Severity.WARNING)
    NO_CHAT_TEMPLATE = ("MT020", Severity.INFO)
    NO_END_TOKEN = ("MT021", Severity.WARNING)
    UNKNOWN_KEY = ("MT022", Severity.INFO)
    PROBE_FAILED = ("MT023", Severity.INFO)
    ILLEGAL_INSTRUCTION_REMEMBERED = ("MT024", Severity.WARNING)
    INHERITED_VARIABLE_DROPPED = ("MT025", Severity.WARNING)
    DISTURBED_MEASUREMENT = ("MT026", Severity.WARNING)
    OFFLOAD_DIFFERS = ("MT027", Severity.WARNING)
    TARGET_OUT_OF_REACH = ("MT028", Severity.WARNING)
    EMPTY_VALUE = ("MT029", Severity.INFO)
    ENGINE_ENDED = ("MT030", Severity.ERROR)
    TARGET_REACHED = ("MT031", Severity.INFO)
    MACHINE_LIMITED = ("MT040", Severity.INFO)
    ENGINE_REFUSES = ("MT041", Severity.WARNING)
    DRAFT_DROPPED = ("MT042", Severity.WARNING)
    PROJECTOR_ASSUMED = ("MT043", Severity.WARNING)
    SLOW_KV_PAIR = ("MT044", Severity.WARNING)
    ONE_LAYER_SHORT = ("MT045", Severity.INFO)
    DOES_NOT_FIT = ("MT046", Severity.WARNING)

    def __init__(self, id_: str, severity: Severity) -> None:
        self.id = id_
        self.severity = severity


class Place(NamedTuple):
    """Where a value was read: a file with line and column (from 1), or only a label such as `--n-ctx`."""

    label: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.label, *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(parts)


class Finding(NamedTuple):
    """One case of a rule: what was found, where, and what to do about it.

    `setting` names the engine setting the finding is about, where there is one.
    """

    rule: Rule
    message: str
    place: Place | None = None
    fix: str | None = None
    setting: str | None = None
