"""Layers of settings, and one request of them: profile < user file < config < environment < flags.

Below them all are the defaults of `Request`. Each setting keeps the place it came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.pipeline.reading import (
    Reading,
    Unset,
    read_concessions,
    read_context,
    read_count,
    read_engine,
    read_kv_type,
    read_layers,
    read_load_mode,
    read_magnitude,
    read_model,
    read_slots,
    read_spec_type,
    read_switch,
    read_target,
    read_tensor_split,
    read_threads,
    written,
)
from magnitude_tune.request import Companions, Given, Pin, Request, Workload
from magnitude_tune.storage import config_dir

if TYPE_CHECKING:
    from magnitude_tune.agents.detect import AgentRequest

__all__ = [
    "PIN_NAMES",
    "Layer",
    "build_request",
    "config_layer",
    "environment_layer",
    "flag_layer",
    "user_file",
    "user_layer",
]

_Reader = Callable[[str, Given], Reading[Any]]

_PINS: Final[Mapping[str, _Reader]] = {
    "n_gpu_layers": read_layers,
    "n_threads": read_threads,
    "n_threads_batch": read_threads,
    "n_batch": partial(read_count, least=1),
    "n_ubatch": partial(read_count, least=1),
    "flash_attn": read_switch,
    "type_k": read_kv_type,
    "type_v": read_kv_type,
    "load_mode": read_load_mode,
    "repack": read_switch,
    "cache_ram": read_count,
    "ctx_checkpoints": read_count,
    "n_cpu_moe": read_count,
    "tensor_split": read_tensor_split,
    "main_gpu": read_count,
    "kv_unified": read_switch,
}
_REQUESTS: Final[Mapping[str, _Reader]] = {
    "magnitude": read_magnitude,
    "model": read_model,
    "engine": read_engine,
    "n_ctx": read_context,
    "n_parallel": read_slots,
    "n_prompt": partial(read_count, least=1),
    "n_gen": partial(read_count, least=1),
    "allow": read_concessions,
    "allow_overcommit": read_switch,
    "target": read_target,
    "mmproj": read_model,
    "no_mmproj_offload": read_switch,
    "model_draft": read_model,
    "spec_type": read_spec_type,
    "n_gpu_layers_draft": read_layers,
    "type_k_draft": read_kv_type,
    "type_v_draft": read_kv_type,
}
PIN_NAMES: Final = tuple(_PINS)
"""Settings that, written down, are kept as written."""

_OTHER_VARIABLES: Final = ("MAGNITUDE_TUNE_HOME", "MAGNITUDE_TUNE_TRACEBACK")
_VARIABLE_PREFIX: Final = "MAGNITUDE_TUNE_"
_BACKEND_VARIABLE: Final = "MAGNITUDE_BACKEND"


class Layer(NamedTuple):
    """Raw values of one source, by our names; `findings` are what reading the source had to say."""

    source: str
    values: Mapping[str, Given]
    findings: tuple[Finding, ...] = ()


def user_file() -> Path:
    """The user's own settings for every project, in any form; `MAGNITUDE_TUNE_HOME` moves it."""
    return config_dir() / "agent.yaml"


def user_layer() -> tuple[Layer, ...]:
    """The user's file, where there is one.

    Raises:
        ConfigError: the file is there and cannot be used.
    """
    path = user_file()
    if not os.path.isfile(path):  # noqa: PTH113 - too long a name is no file, and no error
        return ()
    from magnitude_tune.agents.detect import read_agent

    request = read_agent(path)
    return (Layer("user file", request.values, request.findings),)


def config_layer(request: AgentRequest) -> Layer:
    """What an agent's configuration asks for."""
    return Layer("config", request.values, request.findings)


def environment_layer(environment: Mapping[str, str] | None = None) -> Layer:
    """`MAGNITUDE_TUNE_N_CTX` and the like, and `MAGNITUDE_BACKEND` for the engine; an empty one is unset."""
    environment = os.environ if environment is None else environment
    values: dict[str, Given] = {}
    names = {_VARIABLE_PREFIX + name.upper(): name for name in (*_REQUESTS, *_PINS)}
    for variable, name in ({_BACKEND_VARIABLE: "engine"} | names).items():
        if text := environment.get(variable, "").strip():
            values[name] = Given(text, Place(variable))
    return Layer("environment", values, tuple(_unknown(environment, names)))


def _unknown(environment: Mapping[str, str], known: Iterable[str]) -> Iterator[Finding]:
    names = {*known, *_OTHER_VARIABLES}
    for variable in sorted(environment):
        if variable.startswith(_VARIABLE_PREFIX) and variable not in names:
            from difflib import get_close_matches

            close = get_close_matches(variable, names, n=1)
            hint = f"did you mean {close[0]}?" if close else "remove it"
            yield Finding(Rule.UNKNOWN_KEY, f"{variable} is not a variable of ours", place=Place(variable), fix=hint)


def flag_layer(flags: Mapping[str, object]) -> Layer:
    """Options of the command line by our names (`n_ctx` for `--n-ctx`); None is an option that was not given."""
    values = {name: Given(raw, Place(f"--{name.replace('_', '-')}")) for name, raw in flags.items() if raw is not None}
    return Layer("flags", values)


def build_request(layers: Sequence[Layer]) -> Request:
    """One request of all layers, lowest first: each setting from the highest layer that says anything about it.

    A setting said to be free (`auto`, 0 threads) hides what lower layers say; an empty one does not.

    Raises:
        ConfigError: a wrong value in a file, with file, line and column.
        UsageError: a wrong value in an option or a variable.
    """
    findings = [finding for layer in layers for finding in layer.findings]
    sources: dict[str, Place] = {}
    values: dict[str, Any] = {}
    pins: list[Pin] = []
    for name, reader in (*_REQUESTS.items(), *_PINS.items()):
        found = _highest(name, reader, layers, findings)
        if found is None:
            continue
        value, given = found
        sources[name] = given.place
        if name in _PINS:
            pins.append(Pin(name, value, written(given), given.place))
        else:
            values[name] = value
    return _request(values, tuple(pins), sources, tuple(findings))


def _highest(name: str, reader: _Reader, layers: Sequence[Layer], findings: list[Finding]) -> tuple[Any, Given] | None:
    """The value of the highest layer that has one; what reading it had to say is added to `findings`."""
    for layer in reversed(layers):
        given = layer.values.get(name)
        if given is None:
            continue
        reading = reader(name, given)
        findings.extend(reading.findings)
        if reading.value is Unset.FREE:
            return None
        if reading.value is not Unset.ABSENT:
            return reading.value, given
    return None


def _request(
    values: dict[str, Any], pins: tuple[Pin, ...], sources: Mapping[str, Place], findings: tuple[Finding, ...]
) -> Request:
    default = Workload()
    workload = Workload(values.pop("n_prompt", default.n_prompt), values.pop("n_gen", default.n_gen))
    concessions = values.pop("allow", ())
    companions = Companions(**{name: values.pop(name) for name in Companions._fields if name in values})
    return Request(
        **values,
        workload=workload,
        concessions=concessions,
        companions=companions,
        pins=pins,
        sources=sources,
        findings=findings,
    )
