"""The one builder of llama-bench's arguments: one configuration, one test, in the words that the build's help knows."""

from __future__ import annotations

import re
from typing import Final

from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import EngineError
from magnitude_tune.request import Settings

__all__ = ["build_arguments", "parse_help"]

_NAMES = re.compile(r"-{1,2}([A-Za-z][\w-]*)", re.ASCII)
_CHOICES = re.compile(r"<([\w+]+(?:\|[\w+]+)+)>", re.ASCII)
_NEWER: Final = "use a newer llama-bench, or llama_server"


def parse_help(text: str) -> frozenset[str]:
    """Options of a `--help`, without dashes, and the words that each takes: `flash-attn`, `flash-attn=on`.

    The names stand first on their line, two spaces in, and end where two spaces or the value's bracket begin.
    """
    flags: set[str] = set()
    for line in text.splitlines():
        if not line.startswith("  -"):
            continue
        column = line.strip().split("  ")[0]
        names = _NAMES.findall(column.split("<")[0])
        words = choices[1].split("|") if (choices := _CHOICES.search(column)) else []
        flags.update(names)
        flags.update(f"{name}={word}" for name in names for word in words)
    return frozenset(flags)


def build_arguments(launch: Launch, flags: frozenset[str], *, n_prompt: int, n_gen: int, depth: int) -> tuple[str, ...]:
    """Arguments for one repetition of one test, its row on stdout and the engine's log on stderr.

    llama-bench has one number of threads: `n_threads_batch` for a prompt, `n_threads` for generation. It has one
    sequence, no prompt cache, and a context as long as the test: those settings have no option here.

    Args:
        flags: what `parse_help` found in this build's help.

    Raises:
        EngineError: the build lacks an option that the settings need, or cannot take the model's path.
    """
    if "," in launch.model_path:
        raise EngineError(
            "llama-bench takes a comma for the end of a file's name",
            where=launch.model_path,
            hint="name the model by a path without a comma",
        )
    settings = launch.settings
    argv = ["-m", launch.model_path, "-p", str(n_prompt), "-n", str(n_gen)]
    argv += ["-r", "1", "-o", "jsonl", "-v"]
    if "offline" in flags:
        argv.append("--offline")
    if depth:
        argv += _needed("n-depth", str(depth), flags)
    argv += ["-t", str(settings.n_threads if n_gen else settings.n_threads_batch)]
    argv += ["-b", str(settings.n_batch), "-ub", str(settings.n_ubatch)]
    argv += ["-ctk", settings.type_k, "-ctv", settings.type_v]
    argv += _switch("flash-attn", settings.flash_attn, flags)
    return (*argv, *_weights(settings, flags), *_placement(settings, flags))


def _weights(settings: Settings, flags: frozenset[str]) -> list[str]:
    if "load-mode" in flags:
        argv = ["--load-mode", settings.load_mode]
    else:
        argv = _switch("mmap", settings.load_mode == "mmap", flags, default=True)
    return argv + _switch("repack", settings.repack, flags, default=True)


def _placement(settings: Settings, flags: frozenset[str]) -> list[str]:
    argv = ["-ngl", str(settings.n_gpu_layers)]
    if settings.devices:
        argv += _needed("device", "/".join(settings.devices), flags)
        argv += ["-sm", "layer", "-mg", str(settings.main_gpu)]
    elif settings.n_gpu_layers == 0 and "device" in flags:
        argv += ["--device", "none"]
    if settings.tensor_split:
        argv += ["-ts", "/".join(map(str, settings.tensor_split))]
    if settings.n_cpu_moe:
        argv += _needed("n-cpu-moe", str(settings.n_cpu_moe), flags)
    return argv


def _needed(name: str, value: str, flags: frozenset[str]) -> list[str]:
    if name not in flags:
        raise EngineError(f"this llama-bench does not know --{name} {value}", hint=_NEWER)
    return [f"--{name}", value]


def _switch(name: str, on: bool, flags: frozenset[str], *, default: bool | None = None) -> list[str]:
    """`--name on|off` or `1|0`, as the build spells it; nothing where it lacks the option and does this anyway."""
    if name not in flags and on is default:
        return []
    words = ("off", "on") if f"{name}=on" in flags else ("0", "1")
    return _needed(name, words[on], flags)
