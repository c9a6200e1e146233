"""The one builder of llama-server's arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnitude_tune.engines.server_arguments import ServerArguments, build_arguments
from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import EngineError, MagnitudeTuneError
from magnitude_tune.request import Companions, Settings

PLAIN = Settings(n_gpu_layers=0, n_threads=6, n_threads_batch=8, n_batch=2048, n_ubatch=512, n_ctx=8192)
OLD_WORDS = (
    "model host port n-gpu-layers threads threads-batch batch-size ubatch-size ctx-size parallel flash-attn "
    "cache-type-k cache-type-v mmap no-mmap device tensor-split split-mode main-gpu verbosity no-warmup "
    "no-repack"
)
NEW_WORDS = (
    "fit load-mode repack cache-ram kv-unified no-kv-unified n-cpu-moe no-webui warmup offline ctx-checkpoints rpc "
    "log-verbosity"
)
OLD = frozenset(OLD_WORDS.split())
NEW = OLD | frozenset(NEW_WORDS.split())


def build(settings: Settings = PLAIN, flags: frozenset[str] = NEW, rpc: tuple[str, ...] = ()) -> ServerArguments:
    return build_arguments(Launch(model_path="/m/a b.gguf", settings=settings, rpc=rpc), flags, port=18080)


def value(arguments: ServerArguments, option: str) -> str:
    return arguments.argv[arguments.argv.index(option) + 1]


def test_everything_is_explicit_for_a_new_build() -> None:
    """Each setting reaches the server under its own option, and nothing is left to fit or to defaults."""
    arguments = build()
    expected = {
        "--model": "/m/a b.gguf", "--host": "127.0.0.1", "--port": "18080", "--fit": "off", "--n-gpu-layers": "0",
        "--device": "none", "--threads": "6", "--threads-batch": "8", "--batch-size": "2048", "--ubatch-size": "512",
        "--ctx-size": "8192", "--parallel": "1", "--flash-attn": "on", "--cache-type-k": "f16", "--cache-type-v": "f16",
        "--load-mode": "mmap", "--cache-ram": "0", "--n-cpu-moe": "0", "--ctx-checkpoints": "0", "--log-verbosity": "4",
    }  # fmt: skip
    assert {option: value(arguments, option) for option in expected} == expected
    assert {"--no-repack", "--no-kv-unified", "--no-webui", "--warmup", "--offline"} <= set(arguments.argv)
    assert arguments.left_out == ()


@pytest.mark.parametrize("name", ["ctx-checkpoints", "swa-checkpoints"])
def test_checkpoints_in_the_words_of_each_build(name: str) -> None:
    """Their number is always said: the server's own default is outside every budget."""
    flags = NEW - {"ctx-checkpoints"} | {name}
    assert value(build(replace(PLAIN, ctx_checkpoints=4), flags), f"--{name}") == "4"
    assert value(build(PLAIN, flags), f"--{name}") == "0"


def test_only_options_that_the_build_knows_are_passed() -> None:
    """An old build gets its own words, and each wish left out has its reason."""
    arguments = build(replace(PLAIN, flash_attn=False), OLD)
    assert {option[2:] for option in arguments.argv if option.startswith("--")} <= OLD
    assert any(reason.startswith("--fit:") for reason in arguments.left_out)
    assert any(reason.startswith("--cache-ram:") for reason in arguments.left_out)
    assert all(": " in reason for reason in arguments.left_out)
    assert "--flash-attn" not in arguments.argv


def test_flash_attention_is_a_switch_in_old_builds() -> None:
    """A build from before the prompt cache takes no value after it."""
    argv = build(PLAIN, OLD).argv
    after = argv[argv.index("--flash-attn") + 1]
    assert after.startswith("--")


def test_loading_without_a_map_in_the_words_of_each_build() -> None:
    """--load-mode none is --no-mmap to an older build."""
    settings = replace(PLAIN, load_mode="none")
    assert value(build(settings), "--load-mode") == "none"
    assert "--no-mmap" in build(settings, OLD).argv


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (replace(PLAIN, cache_ram=256), "--cache-ram 256"),
        (replace(PLAIN, ctx_checkpoints=4), "--ctx-checkpoints 4"),
        (replace(PLAIN, n_cpu_moe=3), "--n-cpu-moe 3"),
        (replace(PLAIN, n_parallel=2, kv_unified=True), "--kv-unified"),
    ],
)
def test_a_wish_the_build_cannot_grant_is_an_error(settings: Settings, option: str) -> None:
    """An option without which the settings would not hold is never dropped in silence."""
    with pytest.raises(EngineError) as caught:
        build(settings, OLD)
    assert option in str(caught.value)


def test_no_repacking_is_never_dropped() -> None:
    """A build that cannot be told not to repack is refused rather than trusted."""
    with pytest.raises(EngineError, match="--no-repack"):
        build(PLAIN, NEW - {"no-repack"})


def test_offloading_names_devices_after_the_rpc_servers() -> None:
    """The devices are looked up when their option is read, so the servers come first."""
    settings = replace(PLAIN, n_gpu_layers=10, devices=("RPC0", "RPC1"), tensor_split=(6, 4), main_gpu=1)
    arguments = build(settings, rpc=("127.0.0.1:50052", "10.0.0.2:50052"))
    argv = arguments.argv
    assert value(arguments, "--rpc") == "127.0.0.1:50052,10.0.0.2:50052"
    assert argv.index("--rpc") < argv.index("--device")
    assert value(arguments, "--device") == "RPC0,RPC1"
    assert value(arguments, "--tensor-split") == "6,4"
    assert value(arguments, "--split-mode") == "layer"
    assert value(arguments, "--main-gpu") == "1"
    with pytest.raises(EngineError, match="--rpc"):
        build(settings, NEW - {"rpc"}, rpc=("127.0.0.1:50052",))


@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch", "n_batch", "n_ubatch", "n_ctx", "n_parallel"])
@pytest.mark.parametrize("count", [0, -1])
def test_counts_that_mean_the_engine_s_own_choice_never_reach_it(name: str, count: int) -> None:
    """Threads of 0 or -1 would take every hyperthread (field report B04)."""
    with pytest.raises(MagnitudeTuneError, match=name):
        build(replace(PLAIN, **{name: count}))  # type: ignore[arg-type]


def test_a_negative_number_of_layers_never_reaches_the_engine() -> None:
    """-1 would let it choose."""
    with pytest.raises(MagnitudeTuneError, match="n_gpu_layers"):
        build(replace(PLAIN, n_gpu_layers=-1))


BESIDE_WORDS = "mmproj no-mmproj-offload model-draft spec-type n-gpu-layers-draft cache-type-k-draft cache-type-v-draft"
RENAMED_WORDS = "spec-type spec-draft-model spec-draft-ngl spec-draft-type-k spec-draft-type-v mmproj"
BESIDE = frozenset(BESIDE_WORDS.split())
DRAFT = Companions(
    mmproj="/m/p.gguf",
    no_mmproj_offload=True,
    model_draft="/m/d.gguf",
    spec_type="draft-simple",
    n_gpu_layers_draft=7,
    type_k_draft="q8_0",
    type_v_draft="f16",
)


def beside(companions: Companions, flags: frozenset[str]) -> ServerArguments:
    launch = Launch(model_path="/m/a.gguf", settings=PLAIN, companions=companions)
    return build_arguments(launch, flags, port=1)


def test_what_runs_beside_the_model_is_explicit() -> None:
    """Projector and draft reach the server with their place and the types of the draft's cache."""
    arguments = beside(DRAFT, NEW | BESIDE)
    expected = {
        "--mmproj": "/m/p.gguf", "--model-draft": "/m/d.gguf", "--spec-type": "draft-simple",
        "--n-gpu-layers-draft": "7", "--cache-type-k-draft": "q8_0", "--cache-type-v-draft": "f16",
    }  # fmt: skip
    assert {option: value(arguments, option) for option in expected} == expected
    assert "--no-mmproj-offload" in arguments.argv


def test_nothing_beside_the_model_adds_nothing() -> None:
    """Without companions no build gets an option about them."""
    assert not {option[2:] for option in beside(Companions(), NEW | BESIDE).argv if option[:2] == "--"} & BESIDE


def test_newer_names_of_draft_options_are_used() -> None:
    """Builds that renamed them get the new names."""
    arguments = beside(DRAFT._replace(no_mmproj_offload=False), NEW | frozenset(RENAMED_WORDS.split()))
    assert value(arguments, "--spec-draft-ngl") == "7"
    assert value(arguments, "--spec-draft-type-k") == "q8_0"


@pytest.mark.parametrize(
    ("companions", "missing"),
    [
        (DRAFT, "mmproj"),
        (Companions(spec_type="draft-mtp", type_k_draft="f16", type_v_draft="f16"), "spec-type"),
        (DRAFT, "model-draft"),
        (DRAFT, "no-mmproj-offload"),
        (DRAFT, "cache-type-k-draft"),
    ],
)
def test_a_build_that_cannot_run_companions_is_refused(companions: Companions, missing: str) -> None:
    """The option that the build lacks is named."""
    with pytest.raises(EngineError, match=f"--{missing}"):
        beside(companions, (NEW | BESIDE) - {missing})
