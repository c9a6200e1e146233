"""How long reading a header takes, and how much memory, beside gguf.GGUFReader: `python header_speed.py MODEL`.

Each reader runs in a fresh process on a warm page cache. Ours runs nine times and its median counts; theirs runs once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

CHILD = """
import resource, sys, time
{load}
def peak_kib():
    try:
        return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, started = peak_kib(), time.perf_counter()
reader = {read}
print(time.perf_counter() - started, peak_kib() - before)
"""
OURS = CHILD.format(
    load="from magnitude_tune.header.read import read_model\nfrom magnitude_tune.header import model",
    read="read_model(sys.argv[1])",
)
CACHED = CHILD.format(
    load="from magnitude_tune.header.cached import read_model_cached\nread_model_cached(sys.argv[1])",
    read="read_model_cached(sys.argv[1])",
)
THEIRS = CHILD.format(load="import gguf", read="gguf.GGUFReader(sys.argv[1])")


def measured(code: str, model: str) -> tuple[float, float]:
    """Seconds, and MiB of peak memory above what the imports took."""
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=True)
    seconds, kib = map(float, done.stdout.split())
    return seconds, kib / 1024


def main() -> None:
    """Print the table."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: python header_speed.py MODEL.gguf")
    model = sys.argv[1]
    measured(OURS, model)
    ours = sorted(measured(OURS, model) for _ in range(9))
    cached = sorted(measured(CACHED, model) for _ in range(9))
    theirs = measured(THEIRS, model)
    rows = [("magnitude_tune, from the file", ours[4]), ("magnitude_tune, facts cached", cached[4]), ("gguf", theirs)]
    sys.stdout.write(f"{'reader':<32}{'seconds':>10}{'peak MiB':>10}\n")
    for name, (seconds, mebibytes) in rows:
        sys.stdout.write(f"{name:<32}{seconds:>10.4f}{mebibytes:>10.1f}\n")
    spread = statistics.stdev(seconds for seconds, _ in ours) / ours[4][0]
    sys.stdout.write(f"gguf takes {theirs[0] / ours[4][0]:.0f} times as long (ours varies by {100 * spread:.0f} %)\n")


if __name__ == "__main__":
    main()
