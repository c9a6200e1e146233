"""`magnitude-tune resolve`: settings for a model on this machine, with reasons and a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude_tune.cli.options import (
    ENGINE_BUILD,
    ENGINE_PATH,
    EXPLAIN,
    JSON,
    MACHINE,
    OUTPUT,
    QUIET,
    RPC,
    SYSROOT,
    SettingsCommand,
    with_settings,
)

if TYPE_CHECKING:
    from magnitude_tune.pipeline.resolve import Resolved

EPILOG = """Examples:

magnitude-tune resolve agent.yaml

magnitude-tune resolve model.gguf --magnitude 4.0 --n-ctx 8192 --json

Exit codes: 0 ok (mismatches included), 2 usage, 3 bad config or model file, 4 does not fit."""

WHAT = Annotated[str, typer.Argument(metavar="AGENT.YAML|MODEL", help="An agent's config, or a GGUF file.")]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=EPILOG, cls=SettingsCommand)(with_settings(resolve))


def resolve(
    what: WHAT,
    *,
    json_output: JSON = False,
    output: OUTPUT = None,
    explain: EXPLAIN = False,
    curve: Annotated[bool, typer.Option("--curve", help="Show the choice at every magnitude.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the settings into the config; shows the diff.")] = False,
    no_history: Annotated[bool, typer.Option("--no-history", help="Ignore what was measured here.")] = False,
    machine: MACHINE = None,
    sysroot: SYSROOT = None,
    engine_path: ENGINE_PATH = None,
    engine_build: ENGINE_BUILD = None,
    rpc: RPC = None,
    quiet: QUIET = False,
    flags: tuple[tuple[str, str], ...] = (),
) -> None:
    """Choose the fastest settings that the magnitude allows, predict memory and speed, and say why."""
    from magnitude_tune.agents.suffixes import looks_like_agent
    from magnitude_tune.cli.console import emit, emit_json, narrate
    from magnitude_tune.errors import UsageError
    from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request
    from magnitude_tune.resolver.curve import CURVE

    if write and not looks_like_agent(Path(what)):
        raise UsageError("there is no config to write to", where="--write", hint="name an agent.yaml, not a model")
    options = ResolveOptions(
        what=what,
        flags=flags,
        machine=machine,
        sysroot=sysroot,
        engine_path=engine_path,
        engine_build=engine_build,
        rpc=tuple(rpc or ()),
        history=not no_history,
        magnitudes=CURVE if curve else (),
    )
    resolved = resolve_request(options)
    if not quiet:
        for line in resolved.resolution.log_lines:
            narrate(line)
    if json_output:
        from magnitude_tune.report.resolution_json import resolution_document

        emit_json(resolution_document(resolved), output)
    else:
        from magnitude_tune.report.resolution_text import resolution_text

        emit(resolution_text(resolved, explain=explain), output)
    if write:
        write_settings(resolved, quiet=quiet)


def write_settings(resolved: Resolved, *, quiet: bool) -> None:
    """Write the resolved settings into the agent's config; the diff is shown first."""
    from magnitude_tune.agents.writing import proposed_text, unified_diff, write
    from magnitude_tune.cli.console import narrate
    from magnitude_tune.pipeline.writing import settings_to_write

    agent = resolved.agent
    if agent is None:
        return
    text = proposed_text(agent.document, settings_to_write(resolved, agent), agent.dialect)
    difference = unified_diff(agent.path, agent.document.text, text)
    if not difference:
        if not quiet:
            narrate(f"{agent.path}: nothing to change")
        return
    if not quiet:
        narrate(difference.rstrip("\n"))
    write(agent.path, text, agent.document.text)
    if not quiet:
        narrate(f"wrote {agent.path}; these values are pinned now: remove them to let the magnitude decide again")
