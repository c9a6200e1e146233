"""Which layer's word counts, and where each setting came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_tune.agents.detect import understood
from magnitude_tune.agents.document import parse_document
from magnitude_tune.errors import ConfigError, UsageError
from magnitude_tune.findings import Place, Rule
from magnitude_tune.pipeline.layers import (
    PIN_NAMES,
    Layer,
    build_request,
    config_layer,
    environment_layer,
    flag_layer,
    user_file,
    user_layer,
)
from magnitude_tune.request import Given, Request, Settings, Workload


def config(text: str) -> Layer:
    return config_layer(understood(parse_document(text, Path("agent.yaml"))))


def layer(source: str, **values: object) -> Layer:
    return Layer(source, {name: Given(raw, Place(source)) for name, raw in values.items()})


def test_nothing_is_the_default_request() -> None:
    """Without layers the request is the default one."""
    assert build_request([]) == Request()
    assert build_request([environment_layer({}), flag_layer({})]) == Request()


def test_precedence() -> None:
    """Each layer hides the ones below it, and each setting knows where it came from."""
    names = ("n_ctx", "n_batch", "n_ubatch", "n_threads", "magnitude")
    layers = [
        layer("profile", **dict.fromkeys(names, 1)),
        layer("user file", **dict.fromkeys(names[1:], 2)),
        layer("config", **dict.fromkeys(names[2:], 3)),
        layer("environment", **dict.fromkeys(names[3:], 4)),
        layer("flags", magnitude=5),
    ]
    request = build_request(layers)
    assert request.n_ctx == 1
    assert [(pin.name, pin.value, str(pin.place)) for pin in request.pins] == [
        ("n_threads", 4, "environment"),
        ("n_batch", 2, "user file"),
        ("n_ubatch", 3, "config"),
    ]
    assert request.magnitude == 5.0
    assert {name: str(place) for name, place in request.sources.items()} == {
        "n_ctx": "profile",
        "n_batch": "user file",
        "n_ubatch": "config",
        "n_threads": "environment",
        "magnitude": "flags",
    }


def test_free_hides_and_empty_does_not() -> None:
    """`auto` above a number makes the choice free; an empty or null value leaves the number below."""
    below = layer("user file", n_gpu_layers=10, n_ctx=2048)
    assert build_request([below, config("n_gpu_layers: auto\n")]).pin("n_gpu_layers") is None
    assert build_request([below, config("n_ctx: 0\n")]).n_ctx is None
    for line in ("n_gpu_layers: ~\n", "n_gpu_layers:\n"):
        pin = build_request([below, config(line)]).pin("n_gpu_layers")
        assert pin is not None
        assert pin.value == 10


def test_hidden_mistake_is_not_an_error() -> None:
    """Only the value that counts is judged."""
    assert build_request([config("magnitude: high\n"), flag_layer({"magnitude": "4.2"})]).magnitude == 4.2


def test_issue_block_asks_without_findings() -> None:
    """The Hermes block of the documentation reads without a finding, its engine free."""
    request = build_request(
        [config("inference_server: {backend: llama_cpp, magnitude: 4.2, n_gpu_layers: 40, max_ctx_size: 8192}\n")]
    )
    assert request.findings == ()
    assert request.magnitude == 4.2
    assert request.n_ctx == 8192
    assert request.engine is None
    assert [(pin.name, pin.value, pin.written) for pin in request.pins] == [("n_gpu_layers", 40, "40")]
    assert request.pins[0].place == Place("agent.yaml", 1, 70)


def test_workload_is_merged_by_key() -> None:
    """One half of the workload may come from another layer than the other."""
    layers = [config("magnitude: 4\nworkload: {n_prompt: 100, n_gen: 50}\n"), flag_layer({"n_gen": "7"})]
    assert build_request(layers).workload == Workload(100, 7)
    with pytest.raises(ConfigError, match=r"agent.yaml:2:22: n_prompt"):
        build_request([config("magnitude: 4\nworkload: {n_prompt: 0}\n")])


def test_everything_else() -> None:
    """Concessions, overcommit, target and pins all arrive in the request."""
    text = "allow: [fewer_slots]\nallow_overcommit: true\ntarget: tg>=15\nkv_unified: on\nmodel_path: a.gguf\n"
    text += "parallel: 2\n"
    request = build_request([config(text)])
    assert request.concessions == ("fewer_slots",)
    assert request.allow_overcommit is True
    assert request.target is not None
    assert request.target.bound == 15.0
    assert request.pin("kv_unified") is not None
    assert request.model == "a.gguf"
    assert request.n_parallel == 2


def test_pins_are_settings() -> None:
    """Every name that can be pinned is a setting of the engine."""
    assert set(PIN_NAMES) <= set(Settings.__slots__)


def test_environment() -> None:
    """Variables are read by name, empty ones are unset, others are not ours."""
    found = environment_layer(
        {
            "MAGNITUDE_TUNE_N_CTX": "4096",
            "MAGNITUDE_TUNE_MAGNITUDE": "",
            "MAGNITUDE_TUNE_N_THREADS": "  ",
            "MAGNITUDE_BACKEND": "llama-server",
            "MAGNITUDE_TUNE_HOME": "/somewhere",
            "MAGNITUDE_LEVEL": "3.0",
        }
    )
    assert {name: given.raw for name, given in found.values.items()} == {"n_ctx": "4096", "engine": "llama-server"}
    request = build_request([found])
    assert request.n_ctx == 4096
    assert request.engine == "llama_server"
    assert request.sources["n_ctx"] == Place("MAGNITUDE_TUNE_N_CTX")
    assert request.findings == ()
    with pytest.raises(UsageError, match="MAGNITUDE_TUNE_N_CTX: n_ctx must"):
        build_request([environment_layer({"MAGNITUDE_TUNE_N_CTX": "many"})])


def test_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the process's own environment is read."""
    monkeypatch.setenv("MAGNITUDE_TUNE_MAGNITUDE", "3.5")
    assert build_request([environment_layer()]).magnitude == 3.5


def test_own_engine_variable_wins() -> None:
    """`MAGNITUDE_TUNE_ENGINE` is ours, and wins over the shared `MAGNITUDE_BACKEND`."""
    found = environment_layer({"MAGNITUDE_BACKEND": "llama_cpp", "MAGNITUDE_TUNE_ENGINE": "llama_server"})
    assert build_request([found]).engine == "llama_server"


def test_user_file(own_home: Path) -> None:
    """The user's own file is read in the plain form where there is one, with its places."""
    assert user_layer() == ()
    path = user_file()
    assert own_home in path.parents
    path.parent.mkdir(parents=True)
    path.write_text("magnitude: '3.5'\nn_thread: 2\n")
    request = build_request([*user_layer(), config("n_ctx: 1024\n")])
    assert request.magnitude == 3.5
    assert request.sources["magnitude"] == Place(str(path), 1, 12)
    assert {finding.rule for finding in request.findings} == {Rule.UNKNOWN_KEY, Rule.MAGNITUDE_IS_TEXT}
    path.write_text("magnitude: [\n")
    with pytest.raises(ConfigError, match=r"agent.yaml:2:1"):
        user_layer()


def test_flags_name_their_option() -> None:
    """An error names the option as it is typed; options that were not given don't count."""
    assert flag_layer({"n_ctx": None}).values == {}
    with pytest.raises(UsageError) as caught:
        build_request([flag_layer({"n_gpu_layers": "-7"})])
    assert caught.value.where == "--n-gpu-layers"


def test_a_misspelt_variable_is_said() -> None:
    """A variable with our prefix that nobody reads is a finding that names the nearest one."""
    layer = environment_layer({"MAGNITUDE_TUNE_N_CTXX": "2048", "MAGNITUDE_TUNE_HOME": "/h", "OTHER": "1"})
    assert layer.values == {}
    (finding,) = layer.findings
    assert finding.fix == "did you mean MAGNITUDE_TUNE_N_CTX?"
