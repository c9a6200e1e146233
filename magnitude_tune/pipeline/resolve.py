"""Header, fingerprint, history and resolver, composed once for everybody."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from magnitude_tune.agents.suffixes import looks_like_agent
from magnitude_tune.errors import InputFileError, UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.cached import read_model_cached
from magnitude_tune.header.kinds import require_runnable
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.pipeline.engine_choice import choose_engine, machine_for_engine
from magnitude_tune.pipeline.history import learn
from magnitude_tune.pipeline.layers import build_request, config_layer, environment_layer, flag_layer, user_layer
from magnitude_tune.pipeline.machine import find_machine
from magnitude_tune.request import NO_COMPANIONS, Companions, Request
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Resolution
from magnitude_tune.storage import shipped_dir
from magnitude_tune.throughput.coefficients import Coefficients, parse_coefficients
from magnitude_tune.throughput.model import speed_model

if TYPE_CHECKING:
    from magnitude_tune.agents.detect import AgentRequest
    from magnitude_tune.footprint.companions import Beside

__all__ = ["ResolveOptions", "Resolved", "read_request", "resolve_request", "shipped_coefficients"]


class ResolveOptions(NamedTuple):
    """What to resolve and where.

    Args:
        what: an agent's config file, or a model file.
        flags: settings from the command line, by llama.cpp's names, as text.
        machine: a stored machine's file or name; None for this machine.
        history: whether measurements made here count.
        engine_build: the build whose rules hold, where it is not the one found here.
        magnitudes: where to state the curve.
        busy_cores: cores that others keep busy; whoever launches at once samples them.
        measure_disk: whether to measure how fast the model is read, where that is not known yet.
    """

    what: str
    flags: tuple[tuple[str, str], ...] = ()
    machine: str | None = None
    sysroot: str | None = None
    engine_path: str | None = None
    engine_build: str | None = None
    rpc: tuple[str, ...] = ()
    history: bool = True
    magnitudes: Sequence[float] = ()
    busy_cores: float = 0.0
    measure_disk: bool = False


class Resolved(NamedTuple):
    """A resolution with everything it was made from. `agent` is None where a model was named."""

    resolution: Resolution
    request: Request
    header: ModelHeader
    machine: Fingerprint
    engine: EngineFacts | None
    rpc: tuple[str, ...]
    agent: AgentRequest | None
    companions: Companions = NO_COMPANIONS


def resolve_request(options: ResolveOptions) -> Resolved:
    """Read the request, the model and the machine, and resolve.

    Raises:
        MagnitudeTuneError: whatever of the config, the model or the machine cannot be used, or what does not fit.
    """
    agent, request = read_request(options)
    header = _model(options, agent, request)
    found = find_machine(
        machine=options.machine,
        sysroot=options.sysroot,
        engine_path=options.engine_path,
        rpc=options.rpc,
        model=Path(header.path),
        measure_disk=options.measure_disk and options.machine is None and options.sysroot is None,
    )
    wanted = wanted_engine(request, rpc=bool(options.rpc), engine_path=options.engine_path is not None)
    engine, about_engine = choose_engine(found, wanted, request.sources.get("engine"))
    machine = machine_for_engine(found, engine)
    if options.engine_build is not None:
        from magnitude_tune.pipeline.engine_build import with_build

        engine = with_build(engine, options.engine_build, machine.cpu)
    beside = _beside(request, header)
    running = engine if beside is None or engine is None else beside.named(engine)
    with_history = options.history and options.sysroot is None
    coefficients = shipped_coefficients()
    speed = speed_model(header, machine, engine, coefficients, n_prompt=request.workload.n_prompt)
    about_history: tuple[Finding, ...] = ()
    if with_history:
        about_history = learn(speed, header, machine, running, workload=request.workload, coefficients=coefficients)
    subject = Subject(
        header=header,
        machine=machine,
        engine=engine,
        footprint=footprint_model(header, machine, engine),
        speed=speed,
    )
    known = (*found.notes, *about_engine, *_about_model(header), *_about_environment(), *about_history)
    resolution, companions = _resolution(options, request, subject, known, beside)
    return Resolved(
        resolution=resolution,
        request=request,
        header=header,
        machine=machine,
        engine=running if companions.drafts else engine,
        rpc=options.rpc,
        agent=agent,
        companions=companions,
    )


def _beside(request: Request, header: ModelHeader) -> Beside | None:
    """What the request names beside the model."""
    if not request.companions.names:
        return None
    # Imported here: few requests have anything beside the model.
    from magnitude_tune.pipeline.companions import beside_of

    return beside_of(request, header)


def _resolution(
    options: ResolveOptions, request: Request, subject: Subject, known: tuple[Finding, ...], beside: Beside | None
) -> tuple[Resolution, Companions]:
    def one(subject: Subject, request: Request, more: tuple[Finding, ...]) -> Resolution:
        return resolve(
            subject,
            request,
            known=(*known, *more),
            magnitudes=options.magnitudes,
            busy_cores=options.busy_cores,
        )

    if beside is None:
        return one(subject, request, ()), NO_COMPANIONS
    from magnitude_tune.pipeline.companions import resolve_together

    return resolve_together(beside, subject, request, one)


def read_request(options: ResolveOptions) -> tuple[AgentRequest | None, Request]:
    """The request from all layers, defaults < user file < config < environment < flags."""
    path = Path(options.what)
    agent = None
    if looks_like_agent(path):
        # Imported here: a model named on the command line needs no reader of configurations.
        from magnitude_tune.agents.detect import read_agent

        agent = read_agent(path)
    own = (config_layer(agent),) if agent is not None else ()
    return agent, build_request((*user_layer(), *own, environment_layer(), flag_layer(dict(options.flags))))


def _model(options: ResolveOptions, agent: AgentRequest | None, request: Request) -> ModelHeader:
    path = request.model if agent is not None else options.what
    if path is None:
        raise InputFileError("no model is named", where=options.what, hint="add model_path, or use --model FILE")
    if not os.path.lexists(path):
        place = request.sources.get("model") if agent is not None else None
        raise InputFileError(
            f"there is no model at {path}",
            where=str(place) if place else None,
            hint="check the path; in a config, a relative path starts at the config's folder",
        )
    header = read_model_cached(path)
    require_runnable(header)
    return header


def wanted_engine(request: Request, *, rpc: bool, engine_path: bool) -> str | None:
    """RPC devices, an engine's path and companions are llama-server's: the embedded engine has none of them.

    Raises:
        UsageError: the request names another engine.
    """
    beside = request.companions.names
    if engine_path and request.engine == "llama_bench" and not rpc and not beside:
        return request.engine
    if not (rpc or engine_path or beside):
        return request.engine
    if request.engine not in (None, "llama_server"):
        what = " and ".join(beside) or "--rpc and --engine-path"
        raise UsageError(
            f"only llama_server knows {what}, and the request names {request.engine}",
            where=str(request.sources.get("engine", "--engine")),
            hint="leave the engine unset",
        )
    return "llama_server"


def shipped_coefficients() -> Coefficients:
    """The coefficients that this version ships."""
    path = shipped_dir("models") / "throughput.json"
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"the shipped coefficients cannot be read: {error}", where=str(path), hint="install the package again"
        ) from error
    return parse_coefficients(document, str(path))


def _about_model(header: ModelHeader) -> tuple[Finding, ...]:
    findings = [
        Finding(Rule.UNKNOWN_TENSOR_TYPE, f"tensor type {name} is unknown: the engine may not load the model")
        for name in header.unknown_types
    ]
    if header.causal and not header.has_chat_template:
        findings.append(
            Finding(
                Rule.NO_CHAT_TEMPLATE,
                "the model carries no chat template: a server answers chats with a template of its own choice",
                fix="name one (llama-server: --chat-template), or send the agent's prompts as plain text",
            )
        )
    if header.causal and not header.has_end_token:
        findings.append(
            Finding(
                Rule.NO_END_TOKEN,
                "the model names no end token: answers may not stop",
                fix="set a stop sequence in the agent",
            )
        )
    return tuple(findings)


def _about_environment() -> tuple[Finding, ...]:
    """llama.cpp reads its options from variables too; a plan would not be what runs."""
    return tuple(
        Finding(
            Rule.INHERITED_VARIABLE_DROPPED,
            f"{name} is not passed on to the engine: the plan decides",
            fix=f"unset {name}, or ask for its value with an option",
        )
        for name in sorted(os.environ)
        if name.startswith("LLAMA_ARG_")
    )
