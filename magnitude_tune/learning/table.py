"""Benchmark and device tables: read with bounds, each row usable or dropped by a named rule."""

from __future__ import annotations

import csv
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.shapes import ModelKey, shape_of

__all__ = ["KINDS", "DeviceRow", "Kind", "Row", "Rows", "judge", "number", "read_devices", "read_rows"]

Kind = Literal["tg", "pp", "partial_offload", "moe_on_cpu", "threads", "depth"]
KINDS: Final[tuple[Kind, ...]] = ("tg", "pp", "partial_offload", "moe_on_cpu", "threads", "depth")

_NEEDED: Final = ("device_norm", "tps_mean", "params_b", "model_bytes_gib")
_NEEDED_OF_DEVICES: Final = ("device", "mem_bandwidth_gbs")
_MOST_BYTES: Final = 256 << 20
_LONGEST_CELL: Final = 4096
_IDENTITY: Final = (
    "source_id", "engine_build", "backend", "model", "params_b", "quant", "model_bytes_gib",
    "test", "n_prompt", "n_gen", "depth", "ngl", "threads", "n_batch", "n_ubatch",
    "flash_attn", "tps_mean", "n_cpu_moe", "kv_type", "device_norm", "sweep", "cpu_name",
)  # fmt: skip
"""Columns that are equal where the same measurement stands twice."""
_DEVICE_KINDS: Final = ("cpu", "gpu", "igpu", "apple")
_TEST: Final = re.compile(r"(?:(pp)|tg)(\d{1,7})(?:@d(\d{1,8}))?", re.ASCII)
_BUILD: Final = re.compile(r"\bb(\d{3,6})\b", re.ASCII)
_FLASH_BY_DEFAULT: Final = 6325
_MOST_TOKENS: Final = 10_000_000
_RATES: Final = (1e-4, 1e7)
_BITS: Final = (1.5, 34.0)
"""Bits a weight that a file can have; anything else is bytes in another unit or another model's."""
_FASTEST_READ: Final = 1.25
"""Generation reads its weights at most at this many times the data sheet's bandwidth: sheets round, caches help."""
_FASTEST_ARITHMETIC: Final = 8.0
"""Prompts do at most this many times the peak's operations: integer units run at up to that of half precision."""


class DeviceRow(NamedTuple):
    """One device's data sheet: bytes/second, operations/second; `cores` of a processor."""

    name: str
    kind: str
    vendor: str
    bandwidth: float
    flops: float
    cores: int


class Row(NamedTuple):
    """One usable measurement. Rates in tokens/second; `n_threads` is None where unknown."""

    kind: Kind
    quantity: Literal["tg", "pp"]
    device: DeviceRow
    device_kind: str
    backend: str
    model: ModelKey
    rate: float
    n_prompt: int
    depth: int
    n_gpu_layers: int | None
    n_cpu_moe: int
    n_threads: int | None
    n_batch: int
    n_ubatch: int
    flash_attn: bool
    cpu_name: str
    sweep: tuple[str, ...]


class Rows(NamedTuple):
    """Usable rows, and how many each rule dropped."""

    rows: tuple[Row, ...]
    skipped: Mapping[str, int]


def number(text: str | None) -> float | None:
    """A finite number, None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_devices(path: Path) -> dict[str, DeviceRow]:
    """Data sheets by device; rows without a usable bandwidth and peak are left out.

    The peak is the better of half and single precision for accelerators (some halve at a 64th of the rate, and engines
    then do not use halves), and single precision for processors.

    Raises:
        InputFileError: the file cannot be read, is no such table, or lacks a column.
    """
    devices: dict[str, DeviceRow] = {}
    for cells in _cells(path, _NEEDED_OF_DEVICES):
        kind = cells.get("kind", "").strip() or "gpu"
        bandwidth = number(cells["mem_bandwidth_gbs"])
        half = None if kind == "cpu" else number(cells.get("fp16_tflops"))
        flops = max(half or 0.0, number(cells.get("fp32_tflops")) or 0.0)
        if bandwidth is None or not 0.1 <= bandwidth <= 1e6 or not 1e-4 <= flops <= 1e6:
            continue
        cores = min(max(int(number(cells.get("cores")) or 1), 1), 4096) if kind == "cpu" else 1
        name = cells["device"].strip()
        devices[name] = DeviceRow(name, kind, cells.get("vendor", ""), bandwidth * 1e9, flops * 1e12, cores)
    return devices


def read_rows(path: Path, devices: Mapping[str, DeviceRow]) -> Rows:
    """All rows of a benchmark table, judged one by one; the second of two equal ones is dropped.

    Raises:
        InputFileError: the file cannot be read, is no such table, or lacks a column.
    """
    rows: list[Row] = []
    skipped: dict[str, int] = {}
    seen: set[tuple[str, ...]] = set()
    for cells in _cells(path, _NEEDED):
        found = judge(cells, devices)
        if isinstance(found, Row):
            same = tuple(cells.get(name, "") for name in _IDENTITY)
            if same not in seen:
                seen.add(same)
                rows.append(found)
                continue
            found = "the same measurement twice"
        skipped[found] = skipped.get(found, 0) + 1
    return Rows(tuple(rows), dict(sorted(skipped.items())))


def _cells(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputFileError("cannot read this table: it is no file", where=str(path), hint="name a CSV file")
        if path.stat().st_size > _MOST_BYTES:
            raise InputFileError(f"this table is larger than {_MOST_BYTES >> 20} MiB", where=str(path), hint="split it")
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            reader = csv.DictReader((line.replace("\0", "") for line in stream), restkey="", restval="")
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise InputFileError(
                    f"this table has no column {missing[0]!r}",
                    where=str(path),
                    hint=f"give a CSV file whose first line names the columns {', '.join(needed)}",
                )
            for cells in reader:
                yield {name: value[:_LONGEST_CELL] for name, value in cells.items() if isinstance(value, str)}
    except OSError as error:
        what = f"cannot read this table: {error.strerror or error}"
        raise InputFileError(what, where=str(path), hint="name a CSV file that exists and that you may read") from error
    except csv.Error as error:
        raise InputFileError(f"this is no CSV table: {error}", where=str(path), hint="give a CSV file") from error


def judge(cells: Mapping[str, str], devices: Mapping[str, DeviceRow]) -> Row | str:
    """A row of the table, or the rule that drops it."""
    get = _Cells(cells)
    reason = _of_another_kind(get) or _without_model(get)
    if reason is not None:
        return reason
    device = devices.get(get.text("device_norm"))
    if device is None:
        return "device not in the device table, or without bandwidth or peak"
    asked = _what_was_run(get)
    if isinstance(asked, str):
        return asked
    row = _row(get, device, asked)
    return row if isinstance(row, str) else (_impossible(row) or row)


class _Cells:
    """One row's cells, absent ones empty."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self._cells = cells

    def text(self, name: str) -> str:
        return self._cells.get(name, "").strip()

    def number(self, name: str) -> float | None:
        return number(self.text(name))

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number between bounds; None for anything else."""
        value = self.number(name)
        return int(value) if value is not None and low <= value <= high else None


def _of_another_kind(get: _Cells) -> str | None:
    rules = {
        "another engine": get.text("engine") not in ("", "llama.cpp"),
        "not the first reading (use)": get.text("use") not in ("", "first"),
        "several devices": (get.number("n_devices") or 1) != 1,
        "no such kind of device": get.text("device_kind") not in ("", *_DEVICE_KINDS),
        "no rate": not (get.number("tps_mean") or 0) > 0,
        "absurd rate": not _RATES[0] <= (get.number("tps_mean") or 0) <= _RATES[1],
    }
    return next((rule for rule, broken in rules.items() if broken), None)


def _without_model(get: _Cells) -> str | None:
    params, gib = get.number("params_b"), get.number("model_bytes_gib")
    active = get.number("active_params_b")
    if params is None or gib is None or not (0.001 <= params <= 1e5 and 0.001 <= gib <= 1e5):
        return "parameters or bytes of the model missing or absurd"
    if not _BITS[0] <= 8 * gib * 2**30 / (params * 1e9) <= _BITS[1]:
        return "bytes that these parameters cannot have"
    if get.text("is_moe") == "1" and (active is None or active <= 0):
        return "a mixture whose active parameters are unknown"
    return None


def _what_was_run(get: _Cells) -> tuple[int, int, int] | str:
    """Tokens read, tokens written and depth; the test's name says them where the cells are empty."""
    named = _TEST.fullmatch(get.text("test"))
    prompt, gen, depth = (get.number(name) for name in ("n_prompt", "n_gen", "depth"))
    if named is not None:
        tokens = float(named[2])
        prompt = (tokens if named[1] else 0.0) if prompt is None else prompt
        gen = (0.0 if named[1] else tokens) if gen is None else gen
        depth = float(named[3] or 0) if depth is None else depth
    values = (prompt or 0.0, gen or 0.0, depth or 0.0)
    if not all(0 <= value <= _MOST_TOKENS for value in values):
        return "absurd numbers of tokens"
    if (values[0] > 0) == (values[1] > 0):
        return "prompt and answer together, or neither"
    return int(values[0]), int(values[1]), int(values[2])


def _row(get: _Cells, device: DeviceRow, asked: tuple[int, int, int]) -> Row | str:
    n_prompt, _, depth = asked
    params = get.number("params_b") or 1.0
    active = get.number("active_params_b") or params
    model = ModelKey(
        get.text("arch")[:40],
        params,
        min(max(active, 1e-3), params),
        (get.number("model_bytes_gib") or 1.0) * 2**30,
        get.text("quant")[:40],
    )
    n_cpu_moe = get.whole("n_cpu_moe", 0, 10_000)
    if n_cpu_moe is None and (words := get.text("n_cpu_moe")):
        if not words.startswith("all"):
            return "how many experts stay on the CPU is not said"
        n_cpu_moe = 10_000
    kind = get.text("device_kind") or device.kind
    layers = get.whole("ngl", -1, 100_000)
    quantity: Literal["tg", "pp"] = "pp" if n_prompt else "tg"
    partial = kind != "cpu" and layers is not None and 0 <= layers < shape_of(model).blocks
    which: Kind = quantity
    if n_cpu_moe:
        which = "moe_on_cpu"
    elif partial:
        which = "partial_offload"
    elif depth > 0:
        which = "depth"
    elif get.text("sweep") == "threads":
        which = "threads"
    return Row(
        kind=which,
        quantity=quantity,
        device=device,
        device_kind=kind,
        backend=get.text("backend")[:16].lower(),
        model=model,
        rate=get.number("tps_mean") or 0.0,
        n_prompt=n_prompt,
        depth=depth,
        n_gpu_layers=layers if partial else None,
        n_cpu_moe=n_cpu_moe or 0,
        n_threads=get.whole("threads", 1, 4096),
        n_batch=get.whole("n_batch", 1, 1 << 20) or 2048,
        n_ubatch=get.whole("n_ubatch", 1, 1 << 20) or 512,
        flash_attn=_flash_attention(get),
        cpu_name=get.text("cpu_name")[:200],
        sweep=tuple(
            get.text(name)[:80] for name in ("sweep", "source_id", "model", "quant", "model_bytes_gib", "test")
        ),
    )


def _flash_attention(get: _Cells) -> bool:
    """Whether flash attention was on: as said, else by the build's default (`auto` since build 6325)."""
    said = get.text("flash_attn")
    build = _BUILD.search(get.text("engine_build"))
    return said == "1" if said else build is not None and int(build[1]) >= _FLASH_BY_DEFAULT


def _impossible(row: Row) -> str | None:
    """Rates above what the device's memory or arithmetic can do, wherever the work is done."""
    device, model = row.device, row.model
    if row.kind in ("partial_offload", "moe_on_cpu"):
        return None
    if row.quantity == "tg":
        read = model.n_bytes * model.active_b / model.params_b
        return (
            "faster than its memory can read the weights"
            if row.rate * read > _FASTEST_READ * device.bandwidth
            else None
        )
    done = row.rate * 2e9 * model.active_b
    return "faster than its arithmetic can be" if done > _FASTEST_ARITHMETIC * device.flops else None
