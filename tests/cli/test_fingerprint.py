"""`magnitude-tune fingerprint` as a person runs it: a process, its output and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MACHINES = Path(__file__).parent.parent / "machines"


def run(*arguments):
    """One real run of the command, whatever it says and however it ends."""
    return subprocess.run(
        [sys.executable, "-m", "magnitude_tune", "fingerprint", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def test_help_shows_examples_and_exit_codes():
    """`--help` says what the command does, with an example."""
    done = run("--help")
    assert done.returncode == 0
    assert "fingerprint --json -o machine.json" in done.stdout
    assert "Exit codes" in done.stdout


def test_a_stored_machine_is_shown_with_sources():
    """The page names the machine and, behind each fact, its source."""
    done = run("--machine", str(MACHINES / "rtx4090-64g.json"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert "NVIDIA GeForce RTX 4090" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("Memory bandwidth   1008.0")] or [
        line for line in done.stdout.splitlines() if "1008.0 GB/s" in line
    ]
    assert line.endswith("device table")


def test_json_is_one_object_that_can_be_planned_for(tmp_path):
    """`--json -o` writes a file that `--machine` takes, and it says the same."""
    path = tmp_path / "machine.json"
    done = run("--machine", "m2-ultra-64g", "--json", "-o", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    again = run("--machine", str(path), "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == json.loads(path.read_text())
    assert next(iter(json.loads(again.stdout))) == "schema_version"


def test_a_sysroot_is_another_machine(tmp_path):
    """`--sysroot` reads the limits of the tree: field report B03's quota and B11's limit."""
    files = {
        "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 52428800 kB\n",
        "proc/cpuinfo": "model name\t: A far processor\nflags\t: avx2 fma\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/memory.max": "2147483648\n",
        "sys/fs/cgroup/memory.current": "1342177280\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    done = run("--sysroot", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["cpu"]["brand"] == "A far processor"
    assert document["cpu"]["usable_cores"] == 4
    assert document["memory"]["total_bytes"] == 2 << 30
    assert document["memory"]["available_bytes"] == 768 << 20


def test_this_machine_has_cores_and_memory():
    """Without options it is this machine; bandwidth is measured, or guessed with a note."""
    done = run("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["cpu"]["usable_cores"] >= 1
    assert 0 < document["memory"]["available_bytes"] <= document["memory"]["total_bytes"]
    source = document["cpu"]["bandwidth"]["source"]
    assert source.startswith("measured") or document["notes"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--machine", "rtx409"), 2, "rtx4090-64g"),
        (("--machine", "gone.json"), 3, "gone.json"),
        (("--sysroot", "no/such/folder"), 2, "--sysroot"),
        (("--machine", "m2-ultra-64g", "--sysroot", "."), 2, "--machine"),
        (("--no-such-option",), 2, "no-such-option"),
    ],
)
def test_bad_input_has_its_exit_code_and_no_traceback(arguments, code, said):
    """Each kind of wrong input says what, where and what to do."""
    done = run(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_damaged_machine_file_names_the_key(tmp_path):
    """Exit code 3, the file, the key and the value."""
    document = json.loads((MACHINES / "cpu-24g.json").read_text())
    document["cpu"]["usable_cores"] = "two"
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(document))
    done = run("--machine", str(path))
    assert done.returncode == 3
    assert f"{path}: cpu.usable_cores" in done.stderr
    assert "'two'" in done.stderr
