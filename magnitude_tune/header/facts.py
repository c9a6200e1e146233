"""Typed look-up of metadata under the architecture's own prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.values import ArraySummary, Scalar

__all__ = ["Facts"]

_MAX_COUNT: Final = 2**32 - 1
_HINT: Final = "the file is damaged, or was written by a faulty converter; download or convert it again"


class Facts:
    """Metadata of one model: `counts`, `texts` and per-block values, each checked as it is read."""

    def __init__(self, metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary], path: str) -> None:
        self._metadata = metadata
        self.path = path
        self.architecture = self.text("general.architecture") or ""

    def wrong(self, what: str) -> HeaderError:
        """An error about these facts."""
        return HeaderError(what, where=self.path, hint=_HINT)

    def key(self, name: str) -> str:
        """The full key: `gemma3.` in front of a name of the architecture's own."""
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Whether the architecture's own key is there."""
        return self.key(name) in self._metadata

    def text(self, full_key: str) -> str | None:
        """The text under a full key; None where it is absent or something else."""
        value = self._metadata.get(full_key)
        return value if isinstance(value, str) else None

    def whole(self, full_key: str) -> int | None:
        """The whole number under a full key; None where it is absent or something else."""
        value = self._metadata.get(full_key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def length(self, full_key: str) -> int | None:
        """The length of the array or text under a full key; None where there is neither."""
        value = self._metadata.get(full_key)
        if isinstance(value, ArraySummary):
            return value.length
        return len(value) if isinstance(value, tuple | str) else None

    def count(self, name: str, default: int) -> int:
        """A count, `default` where absent. A per-block array counts as its largest element.

        Raises:
            HeaderError: it is no whole number from 0 to 2^32 - 1.
        """
        value = self._metadata.get(self.key(name), default)
        if isinstance(value, tuple):
            return max((self._count_of(name, element) for element in value), default=default)
        return self._count_of(name, value)

    def required(self, name: str) -> int:
        """A count that the engine cannot do without.

        Raises:
            HeaderError: it is absent, 0 or no whole number.
        """
        if not self.has(name):
            raise self.wrong(f"the key {self.key(name)!r} is missing")
        value = self.count(name, 0)
        if not value:
            raise self.wrong(f"{self.key(name)!r} is 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean, `default` where absent."""
        value = self._metadata.get(self.key(name), default)
        return value if isinstance(value, bool) else default

    def per_block(self, name: str, n_blocks: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """One count per block, from an array or one number for all; `default` where absent.

        Raises:
            HeaderError: the array's length is not the block count, or an element is no count.
        """
        value = self._metadata.get(self.key(name))
        if value is None:
            return default
        if not isinstance(value, tuple | ArraySummary):
            return (self._count_of(name, value),) * n_blocks
        if isinstance(value, ArraySummary) or len(value) != n_blocks:
            length = value.length if isinstance(value, ArraySummary) else len(value)
            raise self.wrong(f"{self.key(name)!r} has {length} elements for {n_blocks} blocks")
        return tuple(self._count_of(name, element) for element in value)

    def counts(self, name: str) -> int | tuple[int, ...] | None:
        """A count, or an array of them as long as the file has it; None where absent or too long to keep.

        Raises:
            HeaderError: an element is no count.
        """
        value = self._metadata.get(self.key(name))
        if isinstance(value, tuple):
            return tuple(self._count_of(name, element) for element in value)
        return None if value is None or isinstance(value, ArraySummary) else self._count_of(name, value)

    def pattern(self, name: str, n_blocks: int) -> tuple[bool, ...] | None:
        """One truth per block from an array of booleans or numbers; None where there is no array.

        Raises:
            HeaderError: the array does not cover the blocks.
        """
        value = self._metadata.get(self.key(name))
        if not isinstance(value, tuple | ArraySummary):
            return None
        if isinstance(value, ArraySummary) or len(value) < n_blocks:
            raise self.wrong(f"{self.key(name)!r} does not hold one element for each of {n_blocks} blocks")
        return tuple(bool(element) for element in value[:n_blocks])

    def _count_of(self, name: str, value: Scalar | ArraySummary | tuple[Scalar, ...]) -> int:
        # Some writers store flags and counts alike as booleans, and -1 stands for none in a few hybrids.
        if isinstance(value, int) and -1 <= value <= _MAX_COUNT:
            return max(0, int(value))
        raise self.wrong(f"{self.key(name)!r} is no count: {value!r:.80}")
