"""Where we keep things: the user's cache and data folders, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Literal

from magnitude_tune import __version__
from magnitude_tune.errors import UsageError

__all__ = [
    "cache_dir",
    "config_dir",
    "data_dir",
    "read_cached",
    "read_regular",
    "shipped_dir",
    "write_cached",
    "write_whole",
]

_HOME_VARIABLE = "MAGNITUDE_TUNE_HOME"
_LARGEST_CACHED_BYTES = 64 << 20


def cache_dir() -> Path:
    """Folder for what can be found out again; `MAGNITUDE_TUNE_HOME` moves it."""
    return _folder("cache")


def data_dir() -> Path:
    """Folder for what was measured here; `MAGNITUDE_TUNE_HOME` moves it."""
    return _folder("data")


def config_dir() -> Path:
    """Folder for what the user sets for every project; `MAGNITUDE_TUNE_HOME` moves it."""
    return _folder("config")


def _folder(kind: Literal["cache", "config", "data"]) -> Path:
    if home := os.environ.get(_HOME_VARIABLE):
        return Path(home) / kind
    import platformdirs

    find = {
        "cache": platformdirs.user_cache_path,
        "config": platformdirs.user_config_path,
        "data": platformdirs.user_data_path,
    }[kind]
    return find("magnitude-tune")


def shipped_dir(name: str) -> Path:
    """Folder `models` or `profiles` as it travels with the package: inside the wheel, or beside a checkout."""
    package = Path(__file__).parent
    inside = package / "_shipped" / name
    return inside if inside.is_dir() else package.parent / name


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """At most `limit_bytes` of a regular file; what would wait for a writer, or never end, is refused.

    Raises:
        OSError: there is no such file, it is not a regular one, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - it is open already
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return stream.read(limit_bytes)


def read_cached(name: str, key: str) -> dict[str, object] | None:
    """The value stored under `name` if it was stored with this `key` by this version; None on any doubt."""
    try:
        stored = json.loads(read_regular(cache_dir() / f"{name}.json", _LARGEST_CACHED_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(stored, dict) or stored.get("key") != key or stored.get("version") != __version__:
        return None
    value = stored.get("value")
    return value if isinstance(value, dict) else None


def write_cached(name: str, key: str, value: dict[str, object]) -> None:
    """Keep `value` (JSON-able) under `name`; a folder that cannot be written only costs the next run time."""
    text = json.dumps({"version": __version__, "key": key, "value": value}, separators=(",", ":"))
    with contextlib.suppress(UsageError, OSError):
        path = cache_dir() / f"{name}.json"
        if path.is_file() or not os.path.lexists(path):
            write_whole(path, text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, never a part. Permissions are kept.

    What is there and is no regular file (a device, a pipe) is written to as it is.

    Raises:
        UsageError: the folder or the file cannot be written.
    """
    try:
        _write_whole(path, content)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"cannot write: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            hint="choose a place that you may write to",
        ) from error


def _write_whole(path: Path, content: bytes) -> None:
    import tempfile

    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(content)
        return
    target = path.resolve() if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:100]}.", delete=False) as stream:
            temporary = Path(stream.name)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644 & ~_umask() if mode is None else stat.S_IMODE(mode))
        temporary.replace(target)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
