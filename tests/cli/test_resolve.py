"""`magnitude-tune resolve` through the console: contracts, exit codes and the fixed facts of the real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.console import MACHINES, run

HERMES = """# the agent's engine
inference_server:
  backend: llama_cpp   # any form of llama.cpp
  model_path: {model}
  magnitude: 4.2
  n_gpu_layers: 40
  max_ctx_size: 8192
tools: [search]
"""


def hermes(folder: Path, model: Path, text: str = HERMES) -> Path:
    config = folder / "agent.yaml"
    config.write_text(text.format(model=model))
    return config


def test_help_shows_an_example_and_the_exit_codes() -> None:
    """`--help` is enough to start."""
    done = run("resolve", "--help")
    assert done.returncode == 0
    assert "magnitude-tune resolve agent.yaml" in done.stdout
    assert "4 does not fit" in " ".join(done.stdout.split())


def test_json_keeps_its_contract(real_model: Path) -> None:
    """One object, schema version first, base units, every contracted key."""
    done = run("resolve", real_model, "--machine", MACHINES / "rtx4090-64g.json", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema_version"
    assert document["settings"]["n_gpu_layers"] == 19
    assert set(document["magnitude"]) == {"requested", "executed", "needed"}
    for name in ("pp", "tg", "ttft_seconds", "turn_seconds", "ready_seconds"):
        interval = document["predicted"][name]
        assert interval["low"] <= interval["value"] <= interval["high"]
        assert interval["basis"] == "shipped"
    pool = document["pools"][0]
    assert {"name", "budget_bytes", "available_bytes", "reserved_bytes", "executed", "needed"} <= set(pool)
    term_keys = {"name", "device", "pool", "reserved_bytes", "resident_bytes", "certainty", "rule"}
    assert all(set(term) == term_keys | {"low_bytes", "high_bytes"} for term in document["terms"])
    assert all(term["low_bytes"] <= term["resident_bytes"] <= term["high_bytes"] for term in document["terms"])
    finding_keys = {"id", "severity", "message", "file", "line", "column", "fix"}
    assert all(finding_keys <= set(finding) for finding in document["findings"])
    reserved = sum(term["reserved_bytes"] for term in document["terms"])
    assert reserved == sum(use["reserved_bytes"] for use in document["pools"])


def test_log_lines_go_to_stderr(real_model: Path) -> None:
    """Narration is not part of the result."""
    done = run("resolve", real_model, "--machine", MACHINES / "rtx4090-64g.json")
    assert re.search(r"^INFO: magnitude resolved to n_gpu_layers=19, n_threads=\d+, batch_size=\d+$", done.stderr, re.M)
    assert "INFO" not in done.stdout


def test_hermes_block_is_understood_before_it_is_compared(real_model: Path, tmp_path: Path) -> None:
    """40 layers of a model with 18 blocks are all layers: no finding on a machine where all fit."""
    done = run("resolve", hermes(tmp_path, real_model), "--machine", MACHINES / "rtx4090-64g.json", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["magnitude"]["requested"] == 4.2
    assert document["settings"]["n_ctx"] == 8192
    assert document["settings"]["n_gpu_layers"] == 19
    assert [finding for finding in document["findings"] if finding["severity"] != "info"] == []


@pytest.mark.parametrize("written", ["99", "-1", "all", "auto", "'40'", "19", "null"])
def test_every_way_to_write_all_layers(real_model: Path, tmp_path: Path, written: str) -> None:
    """99, -1, all, auto, numbers as text and block_count + 1 have the same effect here."""
    config = hermes(tmp_path, real_model, HERMES.replace("n_gpu_layers: 40", f"n_gpu_layers: {written}"))
    done = run("resolve", config, "--machine", MACHINES / "rtx4090-64g.json", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["settings"]["n_gpu_layers"] == 19
    assert "MT001" not in {finding["id"] for finding in document["findings"]}


def test_mismatch_names_setting_file_and_line(real_model: Path, tmp_path: Path) -> None:
    """A value with another effect is found at its line; exit stays 0 and the value runs."""
    config = hermes(tmp_path, real_model, HERMES.replace("n_gpu_layers: 40", "n_gpu_layers: 5"))
    done = run("resolve", config, "--machine", MACHINES / "rtx4090-64g.json", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    mismatch = next(finding for finding in document["findings"] if finding["id"] == "MT001")
    assert mismatch["message"] == "magnitude mismatch: expected 19, got 5"
    assert (mismatch["setting"], mismatch["line"]) == ("n_gpu_layers", 6)
    assert mismatch["file"].endswith("agent.yaml")
    assert document["settings"]["n_gpu_layers"] == 5


def test_pressure_on_a_limited_container(real_model: Path) -> None:
    """memory.max 2 GiB, 1.25 GiB in use: repacking is given up, the magnitude executes at 0.4, exit 0."""
    done = run("resolve", real_model, "--machine", MACHINES / "cgroup-2g.json", "--json")
    assert done.returncode == 0, done.stderr
    assert "WARN: magnitude scaled from 4.0 → 0.4 due to RAM pressure" in done.stderr.splitlines()
    document = json.loads(done.stdout)
    assert document["settings"]["repack"] is False
    assert document["given_up"][0] == "repacked copy of the weights"
    assert document["magnitude"]["executed"] == 0.4
    whole = run("resolve", real_model, "--machine", MACHINES / "cpu-24g.json", "--json")
    assert json.loads(whole.stdout)["settings"]["repack"] is True


def test_arrow_where_the_stream_cannot_show_it(real_model: Path) -> None:
    """A stream in ASCII gets `->`."""
    machine = MACHINES / "cgroup-2g.json"
    done = run("resolve", real_model, "--machine", machine, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "WARN: magnitude scaled from 4.0 -> 0.4 due to RAM pressure" in done.stderr.splitlines()


def test_refusal_of_a_tight_container(real_model: Path) -> None:
    """128 MiB left: exit 4 with the numbers and the nearest fix, nothing on stdout."""
    done = run("resolve", real_model, "--machine", MACHINES / "cgroup-2g-tight.json")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "128 MiB available of 2.00 GiB" in done.stderr
    assert re.search(r"the largest term is weights with 235 MiB", done.stderr)
    assert re.search(r"hint: .*free \d+ MiB more", done.stderr)


def test_an_engine_without_gpu_gets_no_layers(real_model: Path, tmp_path: Path) -> None:
    """B01: a GPU is there but the engine has no GPU backend: 0 layers, the reason named, CPU speed predicted."""
    machine = json.loads((MACHINES / "rtx4090-64g.json").read_text())
    for engine in machine["engines"]:
        engine |= {"gpu_offload": False, "backends": ["cpu"], "devices": []}
    path = tmp_path / "no-gpu-engine.json"
    path.write_text(json.dumps(machine))
    done = run("resolve", hermes(tmp_path, real_model), "--machine", path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["settings"]["n_gpu_layers"] == 0
    found = {finding["id"]: finding for finding in document["findings"]}
    assert "has no GPU backend: CUDA0" in found["MT007"]["message"]
    assert found["MT001"]["message"] == "magnitude mismatch: expected 0, got 40"
    with_gpu = json.loads(run("resolve", real_model, "--machine", MACHINES / "rtx4090-64g.json", "--json").stdout)
    assert document["predicted"]["tg"]["value"] < with_gpu["predicted"]["tg"]["value"] / 2


def test_write_keeps_comments_and_shows_the_diff(real_model: Path, tmp_path: Path) -> None:
    """Settings go into the block; everything else stays as it was; a second run changes nothing."""
    config = hermes(tmp_path, real_model, HERMES.replace("  n_gpu_layers: 40\n", ""))
    before = config.read_text()
    machine = ("--machine", MACHINES / "rtx4090-64g.json")
    assert run("resolve", config, *machine).returncode == 0
    assert config.read_text() == before
    done = run("resolve", config, *machine, "--write")
    assert done.returncode == 0, done.stderr
    assert "+  n_gpu_layers: 19" in done.stderr
    after = config.read_text()
    kept = [line for line in after.splitlines() if line in before.splitlines()]
    assert kept == before.splitlines()
    again = run("resolve", config, *machine, "--write", "--json")
    assert "nothing to change" in again.stderr
    assert config.read_text() == after
    assert "MT001" not in {finding["id"] for finding in json.loads(again.stdout)["findings"]}


def test_curve_and_target(real_model: Path) -> None:
    """The curve never slows down; a target gives the least magnitude that reaches it."""
    machine = ("--machine", MACHINES / "cpu-24g.json")
    curve = json.loads(run("resolve", real_model, *machine, "--curve", "--json").stdout)["curve"]
    turns = [point["turn_seconds"] for point in curve if point["turn_seconds"] is not None]
    assert len(turns) > 3
    assert turns == sorted(turns, reverse=True)
    wanted = curve[-1]["tg"] * 0.9
    reached = json.loads(run("resolve", real_model, *machine, "--target", f"tg>={wanted}", "--json").stdout)
    assert reached["predicted"]["tg"]["value"] >= wanted
    assert reached["magnitude"]["requested"] < 6


def test_sysroot_limits_decide(real_model: Path, tmp_path: Path) -> None:
    """A container's tree with a memory limit and a quota is planned for as it is."""
    tree = {
        "proc/meminfo": "MemTotal: 67108864 kB\nMemFree: 60000000 kB\nMemAvailable: 62914560 kB\n",
        "proc/cpuinfo": "".join(f"processor\t: {n}\nflags\t\t: fma avx avx2 f16c\n\n" for n in range(8)),
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2 << 30}\n",
        "sys/fs/cgroup/memory.current": f"{1280 << 20}\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/devices/system/cpu/online": "0-7\n",
    }
    for name, content in tree.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    done = run("resolve", real_model, "--sysroot", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    ram = next(pool for pool in document["pools"] if pool["name"] == "ram")
    assert (ram["total_bytes"], ram["available_bytes"]) == (2 << 30, 768 << 20)
    assert document["settings"]["n_threads_batch"] <= 2


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--magnitude", "4,0"], 2, "use a point: 4.0"),
        (["--magnitude", "7"], 2, "from 0.1 to 6"),
        (["--n-batch", "0"], 2, "n_batch"),
        (["--engine", "vllm"], 2, "llama_server"),
        (["--target", "speed>=3"], 2, "tg"),
        (["--machine", "rtx4090-64"], 2, "rtx4090-64g"),
        (["--nonsense"], 2, "nonsense"),
        (["--machine", "rtx4090-64g", "--sysroot", "/"], 2, "--sysroot"),
        (["--machine", "rtx4090-64g", "--write"], 2, "no config"),
    ],
)
def test_wrong_options_exit_2(real_model: Path, arguments: list[str], code: int, text: str) -> None:
    """Usage errors say what was read, where, and what to do."""
    done = run("resolve", real_model, *arguments)
    assert done.returncode == code, done.stderr
    assert text in done.stderr


def test_wrong_files_exit_3(tmp_path: Path) -> None:
    """Bad input files are named as what they are."""
    page = tmp_path / "model.gguf"
    page.write_text("<!doctype html><html></html>")
    config = tmp_path / "agent.yaml"
    config.write_text("magnitude: 2.0\nmodel: m.gguf\nmagnitude: 4.0\n")
    for what, text in [(page, "HTML"), (tmp_path / "absent.gguf", "absent.gguf"), (config, "line")]:
        done = run("resolve", what)
        assert done.returncode == 3, done.stderr
        assert text in done.stderr
        assert done.stdout == ""


def test_output_goes_to_a_file(real_model: Path, tmp_path: Path) -> None:
    """`-o FILE` takes the result; stdout stays empty."""
    target = tmp_path / "resolution.json"
    done = run("resolve", real_model, "--machine", "rtx4090-64g", "--json", "-o", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert json.loads(target.read_text())["schema_version"] == 1
    absent = tmp_path / "absent" / "resolution.json"
    done = run("resolve", real_model, "--machine", "rtx4090-64g", "-o", absent)
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr
    assert not absent.parent.exists()
