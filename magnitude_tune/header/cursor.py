"""Reads a file front to back through a small window, and never trusts a length in it."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final, Literal

from magnitude_tune.errors import HeaderError
from magnitude_tune.units import MIB

__all__ = ["MAX_ARRAY_STRINGS", "MAX_HEADER_BYTES", "Cursor"]

MAX_HEADER_BYTES: Final = 64 * MIB
MAX_ARRAY_STRINGS: Final = 4_000_000
_WINDOW: Final = 1 * MIB
_LENGTH_BYTES: Final = 8
# Keys and tensor names of real models take some 100 KiB; a file made of names alone must not fill the memory.
_NAME_BUDGET: Final = 8 * MIB
_DAMAGED: Final = "the file is damaged or incomplete; download it again"


class Cursor:
    """A position in the header of one file, in bytes from the file's start.

    Every read is checked against the bytes that remain and against `MAX_HEADER_BYTES`.
    """

    def __init__(self, stream: BinaryIO, path: str, file_bytes: int) -> None:
        self._stream = stream
        self._window = b""
        self._start = 0
        self._offset = 0
        self._order = "<"
        self._names_left = _NAME_BUDGET
        self.path = path
        self.file_bytes = file_bytes

    @property
    def position(self) -> int:
        """Where the next read starts."""
        return self._start + self._offset

    @property
    def remaining(self) -> int:
        """Bytes between the position and the file's end."""
        return self.file_bytes - self.position

    def use_big_endian(self) -> None:
        """Read all following numbers with the most significant byte first."""
        self._order = ">"

    def damaged(self, what: str) -> HeaderError:
        """An error at this file, with the advice for broken files."""
        return HeaderError(what, where=self.path, hint=_DAMAGED)

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next `n_bytes`; `what` names them in the error.

        Raises:
            HeaderError: the file ends before, or the header passes its cap.
        """
        self._check(n_bytes, what)
        end = self._offset + n_bytes
        if end > len(self._window):
            self._refill(max(n_bytes, _WINDOW))
            end = n_bytes
            if end > len(self._window):
                raise self._ended(what)
        chunk = self._window[self._offset : end]
        self._offset = end
        return chunk

    def numbers(self, codes: str, what: str) -> tuple[int | float | bool, ...]:
        """Numbers by their struct codes, in the file's byte order."""
        layout = self._order + codes
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def u32(self, what: str) -> int:
        """A four-byte count or type."""
        return int.from_bytes(self.take(4, what), self._byte_order)

    def u64(self, what: str) -> int:
        """An eight-byte count, length or offset."""
        return int.from_bytes(self.take(8, what), self._byte_order)

    def name(self, what: str, max_bytes: int) -> str:
        """A key or a tensor name; bytes that are not UTF-8 are shown escaped.

        Raises:
            HeaderError: it is empty or longer than `max_bytes`, or all names together are too long.
        """
        length = self.u64(what)
        if not 0 < length <= max_bytes:
            raise self.damaged(f"{what} is {length} bytes long; 1 to {max_bytes} are possible")
        self._names_left -= length
        if self._names_left < 0:
            raise self.damaged(f"its keys and tensor names take more than {_NAME_BUDGET // MIB} MiB")
        return self.take(length, what).decode("utf-8", "backslashreplace")

    def skip(self, n_bytes: int, what: str) -> None:
        """Step over `n_bytes` without reading them.

        Raises:
            HeaderError: the file ends before, or the header passes its cap.
        """
        self._check(n_bytes, what)
        self._offset += n_bytes
        if self._offset > len(self._window):
            self._start += self._offset
            self._offset = 0
            self._window = b""

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings by their lengths alone.

        Raises:
            HeaderError: there are more than `MAX_ARRAY_STRINGS`, or one of them leaves the file.
        """
        if count > MAX_ARRAY_STRINGS:
            raise self.damaged(f"{what} claims {count} strings; more than {MAX_ARRAY_STRINGS} are not read")
        self._check(count * _LENGTH_BYTES, what)
        length_at = struct.Struct(self._order + "Q").unpack_from
        left = count
        while left:
            window, offset = self._window, self._offset
            last = len(window) - _LENGTH_BYTES
            # The hot loop: a vocabulary of 262,144 tokens passes here one by one.
            while left and offset <= last:
                offset += _LENGTH_BYTES + length_at(window, offset)[0]
                left -= 1
            self._offset = offset
            self._check(left * _LENGTH_BYTES, what)
            if left:
                self._refill(_WINDOW)
                if len(self._window) < _LENGTH_BYTES:
                    raise self._ended(what)

    @property
    def _byte_order(self) -> Literal["little", "big"]:
        return "little" if self._order == "<" else "big"

    def _refill(self, n_bytes: int) -> None:
        self._start = self.position
        self._offset = 0
        self._stream.seek(self._start)
        self._window = self._stream.read(n_bytes)

    def _check(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.remaining:
            raise self._ended(what, n_bytes)
        if self.position + n_bytes > MAX_HEADER_BYTES:
            raise self.damaged(f"the header passes {MAX_HEADER_BYTES // MIB} MiB at {what}; no model's is that long")

    def _ended(self, what: str, n_bytes: int = 0) -> HeaderError:
        missing = n_bytes - self.remaining
        if n_bytes > MAX_HEADER_BYTES:
            return self.damaged(f"{what} claims {n_bytes} bytes, but only {max(self.remaining, 0)} are left")
        if missing > MAX_HEADER_BYTES:
            return self.damaged(f"{what} reaches {missing} bytes past the end of the file")
        least = f", at least {missing} bytes are missing" if missing > 0 else ""
        return HeaderError(
            f"incomplete header: the file ends inside {what}{least}",
            where=self.path,
            hint="the download stopped early or is one part of several; download the whole file again",
        )
