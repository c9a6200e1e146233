"""The one builder of llama-server's arguments: everything explicit, in the words that the build's `--help` knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import EngineError, MagnitudeTuneError
from magnitude_tune.request import Companions, Settings

__all__ = ["ServerArguments", "build_arguments", "verbosity"]

_LEAST_VALUES = {
    "n_gpu_layers": 0,
    "n_threads": 1,
    "n_threads_batch": 1,
    "n_batch": 1,
    "n_ubatch": 1,
    "n_ctx": 1,
    "n_parallel": 1,
    "cache_ram": 0,
    "ctx_checkpoints": 0,
    "n_cpu_moe": 0,
}


class ServerArguments(NamedTuple):
    """Arguments after the program's name; `left_out` says for each wish without an option why none is needed."""

    argv: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Builder:
    """Collects options and keeps to those that the build knows."""

    flags: frozenset[str]
    argv: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def option(self, names: tuple[str, ...], value: object | None = None, *, default: str | None = None) -> None:
        """Add the first of `names` that the build knows, with its value if it takes one.

        `default` says why the option is not needed where the build has none of them; without it that is an error.
        """
        name = next((name for name in names if name in self.flags), None)
        if name is not None:
            self.argv += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        elif default is not None:
            self.left_out.append(f"--{names[0]}: {default}")
        else:
            wanted = f"--{names[0]}" if value is None else f"--{names[0]} {value}"
            raise EngineError(
                f"this llama-server does not know {wanted}",
                hint="use a newer llama-server, or settings that do not need this option",
            )


def build_arguments(launch: Launch, flags: frozenset[str], *, port: int) -> ServerArguments:
    """Arguments that launch llama-server with exactly these settings, on 127.0.0.1.

    `--fit` is turned off, because it would change a plan that is already explicit. An option that the build does not
    know is left out, with the reason, where the build's only behaviour is the one wished for.

    Args:
        launch: model, settings and RPC servers.
        flags: long options of the build's `--help`, without dashes.
        port: where the server listens.

    Raises:
        EngineError: the build lacks an option that the settings need; names it.
        MagnitudeTuneError: a count that must not reach the engine, as threads of 0 or -1 (a bug of ours).
    """
    settings = launch.settings
    _check_counts(settings)
    builder = _Builder(flags)
    builder.option(("model",), launch.model_path)
    builder.option(("host",), "127.0.0.1")
    builder.option(("port",), port)
    _add_serving(builder)
    _add_placement(builder, settings, launch.rpc)
    _add_work(builder, settings)
    _add_cache(builder, settings)
    _add_weights(builder, settings)
    _add_companions(builder, launch.companions)
    return ServerArguments(tuple(builder.argv), tuple(builder.left_out))


def verbosity(flags: frozenset[str]) -> tuple[str, ...]:
    """Arguments with which the build logs its buffers and what it was compiled for.

    Builds that know `--fit` do so from verbosity 4 on; older ones always, and would take 4 for debugging output.
    """
    name = next((name for name in ("log-verbosity", "verbosity") if name in flags), None)
    return (f"--{name}", "4") if name and "fit" in flags else ()


def _check_counts(settings: Settings) -> None:
    for name, least in _LEAST_VALUES.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MagnitudeTuneError(f"{name} must be at least {least} before it reaches the engine, got {value!r}")


def _add_serving(builder: _Builder) -> None:
    builder.option(("offline",), default="this build downloads nothing for a model given by its path")
    builder.option(("no-webui", "no-ui"), default="the page it would serve takes no part in the work")
    # A warm-up makes "ready" mean ready, and shows an illegal instruction before the first request.
    builder.option(("warmup",), default="this build always warms up unless told not to")
    builder.argv += verbosity(builder.flags)


def _add_placement(builder: _Builder, settings: Settings, rpc: tuple[str, ...]) -> None:
    builder.option(("fit",), "off", default="this build does not change settings to fit")
    if rpc:
        # Before --device, which is looked up among the devices known so far.
        builder.option(("rpc",), ",".join(rpc))
    builder.option(("n-gpu-layers", "gpu-layers"), settings.n_gpu_layers)
    if settings.devices:
        builder.option(("device",), ",".join(settings.devices))
        builder.option(("split-mode",), "layer", default="this build splits by layer")
        builder.option(("main-gpu",), settings.main_gpu, default=_if(settings.main_gpu == 0, "device 0 is its default"))
    elif settings.n_gpu_layers == 0:
        builder.option(("device",), "none", default="nothing is offloaded")
    if settings.tensor_split:
        builder.option(("tensor-split",), ",".join(map(str, settings.tensor_split)))
    builder.option(
        ("n-cpu-moe",), settings.n_cpu_moe, default=_if(settings.n_cpu_moe == 0, "no experts are kept on the CPU")
    )


def _add_work(builder: _Builder, settings: Settings) -> None:
    builder.option(("threads",), settings.n_threads)
    builder.option(("threads-batch",), settings.n_threads_batch)
    builder.option(("batch-size",), settings.n_batch)
    builder.option(("ubatch-size",), settings.n_ubatch)
    builder.option(("ctx-size",), settings.n_ctx)
    builder.option(("parallel",), settings.n_parallel)
    if builder.flags & {"fit", "cache-ram"}:
        builder.option(("flash-attn",), "on" if settings.flash_attn else "off")
    elif settings.flash_attn:
        # Builds before cache-ram: a switch without a value, off by default.
        builder.option(("flash-attn",))
    else:
        builder.left_out.append("--flash-attn: off is this build's default")


def _add_cache(builder: _Builder, settings: Settings) -> None:
    builder.option(("cache-type-k",), settings.type_k, default=_if(settings.type_k == "f16", "f16 is its only type"))
    builder.option(("cache-type-v",), settings.type_v, default=_if(settings.type_v == "f16", "f16 is its only type"))
    if settings.kv_unified:
        builder.option(("kv-unified",), default=_if(settings.n_parallel == 1, "there is one slot"))
    else:
        builder.option(("no-kv-unified",), default="not unified is this build's default for a given number of slots")
    builder.option(
        ("cache-ram",), settings.cache_ram, default=_if(settings.cache_ram == 0, "this build has no prompt cache")
    )
    # Its own default is 32 a slot, outside every budget.
    builder.option(
        ("ctx-checkpoints", "swa-checkpoints"),
        settings.ctx_checkpoints,
        default=_if(settings.ctx_checkpoints == 0, "this build makes no checkpoints"),
    )


def _add_weights(builder: _Builder, settings: Settings) -> None:
    if "load-mode" in builder.flags:
        builder.option(("load-mode",), settings.load_mode)
    elif settings.load_mode == "none":
        builder.option(("no-mmap",))
    else:
        builder.left_out.append("--load-mode: mapping the file is this build's default")
    if settings.repack:
        builder.option(("repack",), default="this build repacks unless told not to")
    else:
        builder.option(("no-repack",), default=None)


def _add_companions(builder: _Builder, companions: Companions) -> None:
    if companions.mmproj is not None:
        builder.option(("mmproj",), companions.mmproj)
        if companions.no_mmproj_offload:
            builder.option(("no-mmproj-offload",))
    if not companions.drafts:
        return
    by_model = companions.model_draft is not None
    builder.option(("spec-type",), companions.spec_type, default=_if(by_model, "a named draft is used"))
    if by_model:
        builder.option(("model-draft", "spec-draft-model"), companions.model_draft)
        builder.option(("n-gpu-layers-draft", "gpu-layers-draft", "spec-draft-ngl"), companions.n_gpu_layers_draft)
    for letter, kv_type in (("k", companions.type_k_draft), ("v", companions.type_v_draft)):
        names = (f"cache-type-{letter}-draft", f"spec-draft-type-{letter}")
        builder.option(names, kv_type, default=_if(kv_type == "f16", "f16 is its default"))


def _if(condition: bool, reason: str) -> str | None:
    return reason if condition else None
