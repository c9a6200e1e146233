"""Files of llama-bench: what is taken, what is left out and why, and what a stranger's file must not do."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observations.measured import measurement

from magnitude_tune.errors import InputFileError
from magnitude_tune.observations import foreign, imports
from magnitude_tune.observations.foreign import parse_foreign, read_foreign
from magnitude_tune.observations.history import StoredRun, runs
from magnitude_tune.observations.imports import Imported, store_imported
from magnitude_tune.observations.llama_bench import exported_rows
from magnitude_tune.observations.store import copy_store, evidence_for, store, store_path

NANOSECONDS = [12140144300, 12308847400, 12225136900, 12154929400, 11909783400]
"""Samples of a public report (llama.cpp #24951) whose stddev_ns was stated 25 times too large."""


def row(**changes: object) -> dict[str, object]:
    """A row as a build of 2026 writes it, with a few changes; None takes a key away."""
    base: dict[str, object] = {
        "build_commit": "185cbff6f",
        "build_number": 8909,
        "cpu_info": "AMD Ryzen 9 7950X",
        "gpu_info": "NVIDIA GeForce RTX 4090",
        "backends": "CUDA",
        "model_filename": "models/llama-8b-q4_k_m.gguf",
        "model_type": "llama 8B Q4_K - Medium",
        "model_size": 4912898304,
        "model_n_params": 8030261312,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_threads": 16,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": "f16",
        "type_v": "f16",
        "n_gpu_layers": 99,
        "n_cpu_moe": 0,
        "split_mode": "layer",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": 1,
        "devices": "auto",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "mmap",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": 0,
        "n_gen": 128,
        "n_depth": 0,
        "test_time": "2026-06-23T10:00:00Z",
        "avg_ns": 12147768280,
        "stddev_ns": 3722529745,
        "avg_ts": 10.538,
        "stddev_ts": 0.13,
        "samples_ns": NANOSECONDS,
        "samples_ts": [128e9 / ns for ns in NANOSECONDS],
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def take(text: str | bytes) -> Imported:
    """Store what is in a file of this content."""
    return store_imported(parse_foreign(text if isinstance(text, bytes) else text.encode(), "rows.json"))


def only_run(text: str | bytes) -> StoredRun:
    """The single run in a file of this content, which is taken whole."""
    taken = take(text)
    assert taken.left_out == ()
    (run,) = runs()
    assert taken.run_ids == (run.run_id,)
    return run


def reasons(taken: Imported) -> Mapping[str, int]:
    """Why rows were left out, and how many."""
    return dict(taken.left_out)


def pretty(*rows: Mapping[str, object]) -> str:
    """Rows as llama-bench's JSON lays them out: each object on lines of its own."""
    return "[\n" + ",\n".join("  " + json.dumps(one, indent=2) for one in rows) + "\n]\n"


PROMPT = {"n_prompt": 512, "n_gen": 0, "samples_ns": [512 * 10**6, 520 * 10**6, 508 * 10**6], "samples_ts": None}


@pytest.mark.parametrize(
    "text",
    [
        pretty(row(**PROMPT), row()),
        json.dumps([row(**PROMPT), row()]),
        "".join(json.dumps(one) + "\n" for one in (row(**PROMPT), row())),
        "".join(json.dumps(one) + "\r\n" for one in (row(**PROMPT), row())),
    ],
    ids=["json", "json in one line", "jsonl", "jsonl of Windows"],
)
def test_json_and_json_lines_make_one_run_of_one_configuration(text: str) -> None:
    """Both tests of a configuration are one run, marked as imported, with its samples."""
    run = only_run(text)
    assert run.origin == "imported"
    assert [str(test.key) for test in run.tests] == ["pp512", "tg128"]
    assert [sample.seconds for sample in run.tests[1].samples] == pytest.approx([ns / 1e9 for ns in NANOSECONDS])
    assert (run.model_type, run.cpu_info) == ("llama 8B Q4_K - Medium", "AMD Ryzen 9 7950X")
    assert (run.engine, run.engine_build) == ("llama_bench", "185cbff6f (8909)")
    assert run.settings["n_gpu_layers"] == 99
    assert run.settings["flash_attn"] is True
    assert "devices" not in run.settings
    assert run.disturbance == {}


def test_powershells_utf_16_is_read() -> None:
    """`llama-bench -o json > file` in PowerShell writes UTF-16 with a mark in front; others put one before UTF-8."""
    run = only_run(pretty(row()).encode("utf-16"))
    assert len(run.tests) == 1
    assert take(b"\xef\xbb\xbf" + pretty(row()).encode()).n_known == 1


def test_the_deviation_is_computed_from_samples_not_taken_over() -> None:
    """The report's five samples deviate by 148.9 ms; the file said 3.7 s, and an unsigned overflow says 584 years."""
    for stated in (3722529745, 18446744073709551615, -9223372036854775808):
        take(pretty(row(stddev_ns=stated, build_number=stated % 9973)))
    for exported in exported_rows():
        assert exported["stddev_ns"] == round(stdev(NANOSECONDS))
        assert exported["stddev_ns"] == pytest.approx(148_894_758, rel=1e-6)


B66 = "ggml_vulkan: Found 1 Vulkan devices:\nggml_vulkan: 0 = AMD Radeon (RADV) | uma: 1 [fp16: 1]\n"


def test_b66_log_lines_around_rows_are_passed_over() -> None:
    """Lines of the log before, between and after the rows, and a crash at the end, cost no row."""
    text = pretty(row(**PROMPT), row())
    between = text.replace("},\n", "},\nllama_kv_cache: size = 24.00 MiB [layers: 18]\n", 1)
    crash = "ggml-vulkan.cpp:123: GGML_ASSERT(false) failed {\nSegmentation fault (core dumped)\n"
    run = only_run(B66 + between + crash)
    assert len(run.tests) == 2


def test_b66_an_array_that_was_not_finished_gives_its_whole_rows() -> None:
    """A run that crashed in its third row gives two, and says that one was cut off."""
    text = pretty(row(**PROMPT), row(), row(n_threads=8))
    taken = take(B66 + text[: text.rindex('"samples_ns"') + 30] + "\nggml_abort: out of memory\n")
    assert (len(taken.run_ids), taken.n_rows) == (1, 2)
    assert reasons(taken) == {"cut off or not JSON": 1}
    lines = "".join(json.dumps(one) + "\n" for one in (row(n_threads=4), row(n_threads=2)))
    assert reasons(take(lines[:-40])) == {"cut off or not JSON": 1}


def test_b68_rates_over_zero_time_are_no_figures() -> None:
    """Zero nanoseconds, and the bare `inf` and `-nan` that builds write for them, are a reason and no infinite rate."""
    text = pretty(row(samples_ns=[0, 0], samples_ts=None, avg_ns=0, avg_ts="INF", stddev_ts="NAN"), row(n_threads=8))
    taken = take(text.replace('"INF"', "inf").replace('"NAN"', "-nan"))
    assert reasons(taken) == {"no sample took any time": 1}
    assert taken.n_rows == 1
    partly = row(n_threads=4, samples_ns=[0, *NANOSECONDS])
    assert take(json.dumps(partly)).n_rows == 1
    assert all(len(test.samples) == 5 for run in runs() for test in run.tests)


def test_b37_a_cold_first_run_is_imported_as_unstable() -> None:
    """B37: Samples 5300, 35100, 35300 come in with their median, and marked: no verdict rests on them."""
    run = only_run(json.dumps(row(**PROMPT | {"samples_ns": None, "samples_ts": [5300.0, 35100.0, 35300.0]})))
    (test,) = run.tests
    assert test.summary.median == pytest.approx(35100)
    assert not test.stable


def test_b67_a_sinking_run_keeps_the_order_of_its_samples() -> None:
    """B67: The report's samples come in one by one in their order, so that a decline can be seen."""
    sinking = [21.09, 18.93, 18.78, 17.46, 18.05]
    run = only_run(json.dumps(row(samples_ns=None, samples_ts=sinking)))
    assert [sample.rate for sample in run.tests[0].samples] == pytest.approx(sinking)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("error: failed to load model 'model.gguf'\nnot enough memory\n", "neither JSON"),
        ("[\n]\n", "neither JSON"),
        ("CREATE TABLE IF NOT EXISTS llama_bench (\n  n_prompt INTEGER\n);\nINSERT INTO llama_bench", "SQL script"),
        ("| model | size | params |\n| --- | ---: | ---: |\n| llama 8B | 4.58 GiB | 8.03 B |\n", "table for people"),
        ('{"schema_version": 1, "settings": {"n_threads": 2}}', "no rows of llama-bench"),
    ],
)
def test_b86_a_file_without_rows_is_an_error_not_an_empty_history(text: str, message: str) -> None:
    """A failed bench, an SQL script, a table for people: said as what they are, with what to do, and nothing stored."""
    with pytest.raises(InputFileError, match=message) as caught:
        take(text)
    assert "-o jsonl" in str(caught.value.hint)
    assert not store_path().exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_gen": None}, "n_gen is missing or no count"),
        ({"n_prompt": -1}, "n_prompt is missing or no count"),
        ({"n_gen": 2.5}, "n_gen is missing or no count"),
        ({"n_gen": 0}, "nothing was read or written"),
        ({"model_type": None, "model_filename": None}, "names no model"),
        ({"samples_ns": None, "samples_ts": None, "avg_ts": None, "avg_ns": None}, "no samples and no mean"),
        ({"samples_ns": ["x", None, {}], "samples_ts": None}, "no sample took any time"),
        ({"samples_ns": [10**30]}, "no sample took any time"),
        ({"samples_ns": [1] * 1001}, "more than 1000 samples in one row"),
    ],
)
def test_a_row_without_what_is_needed_is_counted_with_the_reason(changes: dict[str, object], reason: str) -> None:
    """One poor row costs itself only."""
    taken = take(json.dumps([row(**changes), row()]))
    assert reasons(taken) == {reason: 1}
    assert taken.n_rows == 1


def test_an_old_builds_row_is_taken_by_its_keys() -> None:
    """A row of 2023, with keys that are gone and without those that came, is taken; `use_mmap` is the load mode."""
    new = ("backends", "n_cpu_moe", "flash_attn", "devices", "n_depth", "load_mode", "fit_target", "fit_min_ctx")
    gone = {"cuda": True, "metal": False, "f16_kv": True, "mul_mat_q": True, "use_mmap": False, "surprise": [{}]}
    run = only_run(json.dumps(row(**dict.fromkeys(new)) | gone))
    assert run.settings["load_mode"] == "none"
    assert "flash_attn" not in run.settings
    assert str(run.tests[0].key) == "tg128"


def test_depths_and_combined_tests_belong_to_the_run_and_repeats_do_not() -> None:
    """pp, tg, pp+tg and depths of one configuration are one run; the same test again begins another."""
    rows = [row(**PROMPT), row(), row(n_depth=4096), row(n_prompt=512, n_gen=128), row()]
    taken = take(json.dumps(rows))
    assert taken.n_rows == 5
    sizes = sorted(len(run.tests) for run in runs())
    assert sizes == [1, 4]
    assert "tg128 @ d4096" in [str(test.key) for run in runs() for test in run.tests]
    assert "pp512+tg128" in [str(test.key) for run in runs() for test in run.tests]


def test_the_same_file_again_adds_nothing() -> None:
    """Importing is repeatable: a grown file adds what is new."""
    first = take(json.dumps([row()]))
    again = take(json.dumps([row(), row(n_threads=8)]))
    assert (len(first.run_ids), first.n_known) == (1, 0)
    assert (len(again.run_ids), again.n_known) == (1, 1)
    assert len(runs()) == 2


def test_imported_runs_are_never_evidence() -> None:
    """Not even where names and hashes are this machine's: nobody watched, and a name is no fingerprint."""
    store(measurement())
    take(json.dumps(row()))
    (imported,) = (run for run in runs() if run.origin == "imported")
    subject = (imported.model_hash, imported.machine_hash, imported.engine, imported.engine_build)
    assert evidence_for(*subject) == ()
    with sqlite3.connect(store_path()) as connection:
        connection.execute(
            "UPDATE llama_bench SET model_hash = 'model', machine_hash = 'machine', engine = 'llama_cpp_python', "
            "engine_build = '0.3.36', settings = (SELECT settings FROM llama_bench WHERE origin = 'measured') "
            "WHERE origin = 'imported'"
        )
    connection.close()
    assert len(evidence_for("model", "machine", "llama_cpp_python", "0.3.36")) == 1


CSV_COLUMNS = [name for name in row() if not name.startswith("samples")]


def csv_text(*rows: Mapping[str, object]) -> str:
    """Rows as llama-bench's CSV: the header bare, every value in quotes."""
    lines = [",".join(CSV_COLUMNS)]
    lines += [",".join('"' + str(one.get(name, "")).replace('"', '""') + '"' for name in CSV_COLUMNS) for one in rows]
    return "\n".join(lines) + "\n"


def test_csv_gives_means_that_are_marked_and_never_stable() -> None:
    """CSV has no samples: the mean and its spread are taken, and the deviation in nanoseconds follows from them."""
    broken = csv_text(row()).splitlines()[1].rpartition(",")[0]
    taken = take(B66 + csv_text(row(gpu_info='RTX "4090", 24 GB'), row(n_threads=8)) + broken + "\n")
    assert taken.n_rows == 2
    assert reasons(taken) == {"cut off or of another width than the header": 1}
    run = runs()[-1]
    (test,) = run.tests
    assert run.gpu_info == 'RTX "4090", 24 GB'
    assert (test.samples, test.stable) == ((), False)
    assert test.summary.median == pytest.approx(10.538)
    assert test.summary.low == pytest.approx(10.538 - 1.6449 * 0.13)
    assert exported_rows()[0]["stddev_ns"] == pytest.approx(12147768280 * 0.13 / 10.538, rel=1e-3)


def database(path: Path, *statements: str) -> Path:
    """An SQLite file made by these statements."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


TABLE = "CREATE TABLE {} (model_type TEXT, n_prompt INTEGER, n_gen INTEGER, avg_ts REAL, stddev_ts REAL)"
ENDLESS_VIEW = """
CREATE VIEW llama_bench AS WITH RECURSIVE n(n_prompt) AS (SELECT 1 UNION ALL SELECT n_prompt + 1 FROM n)
SELECT n_prompt, 1 AS n_gen FROM n
"""
VALUES = "INSERT INTO {} VALUES ('llama 8B', '512', '0', '205.5', '4.5')"


@pytest.mark.parametrize("table", ["llama_bench", "test"])
def test_a_database_made_of_llama_benchs_sql_is_read(tmp_path: Path, table: str) -> None:
    """`llama-bench -o sql | sqlite3 file`: the table of today and that of older builds."""
    path = database(tmp_path / "bench.sqlite", TABLE.format(table), VALUES.format(table))
    before = path.read_bytes()
    assert store_imported(read_foreign(path)).n_rows == 1
    assert runs()[0].tests[0].summary.median == 205.5
    assert path.read_bytes() == before


def test_a_copy_of_another_machines_store_comes_in_with_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `bench --export sqlite` wrote elsewhere is read here, sample by sample, and marked as imported."""
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path / "elsewhere"))
    store(measurement())
    copy_store(tmp_path / "copy.sqlite")
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path / "here"))
    assert store_imported(read_foreign(tmp_path / "copy.sqlite")).n_rows == 2
    (run,) = runs()
    assert run.origin == "imported"
    assert [test.samples for test in run.tests] == [measurement().pp_samples, measurement().tg_samples]


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["CREATE TABLE other (x)"], "no table llama_bench"),
        (["CREATE TABLE llama_bench (x)"], "no table llama_bench"),
        ([TABLE.format("a"), "CREATE VIEW llama_bench AS SELECT * FROM a"], "computed, not stored"),
        (
            [ENDLESS_VIEW],
            "computed, not stored",
        ),
    ],
    ids=["another program's", "without columns", "view", "endless view"],
)
def test_a_database_that_computes_or_lacks_the_table_is_refused(
    tmp_path: Path, statements: list[str], message: str
) -> None:
    """A stranger's view is not run, and another program's database is said to be one."""
    with pytest.raises(InputFileError, match=message):
        read_foreign(database(tmp_path / "bench.sqlite", *statements))


def test_generated_columns_of_a_stranger_are_not_computed(tmp_path: Path) -> None:
    """A column that is an expression, here one past the limit on lengths, is passed over and never evaluated."""
    table = TABLE.format("llama_bench")[:-1] + ", model_filename TEXT AS (hex(zeroblob(3000000))) VIRTUAL)"
    path = database(
        tmp_path / "bench.sqlite",
        table,
        "INSERT INTO llama_bench (model_type, n_prompt, n_gen, avg_ts) VALUES ('llama 8B', 512, 0, 205.5)",
    )
    (found,) = read_foreign(path).rows
    assert "model_filename" not in found
    assert found["avg_ts"] == 205.5


@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_torn_database_is_an_error_of_ours(tmp_path: Path, content: bytes) -> None:
    """A file that only begins as a database ends in our error, with its path."""
    path = tmp_path / "torn.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputFileError) as caught:
        read_foreign(path)
    assert str(path) in str(caught.value)


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long a file, too many rows, and too many samples in all are refused or counted, not loaded."""
    monkeypatch.setattr(foreign, "MAX_FILE_BYTES", 100_000)
    with pytest.raises(InputFileError, match="longer than"):
        take(b" " * 100_001)
    monkeypatch.setattr(foreign, "MAX_ROWS", 3)
    with pytest.raises(InputFileError, match="more than 3 rows"):
        take(json.dumps([row(n_threads=n) for n in range(1, 5)]))
    monkeypatch.setattr(imports, "_MAX_SAMPLES_IN_ALL", 7)
    assert reasons(take(json.dumps([row(n_threads=1), row(n_threads=2)]))) == {"more than 7 samples in one file": 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"n_gen":' * 200_000,
        "[\n" * 200_000 + '{"avg_ts": 1',
        '{"avg_ts": [' + "[" * 200_000,
        '{"n_gen": ' + "9" * 200_000 + "}",
        "{\n" * 200_000,
        "\n" * 200_000 + "{" + " " * 200_000,
        ('{"n_gen": 1, "x": "' + "y" * 1000 + "\n") * 3_000,
    ],
    ids=["nested objects", "open arrays", "nested arrays", "a long number", "open braces", "blanks", "cut off rows"],
)
def test_hostile_text_ends_soon_in_an_error_or_a_reason(text: str) -> None:
    """Nesting, length and repetition cost no more than a bounded time, and never a traceback."""
    try:
        found = parse_foreign(text.encode(), "hostile")
    except InputFileError:
        return
    assert found.rows == ()
    assert found.problems


def test_names_of_strangers_cannot_steer_a_terminal() -> None:
    """Control characters in names become question marks, and long names are cut."""
    run = only_run(json.dumps(row(model_type="llama\x1b[2J\x07", cpu_info="c" * 5000)))
    assert run.model_type == "llama?[2J?"
    assert len(run.cpu_info) == 1024


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(changes=st.dictionaries(st.sampled_from(sorted(row())), json_values, max_size=6))
def test_whatever_a_row_holds_it_is_a_row_or_a_reason(changes: dict[str, object]) -> None:
    """Any JSON value under any key gives a row with finite figures or one of our reasons, never another error."""
    try:
        taken, n = imports._row(row() | changes, 1_000)
    except imports._Unusable:
        return
    assert n == len(json.loads(str(taken["samples"])))
    assert 0 <= taken["low_ts"] <= taken["median_ts"] <= taken["high_ts"] < float("inf")  # type: ignore[operator]
    assert isinstance(taken["avg_ns"], int)
    json.dumps(taken, allow_nan=False)
