"""A projector and a draft beside the model: read, checked, planned, and given up in the right order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline.projector_files import write_projector

from magnitude_tune.engines.sessions import open_session
from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import ConfigError, EngineError, HeaderError, InputFileError, MagnitudeTuneError, UsageError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.footprint.companions import Beside, with_companions
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.cached import read_model_cached
from magnitude_tune.header.read import read_model
from magnitude_tune.pipeline.companions import beside_of
from magnitude_tune.pipeline.machine import find_machine
from magnitude_tune.pipeline.resolve import Resolved, ResolveOptions, resolve_request
from magnitude_tune.pipeline.writing import settings_to_write
from magnitude_tune.request import NO_COMPANIONS, Companions, Request, Settings
from magnitude_tune.units import GIB, MIB

MACHINES = Path(__file__).parents[1] / "machines"


def resolved(model: Path, machine: Path | str = MACHINES / "rtx4090-64g.json", **flags: str) -> Resolved:
    """A resolution for another machine, with these options."""
    options = ResolveOptions(what=str(model), flags=tuple(flags.items()), machine=str(machine), history=False)
    return resolve_request(options)


def names(found: Resolved) -> set[str]:
    """Names of the terms."""
    return {term.name for term in found.resolution.footprint.terms}


def rules(found: Resolved) -> list[str]:
    """Ids of the findings."""
    return [finding.rule.id for finding in found.resolution.findings]


@pytest.fixture
def projector(tmp_path: Path) -> Path:
    """A projector on disk."""
    return write_projector(tmp_path / "mmproj.gguf")


@pytest.fixture
def tight_machine(tmp_path: Path) -> Path:
    """A machine without accelerators whose memory holds the real model once, and not twice."""
    document: dict[str, Any] = json.loads((MACHINES / "cgroup-2g.json").read_text())
    for part in (document["memory"], *document["pools"]):
        part["total_bytes"] = GIB
        part["available_bytes"] = int(0.72 * GIB)
    path = tmp_path / "tight.json"
    path.write_text(json.dumps(document))
    return path


def test_nothing_beside_the_model_is_nothing(real_model: Path) -> None:
    """Without a wish there are no companions, no terms of theirs, and `spec_type: none` is no wish."""
    assert resolved(real_model).companions == NO_COMPANIONS
    assert not {name for name in names(resolved(real_model, spec_type="none")) if "draft" in name}


def test_a_projector_and_a_draft_are_planned_and_handed_on(real_model: Path, projector: Path) -> None:
    """Their terms are in the plan, and what is launched has no value left open."""
    found = resolved(real_model, mmproj=str(projector), model_draft=str(real_model))
    assert {"projector", "projector_compute", "draft_weights", "draft_kv_cache", "draft_compute"} <= names(found)
    assert found.companions == Companions(
        mmproj=str(projector),
        model_draft=str(real_model),
        spec_type="draft-simple",
        n_gpu_layers_draft=19,
        type_k_draft="f16",
        type_v_draft="f16",
    )
    assert sum(use.reserved_bytes for use in found.resolution.pools) == sum(
        term.reserved_bytes for term in found.resolution.footprint.terms
    )


def test_runs_with_a_draft_are_kept_apart(real_model: Path, projector: Path, tight_machine: Path) -> None:
    """An engine that drafts goes by a build of its own, so that neither history speaks for the other."""
    plain = resolved(real_model).engine
    drafting = resolved(real_model, model_draft=str(real_model)).engine
    assert plain is not None
    assert drafting is not None
    assert drafting.build == f"{plain.build}+draft-{read_model(real_model).content_hash[:8]}"
    assert resolved(real_model, mmproj=str(projector)).engine == plain
    dropped = resolved(real_model, tight_machine, model_draft=str(real_model)).engine
    assert dropped is None or "+draft" not in dropped.build


def test_the_draft_is_dropped_before_the_context_shrinks(real_model: Path, tight_machine: Path) -> None:
    """Where model and draft do not fit, the draft goes, with a finding, and the context stays as asked for."""
    asked = {"n_ctx": "8192", "allow": "smaller_context"}
    found = resolved(real_model, tight_machine, model_draft=str(real_model), **asked)
    assert found.resolution.settings.n_ctx == 8192
    assert "MT042" in rules(found)
    assert "MT015" not in rules(found)
    assert found.companions == NO_COMPANIONS
    assert "draft_weights" not in names(found)
    dropped = next(finding for finding in found.resolution.findings if finding.rule.id == "MT042")
    assert str(dropped.place) == "--model-draft"
    assert dropped.setting == "model_draft"


def test_a_draft_that_fits_stays(real_model: Path) -> None:
    """With room for both, no finding."""
    assert "MT042" not in rules(resolved(real_model, model_draft=str(real_model)))


@pytest.mark.parametrize(
    "changes", [{"image_size": None}, {"projector_type": "made_up_next_year"}], ids=["no image size", "unknown type"]
)
def test_an_unclear_projector_is_said_to_be_assumed(real_model: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """B10: a labelled reserve, neither nothing nor 10 GiB, and a finding that says so."""
    found = resolved(real_model, mmproj=str(write_projector(tmp_path / "odd.gguf", **changes)))
    compute = [term for term in found.resolution.footprint.terms if term.name == "projector_compute"]
    assert [term.certainty for term in compute] == ["estimated"]
    assert 64 * MIB <= compute[0].reserved_bytes <= GIB
    assert "fallback reserve" in compute[0].rule
    assert "MT043" in rules(found)


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        ({"mmproj": "{model}"}, HeaderError, "no projector but a file of kind model"),
        ({"mmproj": "{gone}"}, InputFileError, "there is no file at"),
        ({"model_draft": "{gone}"}, InputFileError, "there is no file at"),
        ({"model_draft": "{projector}"}, HeaderError, "not a language model"),
        ({"spec_type": "draft-mtp"}, UsageError, "this model has none"),
        ({"spec_type": "draft-simple"}, UsageError, "needs a model that drafts"),
        ({"spec_type": "draft-eagle3"}, UsageError, "cannot be planned for"),
        ({"model_draft": "{model}", "type_k_draft": "q9"}, UsageError, "type of KV cache"),
        ({"model_draft": "{model}", "n_gpu_layers_draft": "-2"}, UsageError, "must not be below -1"),
        ({"mmproj": "{projector}", "engine": "llama_cpp_python"}, UsageError, "only llama_server knows mmproj"),
        ({"model_draft": "{model}", "engine": "llama_bench"}, UsageError, "only llama_server knows model_draft"),
    ],
)
def test_what_cannot_run_is_refused(
    real_model: Path, projector: Path, flags: dict[str, str], error: type[MagnitudeTuneError], said: str
) -> None:
    """Each with what is wrong and what to do."""
    paths = {"model": real_model, "gone": projector.parent / "gone.gguf", "projector": projector}
    with pytest.raises(error, match=said) as caught:
        resolved(real_model, **{name: text.format(**paths) for name, text in flags.items()})
    assert caught.value.hint


def test_a_damaged_projector_is_refused(real_model: Path, projector: Path) -> None:
    """A truncated one is found before anything is planned with it."""
    projector.write_bytes(projector.read_bytes()[:-1000])
    with pytest.raises(HeaderError, match="bytes are missing"):
        resolved(real_model, mmproj=str(projector))


def test_a_config_names_files_beside_itself(real_model: Path, projector: Path) -> None:
    """Relative paths of a config start at its folder; a wrong way of drafting is told with its line."""
    config = projector.parent / "agent.yaml"
    config.write_text(f"model_path: {real_model}\nmmproj: mmproj.gguf\nno_mmproj_offload: true\n")
    found = resolved(config)
    assert found.companions == Companions(mmproj=str(projector), no_mmproj_offload=True)
    assert {term.device for term in found.resolution.footprint.terms if term.name == "projector"} == {"CPU"}
    config.write_text(f"model_path: {real_model}\nspec_type: draft-mtp\n")
    with pytest.raises(ConfigError, match="this model has none") as caught:
        resolved(config)
    assert caught.value.where == f"{config}:2:12"


def test_what_options_ask_for_is_written(real_model: Path, projector: Path) -> None:
    """`--write` puts companions named by options into the config, with paths that hold from there."""
    config = projector.parent / "agent.yaml"
    config.write_text(f"model_path: {real_model}\nmmproj: mmproj.gguf\n")
    found = resolved(config, model_draft=str(real_model), type_k_draft="q8_0")
    assert found.agent is not None
    written = settings_to_write(found, found.agent)
    assert {name: written[name] for name in written if name in Companions._fields} == {
        "model_draft": str(real_model),
        "type_k_draft": "q8_0",
    }


@pytest.mark.parametrize("name", ["llama_cpp_python", "llama_bench"])
def test_an_engine_that_cannot_run_them_refuses(name: Any) -> None:
    """A launch with companions is refused by every engine but llama-server, before anything starts."""
    settings = Settings(n_gpu_layers=0, n_threads=1, n_threads_batch=1, n_batch=64, n_ubatch=64, n_ctx=256)
    launch = Launch(model_path="m.gguf", settings=settings, companions=Companions(mmproj="p.gguf"))
    with pytest.raises(EngineError, match="runs nothing beside its model: mmproj"):
        open_session(EngineFacts(name=name, path="", build="1", ggml_version=None), launch)


@pytest.mark.engine
def test_a_real_server_confirms_projector_and_draft(
    real_server: EngineFacts, real_model: Path, projector: Path
) -> None:
    """Weights, caches and output of model and draft equal llama-server's lines; compute is within 5 %."""
    settings = Settings(
        n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=4096, repack=False
    )
    wanted = Companions(mmproj=str(projector), model_draft=str(real_model), type_k_draft="q8_0", type_v_draft="q8_0")
    header = read_model(real_model)
    machine = find_machine(machine=str(MACHINES / "cpu-24g.json"))
    beside = beside_of(Request(companions=wanted), header)
    assert isinstance(beside, Beside)
    base = footprint_model(header, machine, real_server)
    footprint = with_companions(base, header, machine, real_server, beside).footprint(settings)
    launch = Launch(
        model_path=str(real_model),
        settings=settings,
        companions=beside.wanted._replace(n_gpu_layers_draft=0),
    )
    session = open_session(real_server, launch)
    session.close()

    def planned(*terms: str) -> float:
        return sum(term.resident_bytes for term in footprint.terms if term.name in terms) / MIB

    def printed(kind: str) -> float:
        return sum(line.n_bytes for line in session.buffers if line.kind == kind) / MIB

    assert planned("weights", "draft_weights") == pytest.approx(printed("model"), abs=0.02)
    assert planned("kv_cache", "draft_kv_cache") == pytest.approx(printed("kv"), abs=0.03)
    assert planned("compute", "draft_compute", "projector_compute") == pytest.approx(printed("compute"), rel=0.05)
    assert read_model_cached(projector).tensor_bytes / MIB == planned("projector")
