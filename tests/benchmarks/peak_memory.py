"""Runs a model in many settings and compares its peak resident memory with the footprint's prediction.

    python tests/benchmarks/peak_memory.py MODEL [--engine NAME] [--only TEXT] [--keep FILE] [--markdown FILE]

Every slot reads one prompt that fills its context but for 64 tokens, then writes 16 tokens. Rows with a prompt cache
hold as many conversations as it takes to fill that cache. The peak is the process's own (`VmHWM`) after the last token.
`resident` is the sum of the footprint's terms on the host without devices of RPC servers; what is bounded by what a
run fills (checkpoints, prompt cache) counts as this run fills it. `--keep` writes what was measured to a file, a JSON
object a line; rows that are there already are priced again but not run again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from magnitude_tune.engines.llama_server import LlamaServerSession
from magnitude_tune.engines.server_client import ServerClient
from magnitude_tune.engines.sessions import open_session
from magnitude_tune.engines.values import EngineSession, Launch, MemoryReading
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.read import read_model
from magnitude_tune.pipeline.machine import find_machine
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

BASE: Final = Settings(
    n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=2048, n_ubatch=512, n_ctx=4096, load_mode="mmap"
)
TARGET_PERCENT: Final = 5.0
LEFT_FREE: Final = 64
"""Tokens of each slot's context that no prompt takes."""

N_WRITTEN: Final = 16
REQUEST_SECONDS: Final = 1200.0

BOTH: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"load_mode": "none"},
    {"n_ubatch": 2048},
    {"n_ctx": 8192},
    {"n_ctx": 8192, "n_parallel": 4},
    {"n_ctx": 16384, "n_ubatch": 2048},
    {"n_ctx": 32768},
    {"n_ctx": 8192, "type_k": "q8_0", "type_v": "q8_0"},
    {"flash_attn": False},
)
SERVER_ONLY: Final[tuple[dict[str, Any], ...]] = (
    {"repack": True},
    {"repack": True, "load_mode": "none"},
    {"repack": True, "load_mode": "none", "n_ctx": 16384, "n_parallel": 4, "n_ubatch": 2048},
    {"n_ctx": 8192, "n_parallel": 4, "kv_unified": True},
    {"ctx_checkpoints": 4},
    {"n_ctx": 8192, "n_parallel": 4, "ctx_checkpoints": 4},
    {"n_ctx": 2048, "ctx_checkpoints": 4, "cache_ram": 256},
)
"""Changes from `BASE`: the embedded engine has neither checkpoints nor a prompt cache, and its worker one sequence."""


class Measured(NamedTuple):
    """One run, in bytes; `rounds` is how often the slots were filled."""

    engine: str
    build: str
    changes: str
    peak: int
    anonymous: int
    printed_compute: int
    rounds: int


class Row(NamedTuple):
    """One run beside its price, in bytes."""

    measured: Measured
    resident: int
    reserved: int
    compute: int

    @property
    def peak(self) -> int:
        """The process's own peak."""
        return self.measured.peak

    @property
    def percent(self) -> float:
        """How far the prediction is above the peak, in percent of the peak."""
        return 100 * (self.resident - self.peak) / self.peak

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.peak > self.reserved:
            return "above reserved"
        return "ok" if abs(self.percent) <= TARGET_PERCENT else "off"


def run(model: Path, footprint: Footprint, engine: EngineFacts, changes: dict[str, Any]) -> Measured:
    """Start the engine, fill every slot, and read the peak."""
    settings = replace(BASE, **changes)
    session = open_session(engine, Launch(model_path=str(model), settings=settings))
    try:
        rounds = fill(session, settings, footprint)
        memory = session.memory()
        printed = sum(line.n_bytes for line in session.buffers if line.kind == "compute")
    finally:
        session.close()
    assert isinstance(memory, MemoryReading)
    return Measured(
        engine=engine.name,
        build=engine.build,
        changes=named(changes),
        peak=memory.peak_resident_bytes,
        anonymous=memory.anonymous_bytes,
        printed_compute=printed,
        rounds=rounds,
    )


def priced(measured: Measured, footprint: Footprint, changes: dict[str, Any]) -> Row:
    """A run beside what the footprint says today."""
    return Row(
        measured=measured,
        resident=resident_bytes(footprint, replace(BASE, **changes), measured.rounds),
        reserved=sum(term.reserved_bytes for term in footprint.terms if term.device == "CPU"),
        compute=_of(footprint, "compute"),
    )


def named(changes: dict[str, Any]) -> str:
    """The changes as they stand in the table."""
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or "-"


class Kept:
    """What was measured before, in a file or only in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self._runs = [Measured(**json.loads(line)) for line in lines]

    def find(self, engine: EngineFacts, changes: dict[str, Any]) -> Measured | None:
        """The run of that build with these changes."""
        wanted = (engine.name, engine.build, named(changes))
        return next((run for run in self._runs if (run.engine, run.build, run.changes) == wanted), None)

    def add(self, run: Measured) -> None:
        """Keep one more."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(run._asdict()) + "\n")


def fill(session: EngineSession, settings: Settings, footprint: Footprint) -> int:
    """Fill every slot's context once, more often where a prompt cache is to be filled; how often it was."""
    per_slot = settings.n_ctx if settings.kv_unified else settings.n_ctx // settings.n_parallel
    n_prompt = (settings.n_ctx // settings.n_parallel if settings.kv_unified else per_slot) - LEFT_FREE
    if not isinstance(session, LlamaServerSession):
        session.prompt(n_prompt)
        session.generate(N_WRITTEN)
        return 1
    client = ServerClient(session.port)
    one = _of(footprint, "kv_cache") + sum(t.resident_bytes for t in footprint.terms if t.name == "checkpoints")
    rounds = 1 if not settings.cache_ram else 3 + settings.cache_ram * MIB // max(1, one)
    for number in range(rounds):
        threads = [
            threading.Thread(target=_converse, args=(client, slot, n_prompt, 1000 * number + slot, settings))
            for slot in range(settings.n_parallel)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return rounds


def _converse(client: ServerClient, slot: int, n_prompt: int, seed: int, settings: Settings) -> None:
    tokens = [1000 + (seed * 7919 + 31 * index) % 200_000 for index in range(n_prompt)]
    body: dict[str, object] = {"prompt": tokens, "n_predict": N_WRITTEN, "temperature": 0, "ignore_eos": True}
    body["cache_prompt"] = True
    if not settings.cache_ram:
        # A request for one slot by its number passes by the prompt cache.
        body["id_slot"] = slot
    answer = client.complete(body, timeout_seconds=REQUEST_SECONDS)
    assert answer.count("timings", "prompt_n") == n_prompt


def resident_bytes(footprint: Footprint, settings: Settings, rounds: int) -> int:
    """What this run should show: everything resident; a prompt cache as full as this run made it."""
    resident = sum(term.resident_bytes for term in footprint.terms if term.device == "CPU")
    if rounds > 1:
        resident += settings.cache_ram * MIB
    return resident


def _of(footprint: Footprint, name: str) -> int:
    return sum(term.reserved_bytes for term in footprint.terms if term.name == name and term.device == "CPU")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as Markdown."""
    yield "| engine | changes | peak MiB | resident MiB | off | reserved MiB | compute printed / priced | |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for row in rows:
        run = row.measured
        yield (
            f"| {run.engine} | {run.changes} | {row.peak / MIB:.1f} | {row.resident / MIB:.1f} | {row.percent:+.1f} % "
            f"| {row.reserved / MIB:.1f} | {run.printed_compute / MIB:.2f} / {row.compute / MIB:.2f} | {row.verdict} |"
        )


def page(
    rows: Sequence[Row], machine: Fingerprint, model: Path, engines: Sequence[EngineFacts], skipped: Sequence[str]
) -> str:
    """The dated table with what it was made from, and the rows that were not run."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    builds = "; ".join(f"{each.name} {each.build} with ggml {each.ggml_version}" for each in engines)
    met = sum(row.verdict == "ok" for row in rows)
    head = [
        "# Peak resident memory of real runs",
        "",
        f"Made on {date} by `python tests/benchmarks/peak_memory.py MODEL --keep FILE --markdown PAGE`, in one or",
        "several goes (runs are kept, and priced by this day's code),",
        f"with {model.name} on {machine.cpu.brand or machine.cpu.architecture}, {machine.cpu.usable_cores} cores;",
        f"{builds}.",
        "",
        f"Base: n_ctx {BASE.n_ctx}, n_batch {BASE.n_batch}, n_ubatch {BASE.n_ubatch}, one slot, f16 cache, flash",
        f"attention on, {BASE.load_mode}, no repacking, {BASE.n_threads} threads. Each slot read a prompt that",
        f"filled it but for {LEFT_FREE} tokens and wrote {N_WRITTEN}. The embedded engine's worker has one sequence:",
        "of four slots it fills one.",
        "`off` is (resident - peak) / peak; the target is 5 % and a peak never above what is reserved.",
        "",
        f"{met} of {len(rows)} rows meet the target.",
        "",
    ]
    tail = ["", "Not run:", "", *(f"- {each}" for each in skipped)] if skipped else []
    return "\n".join([*head, *table(rows), *tail, ""])


def main() -> int:
    """Run all rows, print them, and write the page where one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("llama_cpp_python", "llama_server"))
    parser.add_argument("--engine-path", help="a llama-server that is not found by itself")
    parser.add_argument("--only", action="append", help="only rows with exactly these changes; repeatable")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    machine = find_machine(engine_path=arguments.engine_path)
    header = read_model(arguments.model)
    wanted = (arguments.engine,) if arguments.engine else ("llama_cpp_python", "llama_server")
    engines = [each for each in machine.engines if each.name in wanted and each.problem is None]
    kept = Kept(arguments.keep)
    rows, skipped = [], []
    for engine in engines:
        model = footprint_model(header, machine, engine)
        for changes in (*BOTH, *(SERVER_ONLY if engine.name == "llama_server" else ())):
            if arguments.only and named(changes) not in arguments.only:
                skipped.append(f"{engine.name}: {named(changes)}")
                continue
            footprint = model.footprint(replace(BASE, **changes))
            measured = kept.find(engine, changes)
            if measured is None:
                measured = run(arguments.model, footprint, engine, changes)
                kept.add(measured)
            rows.append(priced(measured, footprint, changes))
            print(list(table(rows[-1:]))[-1], flush=True)
    if arguments.markdown:
        arguments.markdown.write_text(page(rows, machine, arguments.model, engines, skipped), encoding="utf-8")
    return 0 if all(row.verdict == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
