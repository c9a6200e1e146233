"""One error tree. Every error says what is wrong, where, and what to do.

MagnitudeTuneError        70  a bug of ours, when raised as itself
├── UsageError             2  the command line or a value on it
├── InputFileError         3  a file we were given
│   ├── HeaderError        3  a model file
│   └── ConfigError        3  an agent's configuration
├── DoesNotFitError        4  the request does not fit the machine
├── EngineError            5  the engine failed
└── MissingPartError       6  an optional part is not installed
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "DoesNotFitError",
    "EngineError",
    "HeaderError",
    "InputFileError",
    "MagnitudeTuneError",
    "MissingPartError",
    "UsageError",
]


class MagnitudeTuneError(Exception):
    """What went wrong, where, and what to do.

    Args:
        what: one sentence, without a full stop.
        where: a file, `file:line:column`, an option, or nothing.
        hint: what the person can do about it.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class UsageError(MagnitudeTuneError):
    """A command line that cannot be acted on."""

    exit_code = 2


class InputFileError(MagnitudeTuneError):
    """A file that cannot be used."""

    exit_code = 3


class HeaderError(InputFileError):
    """A model file that is not a whole, readable GGUF."""


class ConfigError(InputFileError):
    """An agent configuration that cannot be read or holds a wrong value."""


class DoesNotFitError(MagnitudeTuneError):
    """No candidate fits: the text carries the numbers, the hint the nearest request that would."""

    exit_code = 4


class EngineError(MagnitudeTuneError):
    """The engine could not be started, died, or did not answer."""

    exit_code = 5


class MissingPartError(MagnitudeTuneError):
    """An optional part is missing; the hint names the extra to install."""

    exit_code = 6
