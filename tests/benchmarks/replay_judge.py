"""Judges refinement and tuning on measured tables, without an engine.

    python tests/benchmarks/replay_judge.py [TABLE.json ...] [--markdown FILE]

Each table is split by the threads of the device over RPC: what runs there is another machine to a prediction. Then:

- the noise floor: how far one run of a setting is off the median of its other runs;
- refinement: the median error on all other settings, shipped, after one run and after three, over draws of settings;
- tuning: seconds of the turn of what is recommended, over the table's best, in at most six and eight runs, beside
  random search, Optuna's TPE (where it is installed) and "all cores, physical batch 512" at equal runs.

A table whose settings differ by less than its noise, or whose best a trivial rule meets, is said to be too flat.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from magnitude_tune.fingerprint.stored import from_document
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.header.cached import header_of_document
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.observations.statistics import SIGMA_90, summarise
from magnitude_tune.pipeline.resolve import shipped_coefficients
from magnitude_tune.request import Settings, Workload
from magnitude_tune.throughput.model import PhysicsModel
from magnitude_tune.throughput.refine import Quantity
from magnitude_tune.throughput.values import Evidence
from magnitude_tune.tuning.session import tune
from magnitude_tune.tuning.values import Candidate, Expected, Run

WITHIN: Final = 0.03
DRAWS: Final = 60
SEEDS: Final = 40
MAX_RUNS: Final = (6, 8)
_CHANCE: Final = 3.5
"""Standard deviations between runs that the medians of 20 equal settings, of three runs each, lie apart by chance."""

_RULE: Final = "|---|---|---|---|---|---|"
_QUANTITIES: Final[tuple[Quantity, ...]] = ("tg", "pp")


class Round(NamedTuple):
    """One process: its rates in tokens/second, and whether nothing disturbed it."""

    pp: tuple[float, ...]
    tg: tuple[float, ...]
    clean: bool

    def rate(self, quantity: Quantity) -> float:
        """The median."""
        return median(self.pp if quantity == "pp" else self.tg)


class Row(NamedTuple):
    """One setting of the table with its rounds; `label` says what was varied."""

    label: str
    setting: Mapping[str, Any]
    settings: Settings
    rounds: tuple[Round, ...]

    @property
    def depth(self) -> int:
        """Tokens of context before the work."""
        return int(self.setting["depth"])

    def rate(self, quantity: Quantity) -> float:
        """The median over the rounds' medians."""
        return median(each.rate(quantity) for each in self.rounds)


class Table(NamedTuple):
    """One model on one machine, with one device over RPC at most."""

    name: str
    header: ModelHeader
    machine: Any
    engine: EngineFacts
    turn: Workload
    rows: tuple[Row, ...]

    def speed(self) -> PhysicsModel:
        """The speed model as shipped."""
        return PhysicsModel(self.header, self.machine, self.engine, shipped_coefficients(), n_prompt=self.turn.n_prompt)

    def seconds(self, pp: float, tg: float) -> float:
        """The turn at those rates."""
        return self.turn.n_prompt / pp + self.turn.n_gen / tg


def read_tables(path: Path) -> Iterator[Table]:
    """The tables of one file: the rows on the CPU with those of each device over RPC."""
    document = json.loads(path.read_text())
    cores = document["machine"]["cpu"]["usable_cores"]
    rows = [_row(row, cores) for row in document["rows"] if row["rounds"]]
    for threads in sorted({row.setting["rpc_threads"] for row in rows} - {0}) or [0]:
        yield Table(
            name=f"{path.stem}, {threads} threads over RPC" if threads else path.stem,
            header=header_of_document(document["model"]["header"], document["model"]["path"]),
            machine=from_document(document["machine"], str(path)),
            engine=TypeAdapter(EngineFacts).validate_python(document["engine"]),
            turn=Workload(**document["turn"]),
            rows=tuple(row for row in rows if row.setting["rpc_threads"] in (0, threads)),
        )


def _row(document: Mapping[str, Any], cores: int) -> Row:
    usual = {"threads": cores, "ubatch": 512, "flash_attn": True, "depth": 0, "offloaded": 0.0, "rpc_threads": 0}
    setting = document["setting"]
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in document["settings"].items()}
    label = " ".join(f"{name}={value}" for name, value in setting.items() if value != usual[name])
    rounds = tuple(
        Round(tuple(each["pp"]), tuple(each["tg"]), not each["doubted"] and not each["disturbance"]["notes"])
        for each in document["rounds"]
    )
    return Row(label or "all cores, ubatch 512", setting, Settings(**values), rounds)


def noise_floor(table: Table, quantity: Quantity) -> float:
    """Median over settings and rounds of how far a round is off the median of the setting's other rounds."""
    off = []
    for row in table.rows:
        for number, each in enumerate(row.rounds):
            others = [other.rate(quantity) for k, other in enumerate(row.rounds) if k != number]
            if others:
                off.append(abs(each.rate(quantity) / median(others) - 1))
    return median(off) if off else math.nan


def evidence(row: Row, number: int) -> Evidence:
    """One round of a row as a stored run."""
    taken = row.rounds[number % len(row.rounds)]

    def rate(rates: Sequence[float]) -> tuple[float, float, float]:
        found = summarise(rates)
        return found.median, found.low, found.high

    return Evidence(row.settings, rate(taken.pp), rate(taken.tg), None, depth=row.depth)


class Errors(NamedTuple):
    """Median absolute error of predictions, and the share of figures inside their 90 % intervals."""

    error: float
    coverage: float


def errors_after(table: Table, n_runs: int, quantity: Quantity, draws: int = DRAWS) -> Errors:
    """Over draws of that many settings, one run each: errors on every other setting of the table."""
    dice = random.Random(5)  # noqa: S311 - the same draws every time, nothing secret
    speed = table.speed()
    found: list[float] = []
    held: list[bool] = []
    chosen = [dice.sample(range(len(table.rows)), n_runs) for _ in range(draws)] if n_runs else [[]]
    if n_runs == 1:
        chosen = [[k] for k in range(len(table.rows))]
    for draw in chosen:
        speed.learn([evidence(table.rows[k], dice.randrange(3)) for k in draw])
        off = []
        for k, row in enumerate(table.rows):
            if k not in draw:
                predicted = speed.rate_interval(row.settings, quantity, row.depth)
                off.append(abs(predicted.value / row.rate(quantity) - 1))
                held.append(predicted.holds(row.rate(quantity)))
        found.append(median(off))
    return Errors(median(found), sum(held) / len(held))


class Search(NamedTuple):
    """A way to choose: the true turn over the table's best less 1, by session, and the runs each took."""

    name: str
    over_best: tuple[float, ...]
    runs: tuple[int, ...]

    @property
    def within(self) -> float:
        """The share of sessions that end within 3 % of the best."""
        return sum(each <= WITHIN for each in self.over_best) / len(self.over_best)


class Space(NamedTuple):
    """What is tuned over: rows at depth 0, with true seconds; `order` says which rounds a session meets first."""

    table: Table
    rows: tuple[Row, ...]
    seconds: tuple[float, ...]
    order: tuple[int, ...] = (0, 1, 2)

    def run(self, number: int, again: int) -> Run:
        """That candidate's next run."""
        row = self.rows[number]
        taken = row.rounds[self.order[again % len(self.order)] % len(row.rounds)]
        return Run(number, self.table.seconds(taken.rate("pp"), taken.rate("tg")))


def space_of(table: Table) -> Space:
    """The plan first: the row that the shipped prediction takes for the fastest, as resolve does."""
    rows = [row for row in table.rows if row.depth == 0]
    speed = table.speed()
    rows.sort(key=lambda row: speed.speed(row.settings, table.turn).turn_seconds.value)
    return Space(table, tuple(rows), tuple(table.seconds(row.rate("pp"), row.rate("tg")) for row in rows))


def tuned(space: Space, max_runs: int) -> Search:
    """Our own tuning, over every order of the rounds."""
    over, runs = [], []
    for order in permutations(range(max(len(row.rounds) for row in space.rows))):
        found, n_runs = _session(space._replace(order=order), max_runs)
        over.append(space.seconds[found] / min(space.seconds) - 1)
        runs.append(n_runs)
    return Search("magnitude-tune", tuple(over), tuple(runs))


def _session(space: Space, max_runs: int) -> tuple[int, int]:
    speed, taken = space.table.speed(), list[Evidence]()
    counts: dict[int, int] = {}

    def expect(_runs: Sequence[Run]) -> list[Expected]:
        speed.learn(taken)
        turns = [speed.speed(row.settings, space.table.turn).turn_seconds for row in space.rows]
        return [Expected(turn.value, math.log(turn.high / turn.low) / (2 * SIGMA_90)) for turn in turns]

    def run(number: int) -> Run:
        again = counts[number] = counts.get(number, -1) + 1
        taken.append(evidence(space.rows[number], space.order[again % len(space.order)]))
        return space.run(number, again)

    candidates = [Candidate(row.settings, (("row", row.label),)) for row in space.rows]
    result = tune(candidates, expect, run, max_runs=max_runs)
    return (result.verdict.winner if result.verdict else 0), len(result.runs)


def random_search(space: Space, max_runs: int) -> Search:
    """The fastest of that many settings drawn without looking."""
    over = []
    for seed in range(SEEDS):
        dice = random.Random(seed)  # noqa: S311
        drawn = dice.sample(range(len(space.rows)), min(max_runs, len(space.rows)))
        best = min(drawn, key=lambda number: space.run(number, dice.randrange(3)).seconds)
        over.append(space.seconds[best] / min(space.seconds) - 1)
    return Search("random search", tuple(over), (max_runs,) * SEEDS)


def optuna_search(space: Space, max_runs: int) -> Search | None:
    """Optuna's TPE over the same axes, in their order; None where it is not installed.

    Not every combination is in the table: the nearest row that was not run yet is, as random search never repeats one.
    """
    if importlib.util.find_spec("optuna") is None:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = {name: sorted({row.setting[name] for row in space.rows}) for name in space.rows[0].setting}
    places = [tuple(axes[name].index(row.setting[name]) for name in axes) for row in space.rows]
    over = []
    for seed in range(SEEDS):
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=3))
        measured: dict[int, float] = {}
        for _ in range(min(max_runs, len(space.rows))):
            trial = study.ask()
            point = [trial.suggest_int(name, 0, len(values) - 1) for name, values in axes.items()]
            number = min(
                (k for k in range(len(places)) if k not in measured),
                key=lambda k: sum(abs(one - other) for one, other in zip(places[k], point, strict=True)),
            )
            measured[number] = space.run(number, seed + len(measured)).seconds
            study.tell(trial, measured[number])
        best = min(measured, key=measured.__getitem__)
        over.append(space.seconds[best] / min(space.seconds) - 1)
    return Search("Optuna's TPE", tuple(over), (max_runs,) * SEEDS)


def always_usual(space: Space, _max_runs: int) -> Search:
    """All cores, physical batch 512: what people take without measuring."""
    usual = next(number for number, row in enumerate(space.rows) if row.label == "all cores, ubatch 512")
    return Search("all cores, ubatch 512", (space.seconds[usual] / min(space.seconds) - 1,), (0,))


def the_plan(space: Space, _max_runs: int) -> Search:
    """What the shipped prediction takes, without any run."""
    return Search("shipped plan", (space.seconds[0] / min(space.seconds) - 1,), (0,))


SEARCHES: Final[tuple[Callable[[Space, int], Search | None], ...]] = (
    tuned,
    random_search,
    optuna_search,
    always_usual,
    the_plan,
)


def judged(table: Table) -> list[str]:
    """Everything about one table, as lines of Markdown."""
    n_rounds = sum(len(row.rounds) for row in table.rows)
    clean = sum(each.clean for row in table.rows for each in row.rounds)
    lines = [f"### {table.name}", "", f"{len(table.rows)} settings, {n_rounds} runs, {clean} of them undisturbed.", ""]
    lines += [
        "| | noise floor | shipped | after 1 run | after 3 | 90 % coverage after 3 |",
        _RULE,
    ]
    for quantity in _QUANTITIES:
        shipped, one, three = (errors_after(table, n, quantity) for n in (0, 1, 3))
        cells = [noise_floor(table, quantity), shipped.error, one.error, three.error, three.coverage]
        lines.append(f"| {quantity} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")
    space = space_of(table)
    lines += [
        "",
        "| tuning | runs allowed | runs used | within 3 % | median over the best | worst |",
        _RULE,
    ]
    for max_runs in MAX_RUNS:
        for search in SEARCHES:
            found = search(space, max_runs)
            if found is None:
                lines.append(f"| Optuna's TPE | {max_runs} | not installed | | | |")
                continue
            used = f"{sum(found.runs) / len(found.runs):.1f}"
            figures = f"{found.within:.0%} | {median(found.over_best):.1%} | {max(found.over_best):.1%}"
            lines.append(f"| {found.name} | {max_runs} | {used} | {figures} |")
    return [*lines, "", *_flatness(space), ""]


def _flatness(space: Space) -> Iterator[str]:
    best, worst = min(space.seconds), max(space.seconds)
    noise = _scatter(space)
    near = sum(each <= best * (1 + WITHIN) for each in space.seconds)
    yield (
        f"The slowest turn is {worst / best:.2f} times the best; runs of one setting scatter by {noise:.1%}; "
        f"{near} of {len(space.seconds)} settings lie within 3 % of the best."
    )
    usual = always_usual(space, 0).over_best[0]
    if math.log(worst / best) < _CHANCE * noise:
        yield "Too flat to tell: chance alone makes settings differ as much."
    elif usual <= max(WITHIN, noise):
        yield f"Too flat to tell tuning from the usual setting: that one is {usual:.1%} over the best."


def _scatter(space: Space) -> float:
    """Standard deviation of the turn's logarithm between rounds of one setting, pooled."""
    squares = freedom = 0.0
    for row in space.rows:
        turns = [math.log(space.table.seconds(each.rate("pp"), each.rate("tg"))) for each in row.rounds]
        squares += sum((each - fmean(turns)) ** 2 for each in turns)
        freedom += len(turns) - 1
    return math.sqrt(squares / freedom) if freedom else math.nan


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--markdown", type=Path, help="write the result here too")
    options = parser.parse_args()
    paths = options.tables or sorted((Path(__file__).parent / "replay").glob("*.json"))
    if not paths:
        raise SystemExit("there is no table: run tests/benchmarks/replay_table.py first")
    lines = [line for path in paths for table in read_tables(path) for line in judged(table)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
