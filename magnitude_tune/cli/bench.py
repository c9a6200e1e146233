"""`magnitude-tune bench`: launch the resolved plan, measure it, show predicted beside measured."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from magnitude_tune.cli.options import (
    ENGINE_PATH,
    JSON,
    MACHINE,
    OUTPUT,
    QUIET,
    RPC,
    SYSROOT,
    VERBOSE,
    SettingsCommand,
    with_settings,
)

__all__ = ["register"]

EPILOG = """Examples:

magnitude-tune bench agent.yaml

magnitude-tune bench model.gguf --magnitude 4.0 --budget 60 --json

magnitude-tune bench --url http://127.0.0.1:8080

magnitude-tune bench model.gguf --settings n_threads=1,2,4 n_ubatch=64,512 --budget 30

magnitude-tune bench model.gguf --tune --max-runs 8

magnitude-tune bench --history model.gguf; magnitude-tune bench --compare last~1 last

Exit codes: 0 ok (a broken promise included), 2 usage, 3 bad config or model file, 4 does not fit, 5 engine failed,
6 no engine is installed, 130 interrupted (what was measured is shown and kept)."""

WHAT = Annotated[
    str | None,
    typer.Argument(metavar="AGENT.YAML|MODEL", help="An agent's config, or a GGUF file.", show_default=False),
]
WORDS = Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUES]...", hidden=True)]
GRID = Annotated[
    list[str] | None,
    typer.Option(
        "--settings",
        metavar="NAME=VALUE,VALUE...",
        help="Measure every combination; several words, or the option again. Given again within a day after an "
        "interruption, the same command goes on.",
    ),
]
BUDGET = Annotated[
    float,
    typer.Option(
        "--budget",
        min=1,
        max=86400,
        metavar="SECONDS",
        help="Time for warming up and measuring; of a grid, for each configuration.",
    ),
]
TUNE = Annotated[
    bool,
    typer.Option(
        "--tune",
        help="Choose what to run next, until nothing can beat the best by more than the noise. Each run is a fresh "
        "process with a third of the budget; given again within a day after an interruption, it goes on.",
    ),
]
MAX_RUNS = Annotated[
    int, typer.Option("--max-runs", min=1, max=100, metavar="N", help="With --tune: processes in all.")
]
URL = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Measure a running server instead: OpenAI-compatible or Ollama; --model then names its model.",
        show_default=False,
    ),
]
_STORE = "Measurements that are stored (nothing is measured)"
HISTORY = Annotated[
    bool, typer.Option("--history", help="List stored runs, of one model where it is named.", rich_help_panel=_STORE)
]
COMPARE = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--compare",
        metavar="A B",
        help="Compare two stored runs: ids or their starts, last, last~1.",
        rich_help_panel=_STORE,
        show_default=False,
    ),
]
EXPORT = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="csv|json|sqlite", help="Write stored runs as llama-bench does.", rich_help_panel=_STORE
    ),
]
IMPORT = Annotated[
    str | None,
    typer.Option(
        "--import", metavar="FILE", help="Take in what llama-bench wrote; - is stdin.", rich_help_panel=_STORE
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG, cls=SettingsCommand)(with_settings(bench))


def bench(
    what: WHAT = None,
    words: WORDS = None,
    *,
    settings: GRID = None,
    tune: TUNE = False,
    max_runs: MAX_RUNS = 8,
    budget: BUDGET = 120.0,
    json_output: JSON = False,
    output: OUTPUT = None,
    machine: MACHINE = None,
    sysroot: SYSROOT = None,
    engine_path: ENGINE_PATH = None,
    rpc: RPC = None,
    quiet: QUIET = False,
    verbose: VERBOSE = False,
    url: URL = None,
    history: HISTORY = False,
    compare: COMPARE = None,
    export: EXPORT = None,
    import_file: IMPORT = None,
    flags: tuple[tuple[str, str], ...] = (),
) -> None:
    """Resolve, launch the engine, measure it, and show predicted beside measured."""
    from magnitude_tune.cli.bench_grid import bench_grid, parse_axes, sort_words
    from magnitude_tune.cli.bench_one import BenchOptions, bench_and_report
    from magnitude_tune.cli.bench_store import StoreQuestion, answer_from_store
    from magnitude_tune.cli.console import check_output
    from magnitude_tune.errors import UsageError
    from magnitude_tune.pipeline.resolve import ResolveOptions

    check_output(output)
    what, grid = sort_words(what, words or (), settings)
    question = StoreQuestion(history, compare, export, import_file, what, flags, json_output, output)
    if question.asked:
        answer_from_store(question)
        return
    if what is None and url is None:
        raise UsageError("nothing to measure is named", where="bench", hint="give an agent's config or a GGUF file")

    for option, value in (("--machine", machine), ("--sysroot", sysroot)):
        if value is not None:
            hint = f"leave {option} out, or use resolve to plan for another machine"
            raise UsageError("only this machine can be measured", where=option, hint=hint)
    if math.isnan(budget):
        raise UsageError("the budget must be a number of seconds", where="--budget")
    if tune and (grid or url is not None):
        raise UsageError("tuning chooses the settings itself", where="--tune", hint="leave --settings and --url out")
    if url is not None or what is None:
        from magnitude_tune.cli.bench_url import UrlOptions, bench_url

        launching = {"--engine-path": engine_path, "--rpc": rpc, "--settings": grid}
        bench_url(UrlOptions(url or "", what, flags, launching, budget, json_output, output, quiet, verbose))
        return
    options = ResolveOptions(what=what, flags=flags, engine_path=engine_path, rpc=tuple(rpc or ()))
    how = BenchOptions(
        resolve=options,
        budget_seconds=budget,
        json_output=json_output,
        output=output,
        quiet=quiet,
        verbose=verbose,
    )
    if tune:
        from magnitude_tune.cli.bench_tune import bench_tune

        bench_tune(how, max_runs)
    elif grid:
        bench_grid(parse_axes(grid, flags), how)
    else:
        bench_and_report(how)
