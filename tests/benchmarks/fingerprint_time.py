"""Wall time of the whole `fingerprint`, caches empty and caches warm.

    python tests/benchmarks/fingerprint_time.py [--runs 5] [--model MODEL.gguf]

Each cold run has a home of its own, so bandwidths are measured and engines are asked; the warm run after it has that
home. The targets are 3 s cold and 0.3 s warm. With a model the rate of its disk is measured too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measured(command: list[str], home: str) -> float:
    """Wall seconds of one process that keeps its caches in `home`."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "MAGNITUDE_TUNE_HOME": home})
    return time.perf_counter() - started


def main() -> None:
    """Measure pairs of a cold and a warm run and print their medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model")
    options = parser.parse_args()
    command = [str(Path(sys.executable).parent / "magnitude-tune"), "fingerprint"]
    if options.model:
        command += ["--model", options.model]
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as home:
            for taken in seconds.values():
                taken.append(measured(command, home))
    for kind, target in (("cold", 3.0), ("warm", 0.3)):
        taken = seconds[kind]
        print(
            f"{kind}: median {statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}), target {target} s"
        )


if __name__ == "__main__":
    main()
