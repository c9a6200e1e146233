"""What was measured here, for the speed model: the kept refinement where it is up to date, else the runs themselves."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import OtherRows, PhysicsModel
from magnitude_tune.throughput.values import Evidence

if TYPE_CHECKING:
    from magnitude_tune.observations.refinements import Learned, RefinementKey

__all__ = ["before_session", "learn", "remember", "unrefined"]


def learn(
    speed: PhysicsModel,
    header: ModelHeader,
    machine: Fingerprint,
    engine: EngineFacts | None,
    *,
    workload: Workload,
    coefficients: Coefficients,
) -> tuple[Finding, ...]:
    """Refine a speed model by what was measured here; a store that cannot be read is a finding."""
    from magnitude_tune.observations.store import store_path

    if engine is None or not store_path().exists():
        return ()
    from magnitude_tune.observations.refinements import kept_refinement

    key = _key(header, machine, engine, workload, coefficients)
    try:
        kept = kept_refinement(key)
        if kept is not None:
            speed.calibration = kept
        else:
            _learned(speed, key, workload)
    except UsageError as error:
        return (Finding(Rule.PROBE_FAILED, f"planned without what was measured here: {error}", fix=error.hint),)
    return ()


def remember(
    header: ModelHeader,
    machine: Fingerprint,
    engine: EngineFacts | None,
    *,
    workload: Workload,
    coefficients: Coefficients,
) -> None:
    """Work out what the stored runs come to, so that the next `resolve` need not.

    A store that cannot be written changes nothing but the time that `resolve` takes.
    """
    from magnitude_tune.observations.refinements import keep_refinement

    if engine is None:
        return
    key = _key(header, machine, engine, workload, coefficients)
    speed = PhysicsModel(header, machine, engine, coefficients, n_prompt=workload.n_prompt)
    with contextlib.suppress(UsageError):
        keep_refinement(key, _learned(speed, key, workload))


def unrefined(header: ModelHeader, machine: Fingerprint, engine: EngineFacts, workload: Workload) -> PhysicsModel:
    """The speed model as shipped: for whoever learns run by run."""
    from magnitude_tune.pipeline.resolve import shipped_coefficients

    return PhysicsModel(header, machine, engine, shipped_coefficients(), n_prompt=workload.n_prompt)


def before_session(
    header: ModelHeader, machine: Fingerprint, engine: EngineFacts, workload: Workload
) -> tuple[tuple[Evidence, ...], OtherRows, float]:
    """What a session of several runs begins with: earlier runs, other models' rows, and the noise between runs.

    The noise is the fraction by which two runs of one setting differ here, the least that is ever assumed where too
    few settings were repeated.

    Raises:
        UsageError: the store cannot be read.
    """
    from magnitude_tune.observations.compare import LEAST_NOISE, noise_between_runs
    from magnitude_tune.observations.history import runs
    from magnitude_tune.observations.refinements import rows_of_other_models
    from magnitude_tune.observations.store import evidence_for
    from magnitude_tune.pipeline.resolve import shipped_coefficients

    evidence = evidence_for(header.content_hash, machine.machine_hash, engine.name, engine.build, workload=workload)
    key = _key(header, machine, engine, workload, shipped_coefficients())
    here = [run for run in runs() if run.machine_hash == machine.machine_hash and run.origin == "measured"]
    noise = max((LEAST_NOISE, *noise_between_runs(here).values()))
    return evidence, rows_of_other_models(key), noise


def _learned(speed: PhysicsModel, key: RefinementKey, workload: Workload) -> Learned:
    from magnitude_tune.observations.refinements import Learned, rows_of_other_models
    from magnitude_tune.observations.store import evidence_for

    evidence = evidence_for(key.model_hash, key.machine_hash, key.engine, key.engine_build, workload=workload)
    speed.learn(evidence, rows_of_other_models(key))
    own = [item for item in evidence if item.same_build]
    return Learned(speed.calibration, {"tg": speed.rows(own, "tg"), "pp": speed.rows(own, "pp")})


def _key(
    header: ModelHeader, machine: Fingerprint, engine: EngineFacts, workload: Workload, coefficients: Coefficients
) -> RefinementKey:
    from magnitude_tune import __version__
    from magnitude_tune.observations.refinements import RefinementKey

    cpu = machine.cpu
    # What a run is worth is how far it is off the shipped prediction: with another prediction it is worth another.
    rates = [
        (device.name, device.backend, device.bandwidth, device.flops, device.link_bandwidth)
        for device in machine.devices
    ]
    basis = repr((__version__, coefficients, cpu.usable_cores, cpu.bandwidth, cpu.flops, rates))
    return RefinementKey(
        machine.machine_hash,
        header.content_hash,
        engine.name,
        engine.build,
        *workload,
        hashlib.sha256(basis.encode()).hexdigest()[:16],
    )
