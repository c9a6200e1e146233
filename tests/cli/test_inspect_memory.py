"""`magnitude-tune inspect MODEL` with settings: the memory of exactly these settings, through the console's `main`."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from pipeline.projector_files import write_projector

from magnitude_tune.cli.app import main
from magnitude_tune.footprint.values import Term
from magnitude_tune.report.terms import terms_text
from magnitude_tune.units import MIB

MACHINES = Path(__file__).parents[1] / "machines"
CARD = ("--machine", MACHINES / "rtx4090-64g.json")
TERM_KEYS = {
    *("name", "device", "pool", "reserved_bytes", "resident_bytes", "certainty", "rule"),
    *("low_bytes", "high_bytes"),
}


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str | Path) -> Done:
    """The program as the console script runs it, in this process: there are many cases."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = 0
    with (
        patch.object(sys, "argv", ["magnitude-tune", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Done(code, *texts)


def run(*arguments: str | Path) -> Done:
    """`inspect`."""
    return command("inspect", *arguments)


def document(*arguments: str | Path) -> dict[str, Any]:
    """What `--json` prints."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def total(found: dict[str, Any], name: str, device: str | None = None) -> int:
    """Reserved bytes of the terms of that name."""
    return sum(
        term["reserved_bytes"] for term in found["terms"] if term["name"] == name and device in (None, term["device"])
    )


def test_without_settings_nothing_is_priced(real_model: Path) -> None:
    """A plain `inspect` has neither terms nor settings: it says what the file says."""
    assert not {"terms", "pools", "settings"} & document(real_model).keys()


def test_terms_have_their_contract_and_sum_up(real_model: Path) -> None:
    """Each term has all its keys, its interval holds its figure, and pools are the sums of their terms."""
    found = document(real_model, "--n-ctx", "4096", *CARD, "--n-gpu-layers", "10")
    assert next(iter(found)) == "schema_version"
    assert all(set(term) == TERM_KEYS for term in found["terms"])
    assert {term["certainty"] for term in found["terms"]} <= {"exact", "bounded", "estimated"}
    for term in found["terms"]:
        assert 0 <= term["low_bytes"] <= term["resident_bytes"] <= term["high_bytes"]
        if term["certainty"] == "exact":
            assert term["low_bytes"] == term["high_bytes"]
    assert {pool["name"] for pool in found["pools"]} == {"ram", "cuda0"}
    for pool in found["pools"]:
        for figure in ("reserved_bytes", "resident_bytes", "low_bytes", "high_bytes"):
            assert pool[figure] == sum(term[figure] for term in found["terms"] if term["pool"] == pool["name"])


def test_what_is_not_given_has_its_documented_default(real_model: Path) -> None:
    """8192 tokens, nothing offloaded, llama-server's batches, one slot, f16, mmap, repacking, no prompt cache."""
    settings = document(real_model, "--n-threads", "2")["settings"]
    batches = {"n_ctx": 8192, "n_gpu_layers": 0, "n_batch": 2048, "n_ubatch": 512, "n_parallel": 1}
    cache = {"kv_unified": False, "type_k": "f16", "type_v": "f16", "flash_attn": "on", "cache_ram": 0}
    weights = {"load_mode": "mmap", "repack": True, "n_cpu_moe": 0, "devices": [], "tensor_split": [], "main_gpu": 0}
    expected = {**batches, **cache, **weights, "n_threads": 2}
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("--n-ctx", "1000"), "n_ctx", 1000),
        (("--n-ctx", "0"), "n_ctx", 32768),
        (("--n-batch", "1024"), "n_batch", 1024),
        (("--n-ubatch", "64"), "n_ubatch", 64),
        (("--n-parallel", "4"), "n_parallel", 4),
        (("--kv-unified",), "kv_unified", True),
        (("--kv-unified", "off"), "kv_unified", False),
        (("--no-kv-unified",), "kv_unified", False),
        (("--type-k", "q8_0"), "type_k", "q8_0"),
        (("--type-v", "q4_0"), "type_v", "q4_0"),
        (("--flash-attn", "off"), "flash_attn", "off"),
        (("--repack",), "repack", True),
        (("--no-repack",), "repack", False),
        (("--repack", "off"), "repack", False),
        (("--load-mode", "none"), "load_mode", "none"),
        (("--cache-ram", "256"), "cache_ram", 256),
        (("--n-cpu-moe", "3"), "n_cpu_moe", 3),
        (("--main-gpu", "1"), "main_gpu", 1),
        (("--ctx-checkpoints", "2"), "ctx_checkpoints", 2),
        (("--n-threads-batch", "3"), "n_threads_batch", 3),
        (("--n-gpu-layers", "all"), "n_gpu_layers", 19),
        (("--n-gpu-layers", "-1"), "n_gpu_layers", 19),
        (("--n-gpu-layers", "99"), "n_gpu_layers", 19),
        (("--n-gpu-layers", "7"), "n_gpu_layers", 7),
        (("--devices", "CUDA0", "--n-gpu-layers", "2"), "devices", ["CUDA0"]),
        (("--devices", "none", "--n-gpu-layers", "2"), "devices", []),
    ],
)
def test_every_setting_is_taken_as_given(
    real_model: Path, arguments: tuple[str, ...], name: str, value: object
) -> None:
    """Every option that changes memory reaches the settings that are priced; a bare switch takes no model with it."""
    assert document(*arguments, real_model, *CARD)["settings"][name] == value


def test_settings_change_the_terms_they_are_about(real_model: Path) -> None:
    """Context and KV type change the cache, the micro batch the compute buffer, layers the place of the weights."""
    base = document(real_model, "--n-ctx", "8192", *CARD)
    assert total(document(real_model, "--n-ctx", "16384", *CARD), "kv_cache") > total(base, "kv_cache")
    small = document(real_model, "--n-ctx", "8192", "--type-k", "q8_0", "--type-v", "q8_0", *CARD)
    assert total(small, "kv_cache") * 32 == total(base, "kv_cache") * 17
    assert total(document(real_model, "--n-ubatch", "64", *CARD), "compute") < total(base, "compute")
    assert total(document(real_model, "--cache-ram", "256", *CARD), "prompt_cache") == 256 * MIB
    full = document(real_model, "--n-gpu-layers", "all", *CARD)
    assert total(full, "weights", "CUDA0") > 0 == total(base, "weights", "CUDA0")


def test_several_devices_share_the_layers_as_told(real_model: Path) -> None:
    """`--tensor-split` becomes layers for each device; a device without any is left out."""
    two = ("--machine", MACHINES / "dual-gpu.json")
    names = document(real_model, *two, "--n-gpu-layers", "all")["settings"]["devices"]
    assert len(names) == 2
    found = document(real_model, *two, "--n-gpu-layers", "18", "--tensor-split", "1,2")["settings"]
    assert found["tensor_split"] == [6, 12]
    alone = document(real_model, *two, "--n-gpu-layers", "18", "--tensor-split", "0,1")["settings"]
    assert (alone["devices"], alone["tensor_split"]) == ([names[1]], [])


def test_layers_without_an_accelerator_are_said_to_have_no_effect(real_model: Path) -> None:
    """On a machine without one, 99 layers are planned on the CPU, with a finding that says so."""
    found = document(real_model, "--n-gpu-layers", "99", "--machine", MACHINES / "cpu-24g.json")
    assert found["settings"]["n_gpu_layers"] == 0
    assert {term["device"] for term in found["terms"]} == {"CPU"}
    assert [finding["id"] for finding in found["findings"] if finding["setting"] == "n_gpu_layers"] == ["MT017"]


def test_an_engine_need_not_be_there(real_model: Path) -> None:
    """An engine that is not installed is planned for as a build for that machine; it needs no prompt cache to be."""
    arguments = (real_model, "--machine", MACHINES / "cpu-24g.json", "--cache-ram", "64")
    server = document(*arguments, "--engine", "llama_server")
    embedded = document(*arguments, "--engine", "llama_cpp_python")
    assert total(server, "prompt_cache") == 64 * MIB
    assert total(embedded, "prompt_cache") == 0
    assert embedded["engine"]["name"] == "llama_cpp_python"


@pytest.mark.parametrize(
    ("build", "version"),
    [("0.20.0", "0.20.0"), ("v0.25.3", "0.25.3"), ("newest", None), ("b10434", "0.20.0"), ("b11000", None)],
)
def test_a_build_can_be_named(real_model: Path, build: str, version: str | None) -> None:
    """`--engine-build` names the rules: of a version of ggml, of a build of llama.cpp, or the newest."""
    engine = document(real_model, "--engine-build", build, *CARD)["engine"]
    assert (engine["build"], engine["ggml_version"]) == (build, version)


@pytest.mark.parametrize("name", ["inspect", "resolve"])
def test_an_unknown_build_lists_the_forms(real_model: Path, name: str) -> None:
    """What is no build leaves with 2 and says what would be one."""
    done = command(name, real_model, *CARD, "--engine-build", "latest-ish")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: --engine-build: 'latest-ish' is no build of an engine",
        "hint: write a ggml version (0.20.0), a llama.cpp build (b10434) or newest",
    ]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("--n-ctx", "many"), "--n-ctx"),
        (("--n-ctx", "-5"), "--n-ctx"),
        (("--n-ctx", "99999999999"), "--n-ctx"),
        (("--n-gpu-layers", "-2"), "--n-gpu-layers"),
        (("--n-gpu-layers", "some"), "--n-gpu-layers"),
        (("--n-gpu-layers", "auto"), "--n-gpu-layers"),
        (("--n-ubatch", "0"), "--n-ubatch"),
        (("--n-parallel", "0"), "--n-parallel"),
        (("--type-k", "q9_9"), "--type-k"),
        (("--flash-attn", "perhaps"), "--flash-attn"),
        (("--load-mode", "fast"), "--load-mode"),
        (("--cache-ram", "-1"), "--cache-ram"),
        (("--tensor-split", "a,b"), "--tensor-split"),
        (("--tensor-split", "1,2,3", "--n-gpu-layers", "9"), "--tensor-split"),
        (("--devices", "CUDA7", "--n-gpu-layers", "9"), "--devices"),
        (("--engine", "vllm"), "--engine"),
        (("--rpc", "127.0.0.1:1"), "--machine"),
    ],
)
def test_wrong_values_leave_with_2(real_model: Path, arguments: tuple[str, ...], where: str) -> None:
    """What is wrong, where, and what to do; nothing on stdout."""
    done = run(real_model, *CARD, *arguments, "--json")
    lines = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert lines[0].startswith(f"error: {where}: ")
    assert lines[1].startswith("hint: ")


def test_a_damaged_model_leaves_with_3(tmp_path: Path, real_model: Path) -> None:
    """A truncated file is refused with settings as without."""
    path = tmp_path / "cut.gguf"
    with real_model.open("rb") as whole:
        path.write_bytes(whole.read(8 << 20))
    done = run(path, "--n-ctx", "512", "--json")
    assert (done.returncode, done.stdout) == (3, "")
    assert "bytes are missing" in done.stderr


def test_the_table_has_sums_by_device_and_pool(real_model: Path) -> None:
    """The page lists all settings and every term, a sum for each device, and one for everything."""
    done = run(real_model, "--n-ctx", "4096", "--n-gpu-layers", "9", *CARD)
    assert done.returncode == 0
    page = done.stdout
    terms = page[page.index("Terms\n") : page.index("\nMemory\n")]
    assert "n_ubatch         512" in page
    headed = [line for line in terms.splitlines()[1:] if not line.startswith(" ")]
    assert headed == ["CPU, pool ram", "CUDA0, pool cuda0", "all pools"]
    assert terms.count("\n  sum ") == 3
    assert max(map(len, terms.splitlines())) <= 80
    for name in ("weights", "kv_cache", "compute", "process", "device_overhead"):
        assert f" {name} " in terms


def test_resolve_explains_with_the_same_table(real_model: Path) -> None:
    """`resolve --explain` shows its terms in the same table."""
    done = command("resolve", real_model, "--explain", *CARD)
    assert done.returncode == 0, done.stderr
    head = done.stdout[done.stdout.index("Terms\n") :].splitlines()[1]
    assert head.split() == ["term", "reserved", "resident", "between", "certainty", "rule"]


def test_large_terms_keep_the_table_narrow() -> None:
    """Long names, figures of any size and a hundred rules: no line is wider than 80; sums are in the larger unit."""
    terms = [
        Term(
            name="draft_recurrent_state",
            device=device,
            pool=f"pool\n{device}",
            reserved_bytes=n_bytes,
            resident_bytes=n_bytes,
            low_bytes=n_bytes - 5,
            high_bytes=n_bytes,
            certainty="estimated",
            rule=f"rule {n_bytes} " + "of many words " * 20,
        )
        for device in ("CPU", "CUDA0")
        for n_bytes in (5, 999 * MIB, 1023 * MIB, 99 * 1024 * MIB, 380 * 1024 * MIB)
    ]
    lines = terms_text(terms).splitlines()
    assert max(map(len, lines)) <= 80
    assert "CPU, pool pool CPU" in lines
    assert lines[lines.index("all pools") + 1].split() == ["sum", "961.95", "961.95", "961.95-961.95", "GiB"]


def test_a_quantised_v_cache_without_flash_attention_is_flagged(real_model: Path) -> None:
    """Its memory is told, and that no engine would start with it."""
    found = document(real_model, "--type-v", "q8_0", "--flash-attn", "off", *CARD)
    assert [finding["id"] for finding in found["findings"] if finding["setting"] == "type_v"] == ["MT041"]


def test_what_runs_beside_the_model_is_priced(real_model: Path, tmp_path: Path) -> None:
    """A projector and a draft have their own terms, and are named beside the settings."""
    projector = write_projector(tmp_path / "mmproj.gguf")
    arguments = ("--mmproj", projector, "--model-draft", real_model, "--type-k-draft", "q8_0", "--n-gpu-layers", "all")
    found = document(real_model, *CARD, *arguments)
    assert found["companions"]["mmproj"] == str(projector)
    assert found["companions"]["spec_type"] == "draft-simple"
    assert total(found, "projector", "CUDA0") > 0
    assert total(found, "draft_weights") == total(found, "weights")
    assert 0 < total(found, "draft_kv_cache") < total(found, "kv_cache")
    on_host = document(real_model, *CARD, "--no-mmproj-offload", "--mmproj", projector, "--n-gpu-layers", "all")
    assert total(on_host, "projector", "CPU") == total(found, "projector")
    assert total(on_host, "projector_compute", "CUDA0") == 0
    assert document(real_model, *CARD, "--n-ctx", "512")["companions"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "where"),
    [
        (("--spec-type", "draft-mtp"), 2, "--spec-type"),
        (("--spec-type", "magic"), 2, "--spec-type"),
        (("--n-gpu-layers-draft", "x"), 2, "--n-gpu-layers-draft"),
        (("--mmproj", "gone.gguf"), 3, "--mmproj"),
        (("--model-draft", "gone.gguf"), 3, "--model-draft"),
        (("--mmproj", "gone.gguf", "--engine", "llama_cpp_python"), 2, "--engine"),
    ],
)
def test_wrong_companions_are_refused(real_model: Path, arguments: tuple[str, ...], code: int, where: str) -> None:
    """What is wrong with them, where, and what to do."""
    done = run(real_model, *CARD, *arguments)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert lines[0].startswith(f"error: {where}: ")
    assert lines[1].startswith("hint: ")


@pytest.mark.engine
def test_devices_over_rpc_are_priced(real_model: Path, rpc_server: tuple[str, object]) -> None:
    """`--rpc` adds a server's devices; on loopback they share this host's memory, and are a device of their own."""
    found = document(real_model, "--rpc", rpc_server[0], "--n-gpu-layers", "9", "--n-ctx", "2048")
    assert [name[:3] for name in found["settings"]["devices"]] == ["RPC"]
    assert found["engine"]["name"] == "llama_server"
    assert len(found["pools"]) == 1
    assert len(found["pools"][0]["devices"]) == 2
    device = found["settings"]["devices"][0]
    assert 0 < total(found, "weights", device) < total(found, "weights")


def test_whether_it_fits_is_said(real_model: Path) -> None:
    """Far too large a context is priced, and the pool that lacks room is named with its largest term."""
    found = document(real_model, "--n-ctx", "90000000", "--n-parallel", "4")
    assert found["fits"] is False
    assert found["n_ctx_slot"] == 22500096
    assert [pool["left_bytes"] < 0 for pool in found["pools"] if pool["name"] == "ram"] == [True]
    rules = {finding["id"]: finding["message"] for finding in found["findings"]}
    assert "kv_cache" in rules["MT046"]
    assert "trained at 32768" in rules["MT013"]
    small = document(real_model, "--n-ctx", "2048")
    assert small["fits"] is True
    ram = small["pools"][0]
    room = max(0, ram["available_bytes"] - ram["floor_bytes"])
    assert ram["left_bytes"] == room - ram["reserved_bytes"] >= 0
    assert ram["total_bytes"] >= ram["available_bytes"]
    assert {"MT046", "MT013"} & {finding["id"] for finding in small["findings"]} == set()


@pytest.mark.parametrize(
    ("options", "setting"),
    [(("--n-cpu-moe", "5"), "n_cpu_moe"), (("--n-ubatch", "4096", "--n-batch", "2048"), "n_ubatch")],
)
def test_a_setting_without_its_effect_is_told(real_model: Path, options: tuple[str, ...], setting: str) -> None:
    """Experts of a dense model, and a micro batch beyond the batch: a finding names the setting."""
    found = document(real_model, *options)
    assert setting in {finding["setting"] for finding in found["findings"] if finding["id"] == "MT017"}


def test_the_page_says_what_lacks(real_model: Path) -> None:
    """The memory section has a row for each pool that is used; the command itself succeeds."""
    done = run(real_model, *CARD, "--n-ctx", "90000000", "--n-gpu-layers", "all")
    assert done.returncode == 0
    memory = done.stdout[done.stdout.index("\nMemory\n") :].splitlines()[2:5]
    assert memory[0].split() == ["pool", "reserved", "available", "kept", "free", "total", "left"]
    assert [row.split()[0] for row in memory[1:]] == ["ram", "cuda0"]
    assert "lacks" in memory[2]
    assert "warning MT046: does not fit: cuda0 lacks" in done.stdout


@pytest.mark.parametrize(
    ("options", "n_ctx_slot"),
    [((), "5000"), (("--n-parallel", "3"), "1792"), (("--n-parallel", "3", "--kv-unified"), "5000")],
)
def test_the_context_of_a_slot_stands_beside_the_slots(
    real_model: Path, options: tuple[str, ...], n_ctx_slot: str
) -> None:
    """Slots that do not share get equal parts, which the engine rounds up to 256 tokens."""
    lines = [line.split() for line in run(real_model, *CARD, "--n-ctx", "5000", *options).stdout.splitlines()]
    assert lines[[line[:1] for line in lines].index(["n_parallel"]) + 1] == ["n_ctx_slot", n_ctx_slot]


def test_resolve_tells_the_context_of_a_slot_too(real_model: Path) -> None:
    """Of several slots in text, always in JSON."""
    arguments = (real_model, *CARD, "--n-ctx", "5120", "--n-parallel", "4", "--kv-unified", "off")
    assert json.loads(command("resolve", *arguments, "--json").stdout)["n_ctx_slot"] == 1280
    assert "n_ctx_slot       1280" in command("resolve", *arguments).stdout
    assert "n_ctx_slot" not in command("resolve", real_model, *CARD).stdout


def test_repacking_that_a_crash_switched_off_is_told(real_model: Path, tmp_path: Path) -> None:
    """An engine whose repacked weights crashed is priced without them, and the reason is said unless they are off."""
    machine = json.loads(CARD[1].read_text())
    for engine in machine["engines"]:
        engine |= {"extra_buffers": [], "extra_buffers_problem": "repacked weights crashed this build"}
    path = tmp_path / "crashed.json"
    path.write_text(json.dumps(machine))
    found = document(real_model, "--machine", path, "--repack")
    said = [finding for finding in found["findings"] if finding["setting"] == "repack"]
    assert [(finding["id"], finding["file"]) for finding in said] == [("MT017", "--repack")]
    assert "crashed this build" in said[0]["message"]
    assert total(found, "repacked") == 0
    off = document(real_model, "--machine", path, "--no-repack")
    assert not [finding for finding in off["findings"] if finding["setting"] == "repack"]


def test_a_micro_batch_beyond_the_batch_takes_no_more(real_model: Path) -> None:
    """What is not given follows the batch; what is given is cut by the engine and priced so."""
    cut = document(real_model, *CARD, "--n-batch", "256", "--n-ubatch", "1024")
    default = document(real_model, *CARD, "--n-batch", "256")
    assert default["settings"]["n_ubatch"] == 256
    assert total(cut, "compute") == total(default, "compute")
    assert not [finding for finding in default["findings"] if finding["setting"] == "n_ubatch"]


@pytest.mark.parametrize("context", ["-c", "--ctx-size"])
def test_names_of_llama_cpp_mean_the_same(real_model: Path, context: str) -> None:
    """Options may be copied from a command line of llama.cpp."""
    theirs = document(
        *(real_model, *CARD, context, "4096", "--parallel", "2", "--gpu-layers", "5", "--threads", "3"),
        *("--threads-batch", "4", "--batch-size", "256", "--ubatch-size", "128"),
        *("--cache-type-k", "q8_0", "--cache-type-v", "q5_1"),
    )
    ours = document(
        *(real_model, *CARD, "--n-ctx", "4096", "--n-parallel", "2", "--n-gpu-layers", "5", "--n-threads", "3"),
        *("--n-threads-batch", "4", "--n-batch", "256", "--n-ubatch", "128"),
        *("--type-k", "q8_0", "--type-v", "q5_1"),
    )
    assert theirs == ours
    assert ours["settings"]["n_ctx"] == 4096
    resolved = json.loads(command("resolve", real_model, *CARD, context, "2048", "--json").stdout)
    assert resolved["settings"]["n_ctx"] == 2048


def test_the_summary_of_inspect_tells_of_memory() -> None:
    """Whoever reads the list of commands learns that settings can be priced."""
    listed = " ".join(command("--help").stdout.replace("│", " ").split())
    assert "With settings, what memory these take" in listed
