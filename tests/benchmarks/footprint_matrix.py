"""The footprint of small models beside what real engines print, for all pairs of settings.

    python tests/benchmarks/footprint_matrix.py [--arch A ...] [--engine embedded|server|both] [--jobs N] [-o FILE.md]

writes a dated table: each architecture and term with its cells, hits and misses, and every miss with its cause from
`tests/footprint/matrix/causes.toml`. Models are written to a temporary folder, or kept in `--models FOLDER`.

While working on one architecture:

    python tests/benchmarks/footprint_matrix.py --dump llama --shape large --set n_ctx=5000 flash_attn=false

prints each buffer in bytes, predicted and actual, in half a second. `--set` takes the words of the axes: n_ctx,
n_ubatch, kv=q8_0 or kv=q8_0,f16, flash_attn, slots=4 or slots=4,unified, repack, load_mode, layers=none|one|half|all,
n_devices. `--dump` takes a path to any GGUF file, too. `--log FILE` keeps the engine's log, and with `--nodes` the log
holds every node of the graph as the scheduler placed it, with its size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import tiny_models  # noqa: E402
from footprint.matrix.comparison import Predictor, compare  # noqa: E402
from footprint.matrix.configurations import settings_of  # noqa: E402
from footprint.matrix.engines import Library  # noqa: E402
from footprint.matrix.table import write_table  # noqa: E402
from footprint.matrix.whole import run_matrix  # noqa: E402


def dump(options: argparse.Namespace, folder: Path) -> int:
    """Print predicted and actual bytes of each buffer of one configuration."""
    kind = "server" if options.engine == "server" else "embedded"
    model = Path(options.dump)
    if not model.is_file():
        model = tiny_models.write(options.dump, options.shape, folder)
    environment = {"GGML_SCHED_DEBUG": "2"} if options.nodes else {}
    with Library(kind, environment=environment) as library:
        predictor = Predictor(library)
        settings = settings_of(predictor.header(model).block_count, **_changes(options.set))
        loaded = library.load(model, settings)
        if options.log:
            Path(options.log).write_text(loaded.log, encoding="utf-8")
        if loaded.error:
            print(loaded.error, loaded.log[-1500:], sep="\n")
            return 1
        cells = compare(predictor.footprint(model, settings), loaded)
    print(f"{'device':8} {'term':16} {'predicted':>14} {'actual':>14} {'difference':>12} {'percent':>8}")
    for cell in cells:
        percent = 100 * cell.error / cell.actual if cell.actual else 0.0
        verdict = "" if cell.hit else "MISS"
        figures = f"{cell.predicted:14,} {cell.actual:14,} {cell.error:12,} {percent:8.2f}"
        print(f"{cell.device:8} {cell.term:16} {figures} {verdict}")
    return 0 if all(cell.hit for cell in cells) else 1


def _changes(words: list[str]) -> dict[str, Any]:
    return {name: _value(name, text) for name, _, text in (word.partition("=") for word in words)}


def _value(name: str, text: str) -> Any:
    parts = text.split(",")
    if name == "kv":
        return parts[0], parts[-1]
    if name == "slots":
        return int(parts[0]), "unified" in parts
    if name in ("flash_attn", "repack"):
        return text.lower() in ("true", "on", "1", "yes")
    return text if name in ("load_mode", "layers") else int(text)


def main() -> int:
    """Run one configuration or the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", choices=tiny_models.ARCHITECTURES, default=tiny_models.ARCHITECTURES)
    parser.add_argument("--engine", choices=("embedded", "server", "both"), default="both")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="configurations an architecture for llama-server itself")
    parser.add_argument("--models", help="folder that keeps the models")
    parser.add_argument("-o", dest="output", help="file for the table; printed where none is given")
    parser.add_argument("--dump", metavar="ARCH_OR_FILE")
    parser.add_argument("--shape", choices=("small", "large"), default="small")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--log", metavar="FILE")
    parser.add_argument("--nodes", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.models or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.dump:
            return dump(options, folder)
        kinds = ("embedded", "server") if options.engine == "both" else (options.engine,)
        results = run_matrix(options.arch, kinds, folder, jobs=options.jobs, n_repeated=options.repeat)
    table = write_table(results, command=" ".join(["python tests/benchmarks/footprint_matrix.py", *sys.argv[1:]]))
    if options.output:
        Path(options.output).write_text(table, encoding="utf-8")
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
