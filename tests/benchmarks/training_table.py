"""Cut a table of published benchmarks down to what the speed model trains on, with its sources.

Usage: python tests/benchmarks/training_table.py BENCHMARKS.csv DEVICES.csv models/training

Keeps rows of llama.cpp on one device that are the first reading of their source, and the columns that training reads;
where rows came from goes to a table of its own. Nothing is corrected: what is wrong is dropped by training's rules.
Prints how many rows each of these three rules left out.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

COLUMNS = (
    "source_id", "engine_build", "device_kind", "backend", "cpu_name", "model", "arch", "params_b",
    "active_params_b", "is_moe", "quant", "model_bytes_gib", "test", "n_prompt", "n_gen", "depth", "ngl",
    "n_cpu_moe", "threads", "n_batch", "n_ubatch", "flash_attn", "kv_type", "tps_mean", "device_norm", "sweep",
)  # fmt: skip
DEVICE_COLUMNS = (
    "device", "kind", "vendor", "mem_bandwidth_gbs", "fp16_tflops", "fp32_tflops", "cores", "source",
)  # fmt: skip
SOURCE_COLUMNS = ("source_id", "source", "date", "rows")


def left_out(row: Mapping[str, str]) -> str | None:
    """The rule that leaves a row out."""
    rules = {
        "another engine": row["engine"] != "llama.cpp",
        "not the first reading": row["use"] != "first",
        "several devices": row["n_devices"] != "1",
    }
    return next((rule for rule, broken in rules.items() if broken), None)


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write one table."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def common_start(texts: Sequence[str]) -> str:
    """What all texts begin with: of sorted texts, the first and the last differ soonest."""
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same]


def sources_of(rows: Sequence[Mapping[str, str]]) -> list[dict[str, object]]:
    """One line a source: the address that all of its rows' addresses begin with, their dates, and how many they are."""
    of: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        of.setdefault(row["source_id"], []).append(row)
    return [
        {
            "source_id": name,
            "source": common_start([row["source"] for row in own]),
            "date": " to ".join(sorted({min(row["date"] for row in own), max(row["date"] for row in own)})),
            "rows": len(own),
        }
        for name, own in of.items()
    ]


def main(arguments: list[str]) -> int:
    """Write the three tables and print the counts."""
    if len(arguments) != 3:
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    tables = []
    for name in arguments[:2]:
        with Path(name).open(newline="", encoding="utf-8") as stream:
            tables.append(list(csv.DictReader(stream)))
    counts: Counter[str] = Counter(left_out(row) or "kept" for row in tables[0])
    kept = [row for row in tables[0] if left_out(row) is None]
    used = {row["device_norm"] for row in kept}
    folder = Path(arguments[2])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "benchmarks.csv", COLUMNS, kept)
    devices = [row for row in tables[1] if row["device"] in used or row["kind"] == "cpu"]
    write(folder / "devices.csv", DEVICE_COLUMNS, devices)
    write(folder / "sources.csv", SOURCE_COLUMNS, sources_of(kept))
    for reason, n in sorted(counts.items()):
        print(f"{n:6d} {reason}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
