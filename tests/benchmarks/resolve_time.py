"""CPU and wall time of `resolve`, caches warm, beside a process that only imports its libraries.

    python tests/benchmarks/resolve_time.py MODEL.gguf [--runs 15]

Both run in turn, as processes of the Python that runs this script; install the package as a wheel there to measure
what users get. The target is a CPU time of at most 1.5 times the imports', and 0.45 s of wall time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

IMPORTS = [sys.executable, "-c", "import pydantic, typer, rich, ruamel.yaml"]


def measured(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one process and its children."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - started


def main() -> None:
    """Measure both commands in turn and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    resolve = [str(Path(sys.executable).parent / "magnitude-tune"), "resolve", options.model]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(2):
        measured(resolve), measured(IMPORTS)
    pairs = [(measured(resolve), measured(IMPORTS)) for _ in range(options.runs)]
    for name, index in (("resolve", 0), ("imports", 1)):
        cpu = [pair[index][0] for pair in pairs]
        wall = [pair[index][1] for pair in pairs]
        print(
            f"{name}: CPU median {statistics.median(cpu):.3f} s ({min(cpu):.3f} to {max(cpu):.3f}), "
            f"wall median {statistics.median(wall):.3f} s ({min(wall):.3f} to {max(wall):.3f})"
        )
    ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
    print(f"CPU ratio, pair by pair: median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
