"""Opens a session on whichever engine was chosen, and again without repacked weights where those crash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from magnitude_tune.engines.crashes import EngineCrash
from magnitude_tune.engines.illegal import remember_illegal_instruction
from magnitude_tune.engines.values import CrashKind, EngineSession, Launch
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts

__all__ = ["Opened", "open_or_without_repack", "open_session"]

# A CPU that does not know an instruction faults with SIGILL. A hypervisor or kernel that withholds AMX state makes
# `ldtilecfg` a general protection fault instead, which arrives as SIGSEGV.
_SUSPECT: Final = (CrashKind.ILLEGAL_INSTRUCTION, CrashKind.SEGMENTATION_FAULT)


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, the launch that it runs (perhaps with repack off), and the crash that made the difference."""

    session: EngineSession
    launch: Launch
    repack_crash: EngineCrash | None = None


def open_session(engine: EngineFacts, launch: Launch) -> EngineSession:
    """Start the engine with that launch, load, warm up.

    Raises:
        EngineCrash: its process died or hung.
        EngineError: it cannot be used, or refused the model or the settings.
    """
    if engine.problem is not None:
        raise EngineError(engine.problem, where=engine.name, hint="choose another engine or repair this one")
    if launch.companions.names and engine.name != "llama_server":
        raise EngineError(
            f"{engine.name} runs nothing beside its model: {', '.join(launch.companions.names)}",
            where=engine.name,
            hint="use llama_server, or leave these out",
        )
    if engine.name == "llama_cpp_python":
        from magnitude_tune.engines import llama_cpp_python

        return llama_cpp_python.open_session(launch)
    if engine.name == "llama_bench":
        from magnitude_tune.engines import llama_bench

        return llama_bench.open_session(engine, launch)
    if engine.name == "served":
        raise EngineError("a server that runs already is not launched", where=engine.path, hint="use bench --url")
    from magnitude_tune.engines import llama_server

    return llama_server.open_session(engine, launch)


def open_or_without_repack(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
    """Open a session; where repacked weights crash at the first prompt, open it without them and remember.

    Only a crash that repacking off cures is remembered, for this machine and this build of the engine.

    Raises:
        EngineCrash, EngineError: as `open_session`.
    """
    try:
        return Opened(open_session(engine, launch), launch)
    except EngineCrash as crash:
        if not launch.settings.repack or crash.kind not in _SUSPECT:
            raise
        first = crash
    plain = replace(launch, settings=replace(launch.settings, repack=False))
    session = open_session(engine, plain)
    remember_illegal_instruction(engine, machine_hash)
    return Opened(session, plain, first)
