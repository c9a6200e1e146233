"""Files of `/proc` and `/sys` under a root, read tolerantly: what is absent or odd is None, never an error."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

__all__ = ["Tree", "parse_cpu_list"]

_LARGEST_FILE_BYTES: Final = 4 << 20
_MOST_CPUS: Final = 1 << 16
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)


class Tree:
    """One `/proc` and `/sys`: this machine's where the root is `/`, else a copy of another machine's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root == Path("/")

    def text(self, path: str) -> str | None:
        """The text of a regular file, at most 4 MiB of it; None where it cannot be read.

        Opened without blocking: a copied tree may hold a pipe under any name.
        """
        try:
            descriptor = os.open(self.root / path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as stream:
                return stream.read(_LARGEST_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def word(self, path: str) -> str | None:
        """The first line of a file without surrounding space and NULs; None where there is none."""
        lines = (self.text(path) or "").strip("\0 \t\r\n").splitlines()
        return lines[0].strip("\0 \t") or None if lines else None

    def number(self, path: str) -> int | None:
        """The whole number that a file holds; None for anything else, `max` included."""
        word = self.word(path)
        return int(word) if word is not None and _INTEGER.fullmatch(word) else None

    def cpus(self, path: str) -> frozenset[int]:
        """The CPUs of a list such as `0-3,8`; empty where there is none."""
        return parse_cpu_list(self.word(path) or "")

    def allowed_nodes(self) -> frozenset[int] | None:
        """The memory nodes that a cpuset lets this process allocate from; None where the kernel does not say."""
        listed = re.search(r"^Mems_allowed_list:\s*(\S+)", self.text("proc/self/status") or "", re.MULTILINE)
        return parse_cpu_list(listed[1]) if listed else None

    def children(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.root / path)))  # noqa: PTH208  (names, not paths)
        except (OSError, ValueError):
            return ()


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPU numbers of a kernel list (`0-3,8,10-11`); parts that make no sense are left out, numbers end at 65535."""
    cpus: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
        if found:
            first = int(found[1])
            last = min(int(found[2] or first), _MOST_CPUS - 1)
            cpus.update(range(first, last + 1))
    return frozenset(cpus)
