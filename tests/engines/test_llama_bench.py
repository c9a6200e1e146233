"""llama-bench as an engine, with a stand-in that prints what public reports show. No real one is started here."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench.stand_ins import SETTINGS, a_header, a_machine, a_resolution

from magnitude_tune.bench.run import Subject, run_bench
from magnitude_tune.engines.crashes import EngineCrash
from magnitude_tune.engines.find import find_engines
from magnitude_tune.engines.llama_bench import LlamaBenchSession, open_session, read_rows, samples_of
from magnitude_tune.engines.llama_bench_arguments import build_arguments, parse_help
from magnitude_tune.engines.llama_bench_probe import bench_program, find_llama_bench, is_bench_only
from magnitude_tune.engines.sessions import open_or_without_repack
from magnitude_tune.engines.values import CrashKind, Launch, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts
from magnitude_tune.observations.statistics import summarise
from magnitude_tune.pipeline.engine_choice import choose_engine
from magnitude_tune.units import MIB

MakeBench = Callable[..., Path]
LAUNCH = Launch(model_path="m.gguf", settings=SETTINGS)
_FAKE = Path(__file__).with_name("fake_llama_bench.py")


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    """Makes a program named llama-bench, with the given variables set (see `fake_llama_bench.py`)."""
    if os.name != "posix":
        pytest.skip("the fake program is started through a shell script")

    def make(folder: str = "fake", **variables: object) -> Path:
        program = tmp_path / folder / "llama-bench"
        program.parent.mkdir(exist_ok=True)
        settings = "".join(f"export FAKE_{name.upper()}='{value}'\n" for name, value in variables.items())
        program.write_text(f'#!/bin/sh\n{settings}exec "{sys.executable}" -S "{_FAKE}" "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    return make


def found(program: Path) -> EngineFacts:
    """The facts of that program."""
    facts = find_llama_bench(program)
    assert facts is not None
    return facts


def arguments(flags: frozenset[str], *, n_prompt: int = 512, n_gen: int = 0, depth: int = 0, **changes: object) -> str:
    """The arguments of one test, joined by blanks."""
    launch = replace(LAUNCH, settings=replace(SETTINGS, **changes))  # type: ignore[arg-type]
    return " ".join(build_arguments(launch, flags, n_prompt=n_prompt, n_gen=n_gen, depth=depth))


NEW = parse_help(
    "  -o, --output <csv|json|jsonl|md|sql>        output\n"
    "  -fa, --flash-attn <on|off|auto>                   (default: auto)\n"
    "  -lm, --load-mode <none|mmap|mlock|mmap+mlock|dio> (default: mmap)\n"
    "  -mmp, --mmap <0|1>                                (DEPRECATED IN FAVOUR OF --load-mode)\n"
    "  --repack <0|1>\n  --offline\n  -dev, --device <dev0/dev1/...>\n  -d, --n-depth <n>\n  -ncmoe, --n-cpu-moe <n>\n"
)
OLD = parse_help(
    "  -fa, --flash-attn <0|1>                     (default: 0)\n  -mmp, --mmap <0|1>           (default: 1)\n"
)


def test_a_help_tells_names_and_words() -> None:
    """Options and the words they take are read from the first column; descriptions are not read."""
    assert {"o", "output", "output=jsonl", "flash-attn=on", "load-mode=mmap+mlock", "mmap=0", "n-depth"} <= NEW
    assert "flash-attn=on" not in OLD
    assert parse_help("  --progress        prints `--verbose` indicators\n") == {"progress"}
    assert parse_help("usage: other [--colour]\n") == frozenset()


def test_arguments_follow_the_build() -> None:
    """Newer builds get words and a load mode, older ones numbers; each test gets its own number of threads."""
    new = arguments(NEW, n_threads=3, n_threads_batch=2, repack=False, load_mode="none")
    assert new.startswith("-m m.gguf -p 512 -n 0 -r 1 -o jsonl -v --offline -t 2 -b 512 -ub 128 -ctk f16 -ctv f16 ")
    assert "--flash-attn on --load-mode none --repack 0 -ngl 0 --device none" in new
    assert "-t 3 " in arguments(NEW, n_prompt=0, n_gen=32, n_threads=3, n_threads_batch=2)
    old = arguments(OLD, flash_attn=False, load_mode="none")
    assert "--flash-attn 0 --mmap 0 -ngl 0" in old
    assert "device" not in old
    assert "repack" not in old
    assert "--progress" not in new + old


def test_offload_is_explicit() -> None:
    """Devices and proportions are joined as llama-bench wants them."""
    both = arguments(
        NEW, n_gpu_layers=19, devices=("CUDA0", "CUDA1"), tensor_split=(12, 7), main_gpu=0, n_cpu_moe=4, depth=1024
    )
    assert "--n-depth 1024" in both
    assert "-ngl 19 --device CUDA0/CUDA1 -sm layer -mg 0 -ts 12/7 --n-cpu-moe 4" in both


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"repack": False}, "--repack 0"),
        ({"devices": ("CUDA0",), "n_gpu_layers": 1}, "--device"),
        ({"depth": 8}, "--n-depth 8"),
        ({"n_cpu_moe": 2}, "--n-cpu-moe 2"),
    ],
)
def test_an_old_build_is_not_asked_for_what_it_cannot_do(changes: dict[str, object], missing: str) -> None:
    """A setting without an option is an error that names it, not another measurement."""
    with pytest.raises(EngineError, match=missing):
        arguments(OLD, **changes)  # type: ignore[arg-type]


def test_a_comma_in_the_path_is_refused() -> None:
    """llama-bench would take it for two models."""
    with pytest.raises(EngineError, match="comma"):
        build_arguments(replace(LAUNCH, model_path="a,b.gguf"), NEW, n_prompt=1, n_gen=0, depth=0)


def test_rows_are_found_among_log_lines() -> None:
    """Text before, between and behind the rows is passed over, in jsonl as in json (field report B66)."""
    one, two = {"n_prompt": 512, "n_gen": 0}, {"n_prompt": 0, "n_gen": 128}
    log = "ggml_vulkan: Found 1 Vulkan devices {uma: 0}\n"
    assert read_rows(f"{log}[\n{json.dumps(one, indent=2)},\n{json.dumps(two)}\n]\nfatal error {{") == (one, two)
    assert read_rows(f"{log}{json.dumps(one)}\n{log}{json.dumps(two)}\n") == (one, two)
    assert read_rows(json.dumps(one) + "\n" + json.dumps(two)[:-3]) == (one,)
    assert read_rows(log * 1000) == ()
    assert read_rows('{"a":' * 100_000) == ()


def test_statistics_are_our_own() -> None:
    """The row's deviation, which overflowed, is not used: three slow repetitions spread by a third."""
    row = {"n_prompt": 512, "n_gen": 0, "samples_ns": [49_470_000_000, 33_480_000_000, 65_940_000_000],
           "avg_ns": 49_630_000_000, "stddev_ns": 3_800_000_000}  # fmt: skip
    samples = samples_of(row)
    assert [sample.seconds for sample in samples] == [49.47, 33.48, 65.94]
    assert summarise([sample.rate for sample in samples]).variation == pytest.approx(0.34, abs=0.01)


@pytest.mark.parametrize("times", [[0], [], ["1"], [None], [-5], [True], [math.inf], 7, None])
def test_times_that_are_none_give_no_sample(times: object) -> None:
    """Zero, absent and nonsensical times are no measurement, and no division by zero (field report B68)."""
    assert samples_of({"n_prompt": 8, "n_gen": 0, "samples_ns": times, "avg_ns": 0}) == ()


def test_a_row_without_samples_gives_its_mean() -> None:
    """Rows that came through a format without samples still have their time."""
    assert samples_of({"n_prompt": 0, "n_gen": 4, "avg_ns": 2_000_000_000}) == (Sample(4, 2.0),)


def test_the_program_tells_its_build_and_devices(bench: MakeBench) -> None:
    """The build comes from the footer of an empty table, so no model is needed."""
    facts = found(bench(devices="  CUDA0: NVIDIA H (24564 MiB, 24100 MiB free)"))
    assert (facts.name, facts.build, facts.problem) == ("llama_bench", "8123 (4b3f9c1)", None)
    assert facts.devices == (EngineDevice("CUDA0", "NVIDIA H", 24564 * MIB, 24100 * MIB),)
    assert facts.gpu_offload
    assert not found(bench("old", build="old")).gpu_offload
    assert find_llama_bench(bench("other", other=1)) is None


def test_it_is_found_beside_a_server_or_by_its_path(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path may name it, its folder, or the llama-server beside it; else PATH is searched."""
    program = bench()
    server = program.with_name("llama-server")
    server.touch()
    assert bench_program(str(program)) == bench_program(str(program.parent)) == bench_program(str(server)) == program
    assert is_bench_only(str(program))
    assert not is_bench_only(str(program.parent))
    server.unlink()
    assert is_bench_only(str(program.parent))
    assert bench_program(str(tmp_path)) is None
    monkeypatch.setenv("PATH", str(program.parent))
    assert bench_program(None) == program


def test_it_is_used_only_by_name(bench: MakeBench) -> None:
    """No plan chooses llama-bench unless it is asked for, even where no other engine is there."""
    engines = tuple(e for e in find_engines(engine_path=str(bench().parent)) if e.name == "llama_bench")
    assert len(engines) == 1
    machine = replace(a_machine(), engines=engines)
    assert choose_engine(machine, None)[0] is None
    chosen, _ = choose_engine(machine, "llama_bench")
    assert chosen == engines[0]


@pytest.mark.parametrize("build", ["old", "new"])
def test_a_session_measures_one_process_a_sample(bench: MakeBench, tmp_path: Path, build: str) -> None:
    """Samples come from the row's own times, buffers from the log; what it cannot measure is not made up."""
    calls = tmp_path / "calls"
    session = open_session(found(bench(build=build, calls=calls)), LAUNCH)
    assert session.prompt(512) == Sample(512, 512 * 0.004)
    assert session.generate(32) == Sample(32, 32 * 0.02)
    assert session.buffers[0].buffer == "CPU_Mapped"
    assert session.ready_seconds is None
    assert session.memory() is None
    tests = [json.loads(line) for line in calls.read_text().splitlines() if "-r" in json.loads(line)]
    assert [call[2:8] for call in tests] == [
        ["-p", "64", "-n", "0", "-r", "1"], ["-p", "512", "-n", "0", "-r", "1"], ["-p", "0", "-n", "32", "-r", "1"],
    ]  # fmt: skip
    session.close()


def test_a_failure_carries_its_own_cause(bench: MakeBench) -> None:
    """It exits with 1 and a line about memory, and no rows: kind, line and code are in the error (field report B86)."""
    said = "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory\n"
    program = bench(end="exit:1", say=said + "main: error: failed to load model m.gguf")
    with pytest.raises(EngineCrash) as caught:
        open_session(found(program), LAUNCH)
    assert caught.value.kind is CrashKind.DEVICE_OUT_OF_MEMORY
    assert caught.value.returncode == 1
    assert "cudaMalloc failed" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("signal:4", CrashKind.ILLEGAL_INSTRUCTION),
        ("signal:6", CrashKind.ABORT),
        ("signal:9", CrashKind.HOST_OUT_OF_MEMORY),
        ("exit:1", CrashKind.EXIT),
    ],
)
def test_a_crash_is_classified(bench: MakeBench, how: str, kind: CrashKind) -> None:
    """A process that dies gives the kind of its death and no figures (field reports B19, B22)."""
    with pytest.raises(EngineCrash) as caught:
        open_session(found(bench(end=how)), LAUNCH)
    assert caught.value.kind is kind


def test_a_row_before_a_failure_is_not_trusted(bench: MakeBench) -> None:
    """The return code comes before the rows (field report B66)."""
    with pytest.raises(EngineCrash):
        open_session(found(bench(end="late:1")), LAUNCH)


@pytest.mark.parametrize(
    ("row", "what"),
    [("none", "0 rows"), ("cut", "0 rows"), ("twice", "2 rows"), ("other", "pp65"), ("zero", "no time")],
)
def test_no_figures_is_an_error(bench: MakeBench, row: str, what: str) -> None:
    """An empty, cut, doubled, foreign or timeless table is said to be one (field reports B68, B86)."""
    with pytest.raises(EngineError, match=what):
        open_session(found(bench(row=row)), LAUNCH)


def test_a_hang_is_ended(bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gives no answer is killed in time and called a hang."""
    program = bench()
    facts = found(program)
    program.write_text("#!/bin/sh\nsleep 60\n", encoding="utf-8")
    monkeypatch.setattr("magnitude_tune.engines.llama_bench._PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("magnitude_tune.engines.llama_bench._PATIENCE_SECONDS_PER_TOKEN", 0.0)
    with pytest.raises(EngineCrash) as caught:
        LlamaBenchSession(facts, replace(LAUNCH, ready_timeout_seconds=0.1)).prompt(8)
    assert caught.value.kind is CrashKind.HANG


def test_bench_measures_through_it(bench: MakeBench) -> None:
    """A whole bench goes through it: figures from its rows, no time to ready, no memory."""
    subject = Subject(resolution=a_resolution(), header=a_header(), engine=found(bench()), machine=a_machine())
    result = run_bench(subject, open_or_without_repack, budget_seconds=1.0)
    measurement = result.measurement
    assert measurement.engine == "llama_bench"
    assert measurement.engine_build == "8123 (4b3f9c1)"
    assert {sample.rate for sample in measurement.pp_samples} == {250.0}
    assert {sample.rate for sample in measurement.tg_samples} == {50.0}
    assert measurement.ready_seconds is None
    assert measurement.memory is None
    assert result.promise.item("peak_bytes").verdict == "undecided"
