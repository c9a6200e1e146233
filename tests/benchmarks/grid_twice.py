"""Measures a grid of 12 settings twice through the console and says how well the two agree.

    python tests/benchmarks/grid_twice.py MODEL [--budget SECONDS] [--markdown FILE]

For each setting and quantity: both medians, the half-width of their 90 % intervals, and whether the intervals overlap.
The second grid begins anew, because the first one came to its end. The turn is 256 tokens read and 32 written, so that
a process takes several samples within its share of the budget.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

GRID = ("n_threads=1,2", "n_ubatch=64,256,512", "flash_attn=on,off")
TURN = {"MAGNITUDE_TUNE_N_PROMPT": "256", "MAGNITUDE_TUNE_N_GEN": "32", "MAGNITUDE_TUNE_N_CTX": "1024"}
QUANTITIES = ("pp", "tg", "turn_seconds")


def measure(model: str, budget_seconds: float, home: str) -> dict[str, Any]:
    """One grid: its JSON, with the seconds it took."""
    command = [sys.executable, "-m", "magnitude_tune", "bench", model, "--settings", *GRID]
    command += ["--budget", f"{budget_seconds:g}", "--engine", "llama_cpp_python", "--json"]
    began = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **TURN, "MAGNITUDE_TUNE_HOME": home}, stdout=subprocess.PIPE, text=True, check=True
    )
    document: dict[str, Any] = json.loads(done.stdout)
    document["seconds"] = time.monotonic() - began
    return document


def half_width(figure: Mapping[str, float]) -> float:
    """The larger distance from the median to an end of the interval, as a fraction of the median."""
    return max(figure["high"] - figure["value"], figure["value"] - figure["low"]) / figure["value"]


def overlap(one: Mapping[str, float], two: Mapping[str, float]) -> bool:
    """Whether two intervals have a value in common."""
    return one["low"] <= two["high"] and two["low"] <= one["high"]


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each configuration, in the order of the first grid."""
    others = {each["point"]: each for each in second["configurations"]}
    rows = []
    for each in first["configurations"]:
        pair = [each["measured"], others[each["point"]]["measured"]]
        figures = {name: [measured[name] for measured in pair] for name in QUANTITIES}
        rows.append(
            {
                "point": each["point"],
                "figures": figures,
                "overlap": {name: overlap(*figures[name]) for name in QUANTITIES},
                "disturbed": [not measured["disturbance"]["clean"] for measured in pair],
                "others": [measured["disturbance"]["other_cores"] for measured in pair],
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| setting | pp 1 | pp 2 | tg 1 | tg 2 | turn 1 | turn 2 | overlap | others' cores |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["point"]]
        for name in QUANTITIES:
            unit = " s" if name == "turn_seconds" else ""
            cells += [
                f"{figure['value']:.3g}{unit} ± {half_width(figure):.0%} (n={figure['n']})"
                for figure in row["figures"][name]
            ]
        cells.append(", ".join(name.partition("_")[0] for name in QUANTITIES if row["overlap"][name]) or "none")
        cells.append(" / ".join(f"{others:.1f}" for others in row["others"] if others is not None))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the table comes to."""
    lines = []
    for name in QUANTITIES:
        agreeing = sum(row["overlap"][name] for row in rows)
        widths = [half_width(figure) for row in rows for figure in row["figures"][name]]
        lines.append(
            f"- {name}: intervals overlap in {agreeing} of {len(rows)} settings, median half-width "
            f"{median(widths):.1%}, widest {max(widths):.0%}"
        )
    disturbed = sum(sum(row["disturbed"]) for row in rows)
    lines.append(f"- {disturbed} of {2 * len(rows)} runs rest on disturbed samples, because there were no quiet ones")
    return lines


def main() -> None:
    """Measure twice and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each setting, over its rounds")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        documents = [measure(options.model, options.budget, home) for _ in range(2)]
    rows = compared(*documents)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    engine = documents[0]["engine"]
    head = (
        f"Measured {today}, {engine['name']} {engine['build']}, {os.cpu_count()} CPUs, budget {options.budget:g} s "
        f"a setting, {documents[0]['seconds']:.0f} s and {documents[1]['seconds']:.0f} s in all."
    )
    text = "\n".join([head, "", *figures(rows), "", *table(rows), ""])
    print(text)
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
