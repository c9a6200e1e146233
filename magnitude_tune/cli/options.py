"""Options that several commands share; every setting is read as text, so that one reader judges all sources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

__all__ = [
    "ENGINE_BUILD",
    "ENGINE_PATH",
    "EXPLAIN",
    "JSON",
    "MACHINE",
    "MEMORY_SETTINGS",
    "OUTPUT",
    "QUIET",
    "RPC",
    "SYSROOT",
    "VERBOSE",
    "SettingsCommand",
    "with_settings",
]

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object in base units.")]
OUTPUT = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE; - is stdout.")
]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")]
VERBOSE = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]
EXPLAIN = Annotated[bool, typer.Option("--explain", help="Show every term of the memory and every reason.")]
MACHINE = Annotated[
    str | None,
    typer.Option("--machine", metavar="FILE|NAME", help="Plan for a stored machine or a shipped profile."),
]
SYSROOT = Annotated[
    str | None, typer.Option("--sysroot", metavar="DIR", help="Read proc and sys below DIR instead of this machine's.")
]
ENGINE_PATH = Annotated[
    str | None, typer.Option("--engine-path", metavar="PATH", help="A llama-server, or the folder that holds it.")
]
RPC = Annotated[
    list[str] | None,
    typer.Option("--rpc", metavar="HOST:PORT", help="A ggml-rpc-server whose devices may be used; repeatable."),
]

ENGINE_BUILD = Annotated[
    str | None,
    typer.Option(
        "--engine-build",
        metavar="VERSION",
        help="Plan by the rules of this build: a ggml version (0.20.0), a llama.cpp build (b10434) or newest.",
    ),
]

SETTINGS: Final = {
    "magnitude": "How hard to use the machine, 0.1 to 6; 4.0 unless the config says otherwise.",
    "model": "The model file, instead of the config's.",
    "engine": "llama_cpp_python, llama_server or llama_bench; one of the first two where unset.",
    "n_ctx": "Context in tokens, over all slots; each gets n_ctx / n_parallel unless --kv-unified.",
    "n_parallel": "Slots that share the context.",
    "n_gpu_layers": "Layers on the accelerator, output layer included; all, a number, or auto where it may be chosen.",
    "n_threads": "Threads for generating.",
    "n_threads_batch": "Threads for reading the prompt.",
    "n_batch": "Tokens handed to the engine at once.",
    "n_ubatch": "Tokens computed at once.",
    "flash_attn": "on, off or auto.",
    "type_k": "Type of the K cache: f16, q8_0, q4_0 ...",
    "type_v": "Type of the V cache.",
    "load_mode": "mmap, or none: llama.cpp's --no-mmap.",
    "repack": "on or off: copies of the weights in a layout that the CPU reads faster.",
    "cache_ram": "MiB of host memory for the server's prompt cache; 0 is off.",
    "ctx_checkpoints": "Copies a slot that the server keeps of sliding windows and recurrent state.",
    "n_cpu_moe": "Blocks whose experts stay on the CPU.",
    "kv_unified": "on or off: one KV cache for all slots.",
    "tensor_split": "Proportions of the offloaded layers per device, for example 3,1.",
    "main_gpu": "Number of the main device.",
    "mmproj": "Projector for images or audio that runs beside the model.",
    "no_mmproj_offload": "on or off: keep the projector in host memory.",
    "model_draft": "Smaller model that drafts tokens.",
    "spec_type": "none, draft-simple (by --model-draft) or draft-mtp (by the model's own blocks).",
    "n_gpu_layers_draft": "Layers of the draft on the accelerators; all where the model has any there.",
    "type_k_draft": "Type of the draft's K cache; the model's own where unset.",
    "type_v_draft": "Type of the draft's V cache.",
    "target": "The least magnitude that reaches this, for example tg>=15 or ttft_seconds<=0.8.",
}

MEMORY_SETTINGS: Final = tuple(name for name in SETTINGS if name not in ("magnitude", "model", "target"))
"""Settings of an engine: those that `inspect` prices."""

_ALIASES: Final = {
    "n_ctx": ("--ctx-size", "-c"),
    "n_parallel": ("--parallel",),
    "n_gpu_layers": ("--gpu-layers",),
    "n_threads": ("--threads",),
    "n_threads_batch": ("--threads-batch",),
    "n_batch": ("--batch-size",),
    "n_ubatch": ("--ubatch-size",),
    "type_k": ("--cache-type-k",),
    "type_v": ("--cache-type-v",),
}
"""llama.cpp's own spellings, where they differ."""

_SWITCHES: Final = ("--kv-unified", "--repack", "--no-mmproj-offload")
_OPPOSITES: Final = {
    "--no-kv-unified": "--kv-unified",
    "--no-repack": "--repack",
    "--mmproj-offload": "--no-mmproj-offload",
}
_SWITCH_WORDS: Final = frozenset({"on", "off", "auto", "true", "false", "yes", "no", "1", "0", "enabled", "disabled"})


class SettingsCommand(TyperCommand):
    """A command whose switches may stand alone, as llama.cpp's do: `--repack` is on, `--no-repack` is off."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give every switch its value before the options are read."""
        return super().parse_args(ctx, list(_with_values(args)))


def _with_values(args: list[str]) -> Iterator[str]:
    for argument, following in zip(args, [*args[1:], ""], strict=False):
        if argument in _SWITCHES:
            yield argument
            if following.lower() not in _SWITCH_WORDS:
                yield "on"
        elif argument in _OPPOSITES:
            yield from (_OPPOSITES[argument], "off")
        else:
            yield argument


def with_settings(
    command: Callable[..., None],
    names: Collection[str] = tuple(SETTINGS),
    panel: str = "Settings (free where unset)",
) -> Callable[..., None]:
    """Give a command one option per setting; it receives those that were used as `flags`, by name, as text."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "flags"]
    options = [_option(name, SETTINGS[name], panel) for name in names]

    def run(**values: Any) -> None:
        given = [(name, values.pop(name)) for name in names]
        command(**values, flags=tuple((name, value) for name, value in given if value is not None))

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return run


def _option(name: str, text: str, panel: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    flags = (flag, *_ALIASES.get(name, ()))
    annotation = Annotated[str | None, typer.Option(*flags, metavar="VALUE", help=text, rich_help_panel=panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
