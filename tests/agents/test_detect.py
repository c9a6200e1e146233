"""Which dialect a file is in, and the raw values in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_tune.agents.detect import AgentRequest, read_agent, understood
from magnitude_tune.agents.document import parse_document
from magnitude_tune.agents.suffixes import looks_like_agent
from magnitude_tune.errors import ConfigError
from magnitude_tune.findings import Rule

FILE = Path("project/agent.yaml")
HERMES = """\
name: hermes
inference_server:
  backend: llama_cpp
  magnitude: 4.2
  n_gpu_layers: 40
  max_ctx_size: 8192
"""


def request(text: str) -> AgentRequest:
    return understood(parse_document(text, FILE))


def raws(text: str) -> dict[str, object]:
    return {name: value.raw for name, value in request(text).values.items()}


def test_hermes_block() -> None:
    """The Hermes form gives llama.cpp's names, places, and no finding."""
    found = request(HERMES)
    assert found.dialect == "hermes"
    assert raws(HERMES) == {"engine": "llama_cpp", "magnitude": 4.2, "n_gpu_layers": 40, "n_ctx": 8192}
    assert str(found.values["n_ctx"].place) == "project/agent.yaml:6:17"
    assert found.findings == ()


@pytest.mark.parametrize(
    "text",
    [
        "inference_server: {magnitude: 4.2}\n",
        "agent:\n  runtime:\n    inference_server:\n      magnitude: 4.2\n",
        "agents:\n  - inference_server:\n      magnitude: 4.2\n",
        "defaults: &d {magnitude: 4.2}\ninference_server: *d\n",
        "defaults: &d {magnitude: 4.2}\ninference_server:\n  <<: *d\n",
        "defaults: &d {magnitude: 1}\ninference_server:\n  magnitude: 4.2\n  <<: [*d]\n",
        '{"inference_server": {"magnitude": 4.2}}',
        "a: &m 4.2\ninference_server: {magnitude: *m}\n",
    ],
)
def test_hermes_block_anywhere(text: str) -> None:
    """The block is found in flow style, under other keys, through aliases and merge keys, and in JSON."""
    assert raws(text) == {"magnitude": 4.2}


def test_alias_does_not_count_twice() -> None:
    """A block that is used again through an alias is one block."""
    assert raws("a: &a\n  inference_server: {magnitude: 4.2}\nb: *a\n") == {"magnitude": 4.2}


def test_two_blocks_are_ambiguous() -> None:
    """Two blocks in one file are refused with both lines."""
    with pytest.raises(ConfigError, match=r"line 1 and on line 3") as caught:
        request("inference_server: {magnitude: 4}\nb:\n  inference_server: {magnitude: 3}\n")
    assert caught.value.where == "project/agent.yaml:3:3"


@pytest.mark.parametrize("value", ["", " 4.2", " [1]", " ~"])
def test_block_that_is_no_mapping(value: str) -> None:
    """A block without keys is refused at its place, with an example."""
    with pytest.raises(ConfigError) as caught:
        request(f"a: 1\ninference_server:{value}\n")
    assert str(caught.value.where).startswith("project/agent.yaml:2:")
    assert "magnitude" in str(caught.value.hint)


def test_plain_form() -> None:
    """The plain form takes llama.cpp's names at the top of the file and leaves the agent's own keys alone."""
    text = """\
name: my agent
tools: [search]
magnitude: 4.0
n_ctx: 4096
type_k: q8_0
workload: {n_prompt: 100, n_gen: 50}
allow: [kv_quantisation, smaller_context]
allow_overcommit: true
target: tg>=15
"""
    found = request(text)
    assert found.dialect == "plain"
    assert found.findings == ()
    values = raws(text)
    assert values["n_prompt"] == 100
    assert values["n_gen"] == 50
    assert values["target"] == "tg>=15"
    assert values["allow_overcommit"] is True
    allowed = values["allow"]
    assert isinstance(allowed, tuple)
    assert [item.raw for item in allowed] == ["kv_quantisation", "smaller_context"]
    assert str(allowed[1].place) == "project/agent.yaml:7:26"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("gpu-layers: 3", "n_gpu_layers"),
        ("ctx_size: 3", "n_ctx"),
        ("threads: 3", "n_threads"),
        ("cache-type-k: 3", "type_k"),
        ("mmap: 3", "load_mode"),
        ("parallel: 3", "n_parallel"),
    ],
)
def test_other_names_of_the_same_setting(line: str, name: str) -> None:
    """Names of llama.cpp's options are understood, with dashes or underscores."""
    assert raws(f"magnitude: 4\n{line}\n")[name] == 3


def test_one_setting_under_two_names() -> None:
    """A setting that is written under two names is refused with both lines."""
    with pytest.raises(ConfigError, match=r"n_ctx on line 2 and max_ctx_size on line 3"):
        request("magnitude: 4\nn_ctx: 1\nmax_ctx_size: 2\n")


def test_own_setting_wins_over_merged_one_of_another_name() -> None:
    """An own key wins over a merged one that names the same setting otherwise."""
    assert raws("d: &d {max_ctx_size: 1}\ninference_server: {<<: *d, n_ctx: 2}\n") == {"n_ctx": 2}


def test_unknown_key_in_our_block() -> None:
    """Each unknown key of the block is a finding with its place, and the known name close to it."""
    findings = request(HERMES + "  n_gpu_layer: 3\n  colour: blue\n").findings
    assert [finding.rule for finding in findings] == [Rule.UNKNOWN_KEY, Rule.UNKNOWN_KEY]
    assert str(findings[0].place) == "project/agent.yaml:7:3"
    assert "n_gpu_layers" in str(findings[0].fix)
    assert findings[1].fix is None


def test_unknown_key_beside_plain_settings() -> None:
    """In the plain form only what looks like a slip is reported: the file is the agent's."""
    findings = request("magnitude: 4\nname: x\nn_thread: 3\n").findings
    assert [str(finding.place) for finding in findings] == ["project/agent.yaml:3:1"]


def test_magnitude_outside_the_block() -> None:
    """A magnitude beside the block that is read is reported: nobody reads it."""
    findings = request("magnitude: 3\n" + HERMES).findings
    assert [str(finding.place) for finding in findings] == ["project/agent.yaml:1:1"]


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("model_path: a.gguf", "project/a.gguf"),
        ("model_path: name", "project/name"),
        ("model: name", "name"),
        ("model: a.gguf", "project/a.gguf"),
        ("model: ../m/a", "m/a"),
        ("model: /m/a.gguf", "/m/a.gguf"),
        ("model: https://host/a.gguf", "https://host/a.gguf"),
        ("model_path: ''", ""),
    ],
)
def test_model_is_relative_to_the_file(line: str, model: str) -> None:
    """A relative path counts from the file's folder; names and addresses stay as they are."""
    raw = raws(f"inference_server:\n  {line}\n")["model"]
    assert isinstance(raw, str)
    assert raw.replace("project/../", "") == model


def test_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde is the user's home; that of an unknown user stays as written."""
    monkeypatch.setenv("HOME", "/home/user")
    assert raws("model: ~/a.gguf\n")["model"] == "/home/user/a.gguf"
    assert raws("model: ~nobody-of-that-name/a.gguf\n")["model"] == "~nobody-of-that-name/a.gguf"


@pytest.mark.parametrize("text", ["name: agent\n", "a: {magnitude: 4}\n"])
def test_no_settings(text: str) -> None:
    """A file of another kind is refused with what to write."""
    with pytest.raises(ConfigError, match="no settings") as caught:
        request(text)
    assert "magnitude: 4.0" in str(caught.value.hint)
    assert caught.value.where == "project/agent.yaml:1:1"


def test_workload_must_be_a_mapping() -> None:
    """A workload without keys is refused; an unknown key in it is a finding; an empty one is unset."""
    with pytest.raises(ConfigError, match="workload") as caught:
        request("magnitude: 4\nworkload: 512\n")
    assert caught.value.where == "project/agent.yaml:2:11"
    assert request("magnitude: 4\nworkload: {n_gem: 3}\n").findings[0].rule is Rule.UNKNOWN_KEY
    assert raws("magnitude: 4\nworkload:\n") == {"magnitude": 4}


def test_tag_on_a_setting() -> None:
    """A tag of another program on one of our values is refused at its place."""
    with pytest.raises(ConfigError, match="secret") as caught:
        request("a: 1\nmagnitude: !secret x\n")
    assert str(caught.value.where).startswith("project/agent.yaml:2:")


def test_reading_a_named_dialect(tmp_path: Path) -> None:
    """A dialect that is named is the only one tried."""
    path = tmp_path / "agent.yaml"
    path.write_text("magnitude: 4\ninference_server: {magnitude: 3}\n")
    assert read_agent(path, "plain").values["magnitude"].raw == 4
    assert read_agent(path).values["magnitude"].raw == 3


def test_files_by_their_names() -> None:
    """YAML and JSON are configurations, whether they exist or not; a GGUF file is not."""
    assert looks_like_agent(Path("nowhere/agent.YAML"))
    assert looks_like_agent(Path("a.yml"))
    assert not looks_like_agent(Path("model.gguf"))
    assert not looks_like_agent(Path("model"))


def test_every_file_that_a_config_names_starts_at_its_folder() -> None:
    """Model, projector and draft alike; a draft's other names are the same setting."""
    text = "model_path: a.gguf\nmmproj: sub/p.gguf\ndraft_model: /abs/d.gguf\nspec_type: draft-simple\n"
    assert raws(text) == {
        "model": "project/a.gguf",
        "mmproj": "project/sub/p.gguf",
        "model_draft": "/abs/d.gguf",
        "spec_type": "draft-simple",
    }
