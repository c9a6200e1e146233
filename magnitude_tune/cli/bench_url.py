"""`magnitude-tune bench --url`: measure a server that somebody else runs, as it stands."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from magnitude_tune.cli.bench_ending import interruptible, keep_and_show, leave

if TYPE_CHECKING:
    from magnitude_tune.bench.served import ServedResult
    from magnitude_tune.engines.served import ServedSession
    from magnitude_tune.findings import Finding
    from magnitude_tune.fingerprint.values import Fingerprint
    from magnitude_tune.pipeline.resolve import Resolved

__all__ = ["UrlOptions", "bench_url"]

_KEY_VARIABLE = "OPENAI_API_KEY"


class UrlOptions(NamedTuple):
    """What to measure and how to show it.

    `what` names a config or model whose prediction is shown beside. `launching` holds options that only a launch can
    follow, by name: each must be unset.
    """

    url: str
    what: str | None
    flags: tuple[tuple[str, str], ...]
    launching: Mapping[str, object]
    budget_seconds: float
    json_output: bool = False
    output: str | None = None
    quiet: bool = False
    verbose: bool = False


def bench_url(options: UrlOptions) -> None:
    """Measure, show the result, keep it; `--model` names the model on that server.

    Raises:
        UsageError: the URL, a key or the model's name is wrong or missing; a setting is given that nobody can apply.
        EngineError: the server does not answer, or not usably; after turns that went well, these are shown first.
        MagnitudeTuneError: what resolving the config or model beside the URL has to say.
    """
    gc.enable()
    with interruptible():
        result = _measure_and_show(options)
    leave(result.ending)


def _measure_and_show(options: UrlOptions) -> ServedResult:
    from magnitude_tune.bench.served import is_local, measure_served
    from magnitude_tune.cli.bench_progress import progress_for
    from magnitude_tune.engines.served import connect
    from magnitude_tune.request import REFERENCE_TURN

    model = dict(options.flags).get("model")
    _check_flags(options)
    session = connect(options.url, model=model, key=os.environ.get(_KEY_VARIABLE, "").strip() or None)
    _announce(session, options)
    resolved = _resolved(options)
    workload = resolved.resolution.workload if resolved else REFERENCE_TURN
    machine = _machine(resolved) if is_local(session.host) else None
    with progress_for(quiet=options.quiet, verbose=options.verbose) as report:
        result = measure_served(session, workload, machine, budget_seconds=options.budget_seconds, report=report)
    result = result._replace(findings=(*_differences(resolved, session), *result.findings))
    keep_and_show(result.measurement, result.ending, lambda stored: _show(result, resolved, options, stored))
    return result


def _check_flags(options: UrlOptions) -> None:
    from magnitude_tune.errors import UsageError

    for option in (option for option, value in options.launching.items() if value):
        hint = f"leave {option} out, or measure a model without --url"
        raise UsageError("a server that runs already is not launched", where=option, hint=hint)
    settings = [name for name, _ in options.flags if name != "model"]
    if options.what is None and settings:
        raise UsageError(
            "a server that runs already keeps its own settings",
            where=f"--{settings[0].replace('_', '-')}",
            hint="leave the setting out, or name a model or config beside --url to see its prediction",
        )


def _announce(session: ServedSession, options: UrlOptions) -> None:
    from magnitude_tune.bench.served import is_local
    from magnitude_tune.cli.console import narrate

    if not options.quiet:
        facts = session.facts
        narrate(f"INFO: {session.address} answers with {facts.model} ({facts.kind} {facts.build})")
    if session.sends_key and session.address.startswith("http://") and not is_local(session.host):
        narrate(f"WARNING: the key in {_KEY_VARIABLE} goes to {session.host} without encryption")


def _resolved(options: UrlOptions) -> Resolved | None:
    if options.what is None:
        return None
    from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request

    flags = tuple((name, value) for name, value in options.flags if name != "model")
    return resolve_request(ResolveOptions(what=options.what, flags=flags))


def _machine(resolved: Resolved | None) -> Fingerprint:
    if resolved is not None:
        return resolved.machine
    from magnitude_tune.fingerprint.collect import collect

    return collect()


def _differences(resolved: Resolved | None, session: ServedSession) -> tuple[Finding, ...]:
    """Where what is served is not what the prediction is about."""
    from pathlib import PurePath

    from magnitude_tune.findings import Finding, Rule

    if resolved is None:
        return ()
    facts, found = session.facts, []
    planned, served = PurePath(resolved.header.path).name, PurePath(facts.model_path or "").name
    if served and served != planned:
        fix = "name the model that is served, or measure the server that serves this one"
        found.append(
            Finding(Rule.MISMATCH, f"the prediction is for {planned}, the server answers with {served}", fix=fix)
        )
    expected = resolved.resolution.settings.n_ctx // max(1, resolved.resolution.settings.n_parallel)
    if facts.n_ctx is not None and facts.n_ctx != expected:
        message = f"magnitude mismatch: expected {expected}, got {facts.n_ctx}"
        fix = "give the server and the config the same context"
        found.append(Finding(Rule.MISMATCH, message, fix=fix, setting="n_ctx"))
    return tuple(found)


def _show(result: ServedResult, resolved: Resolved | None, options: UrlOptions, stored: str | None) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.report.served import served_document, served_text

    if options.json_output:
        emit_json(served_document(result, resolved, stored), options.output)
    else:
        emit(served_text(result, resolved, stored), options.output)
