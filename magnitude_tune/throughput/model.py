"""The speed model: one model on one machine with one engine, every setting's speed with its doubt."""

from __future__ import annotations

import math
from typing import Final

from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Settings, Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.costs import model_costs, repacked_types
from magnitude_tune.throughput.physics import (
    BatchSeconds,
    Plan,
    TokenSeconds,
    make_plan,
    prompt_seconds,
    token_seconds,
)
from magnitude_tune.throughput.rates import device_rates, host_rates
from magnitude_tune.throughput.ready import ready_seconds
from magnitude_tune.throughput.refine import Calibration, Measured, calibrate, exact_key
from magnitude_tune.throughput.values import Basis, Evidence, Interval, Speed, SpeedModel

__all__ = ["PhysicsModel", "speed_model"]

_REFERENCE_PROMPT: Final = Workload().n_prompt
_BASES: Final[tuple[Basis, ...]] = ("shipped", "refined", "measured")
_SHORTEST_SECONDS: Final = 1e-9


def speed_model(
    header: ModelHeader,
    machine: Fingerprint,
    engine: EngineFacts | None,
    coefficients: Coefficients,
    evidence: tuple[Evidence, ...] = (),
) -> SpeedModel:
    """Prepare the speed of one model on one machine.

    `machine.devices` are the accelerators that this engine can use, in its order. Without an `engine` nothing is
    repacked. `evidence` are measurements of this model, machine and engine.
    """
    return PhysicsModel(header, machine, engine, coefficients, evidence)


class PhysicsModel:
    """Physics times stated efficiencies, corrected by what was measured here. See `SpeedModel`."""

    def __init__(
        self,
        header: ModelHeader,
        machine: Fingerprint,
        engine: EngineFacts | None,
        coefficients: Coefficients,
        evidence: tuple[Evidence, ...],
    ) -> None:
        layouts = engine.extra_buffers if engine else ()
        arm = machine.cpu.architecture.lower().startswith(("arm", "aarch"))
        self._header = header
        self._coefficients = coefficients
        self._disk = machine.disk_bandwidth
        self._can_repack = bool(layouts)
        self._costs = model_costs(header, repacked_types(layouts, arm=arm))
        self._host = host_rates(machine.cpu, coefficients)
        self._devices = device_rates(machine, coefficients)
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._tokens: dict[tuple[object, ...], TokenSeconds] = {}
        self._prompts: dict[tuple[object, ...], tuple[BatchSeconds, ...]] = {}
        self._tg_scale = self._pp_scale = 1.0
        self._calibration = Calibration(
            Measured({}, 0.0, None, frozenset()), Measured({}, 0.0, None, frozenset()), {}, 0
        )
        if evidence:
            self._calibration = calibrate(evidence, self._predicted, self._shipped_factor, coefficients.refinement)
            self._tg_scale = math.exp(-self._calibration.tg.log_factor)
            self._pp_scale = math.exp(-self._calibration.pp.log_factor)

    def tg_seconds(self, settings: Settings, n_threads: int, depth: int = 0) -> float:
        """Seconds for one generated token after `depth` tokens, with that many threads."""
        exact = self._calibration.tg.exact
        if exact and depth == 0 and (rate := exact.get(exact_key(settings, "tg", n_threads))):
            return 1.0 / rate[0]
        return self._token(settings, depth).total(self._host, n_threads) * self._tg_scale

    def pp_seconds(self, settings: Settings, n_threads_batch: int, n_prompt: int, depth: int = 0) -> float:
        """Seconds to read `n_prompt` tokens after `depth` tokens, with that many threads."""
        exact = self._calibration.pp.exact
        if exact and depth == 0 and (rate := exact.get(exact_key(settings, "pp", n_threads_batch))):
            return n_prompt / rate[0]
        return self._prompt_total(settings, n_threads_batch, n_prompt, depth) * self._pp_scale

    def speed(self, settings: Settings, workload: Workload) -> Speed:
        """Everything, with 90 % intervals: rates by their factors, sums of times by the sums of their ends."""
        tg = self._interval(
            1.0 / self.tg_seconds(settings, settings.n_threads),
            settings,
            "tg",
            settings.n_threads,
            self._calibration.tg,
        )
        n_prompt = max(workload.n_prompt, 1)
        pp = self._interval(
            n_prompt / max(self.pp_seconds(settings, settings.n_threads_batch, n_prompt), _SHORTEST_SECONDS),
            settings,
            "pp",
            settings.n_threads_batch,
            self._calibration.pp,
        )
        return Speed(
            pp=pp,
            tg=tg,
            ttft_seconds=_turn(workload.n_prompt, pp, 1, tg),
            turn_seconds=_turn(workload.n_prompt, pp, workload.n_gen, tg),
            ready_seconds=self._ready(settings),
            n_runs=self._calibration.n_runs,
        )

    def _interval(self, rate: float, settings: Settings, quantity: str, n_threads: int, known: Measured) -> Interval:
        measured = known.exact.get(exact_key(settings, quantity, n_threads)) if known.exact else None
        if measured is not None:
            value, low, high = measured
            again = self._coefficients.refinement.rerun_factor_90
            return Interval(value, min(low, value / again), max(high, value * again), "measured")
        factor = known.factor_90(self._shipped_factor(settings, quantity), settings)
        return Interval(rate, rate / factor, rate * factor, "refined" if known.exact else "shipped")

    def _ready(self, settings: Settings) -> Interval:
        warm, cold = ready_seconds(self._header, self._plan(settings), settings, self._coefficients.ready, self._disk)
        runs = self._calibration.ready.get(exact_key(settings, "ready", 0))
        if runs:
            value = sorted(runs)[len(runs) // 2]
            return Interval(value, min(warm, *runs), max(cold, *runs), "measured")
        return Interval(math.sqrt(warm * cold), warm, cold, "shipped")

    def _predicted(self, settings: Settings, quantity: str) -> float:
        if quantity == "tg":
            return 1.0 / self._token(settings, 0).total(self._host, settings.n_threads)
        n = _REFERENCE_PROMPT
        return n / self._prompt_total(settings, settings.n_threads_batch, n, 0)

    def _shipped_factor(self, settings: Settings, quantity: str) -> float:
        """Half-width of the 90 % interval: the kinds' own, weighted by the time spent on each (in logarithms)."""
        kinds, plan = self._coefficients.kinds, self._plan(settings)
        names = {stage.device.kind_name if stage.device else "cpu" for stage in (*plan.stages, plan.output)}
        factors = [kinds[name].tg_factor_90 if quantity == "tg" else kinds[name].pp_factor_90 for name in names]
        return max(factors)

    def _plan(self, settings: Settings) -> Plan:
        key = (
            settings.n_gpu_layers,
            settings.devices,
            settings.tensor_split,
            settings.n_cpu_moe,
            settings.repack,
        )
        plan = self._plans.get(key)
        if plan is None:
            devices = [self._devices[name] for name in settings.devices if name in self._devices]
            plan = make_plan(self._costs, devices, settings, can_repack=self._can_repack)
            self._plans[key] = plan
        return plan

    def _token(self, settings: Settings, depth: int) -> TokenSeconds:
        key = (
            settings.n_gpu_layers,
            settings.devices,
            settings.tensor_split,
            settings.n_cpu_moe,
            settings.repack,
            settings.type_k,
            settings.type_v,
            depth,
        )
        seconds = self._tokens.get(key)
        if seconds is None:
            seconds = token_seconds(self._plan(settings), self._host, settings, depth)
            self._tokens[key] = seconds
        return seconds

    def _prompt_total(self, settings: Settings, n_threads: int, n_prompt: int, depth: int) -> float:
        key = (
            settings.n_gpu_layers,
            settings.n_batch,
            settings.n_ubatch,
            settings.devices,
            settings.tensor_split,
            settings.n_cpu_moe,
            settings.repack,
            settings.flash_attn,
            n_prompt,
            depth,
        )
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = prompt_seconds(self._plan(settings), self._host, settings, n_prompt, depth)
            self._prompts[key] = prompt
        return sum(batch.times * batch.seconds.total(self._host, n_threads) for batch in prompt)


def _turn(n_prompt: int, pp: Interval, n_gen: int, tg: Interval) -> Interval:
    """Seconds for a prompt and its answer; the ends add up as if both rates were off in the same direction."""
    basis = _BASES[min(_BASES.index(pp.basis), _BASES.index(tg.basis))]
    return Interval(
        n_prompt / pp.value + n_gen / tg.value,
        n_prompt / pp.high + n_gen / tg.high,
        n_prompt / pp.low + n_gen / tg.low,
        basis,
    )
