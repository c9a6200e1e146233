"""The speed model: one model on one machine with one engine, every setting's speed with its doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import REFERENCE_TURN, Settings, Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.costs import model_costs
from magnitude_tune.throughput.features import model_traits
from magnitude_tune.throughput.physics import BatchSeconds, StepSeconds, prompt_seconds, token_seconds
from magnitude_tune.throughput.placement import Plan, make_plan
from magnitude_tune.throughput.posterior import Row
from magnitude_tune.throughput.rates import DeviceRates, HostRates, device_rates, host_rates
from magnitude_tune.throughput.ready import ready_seconds
from magnitude_tune.throughput.refine import (
    Calibration,
    Estimate,
    Features,
    Place,
    Quantity,
    calibrate,
    exact_key,
    features_of,
    rows_of_evidence,
)
from magnitude_tune.throughput.repack import repackable_types
from magnitude_tune.throughput.values import Basis, Evidence, Interval, Speed

__all__ = ["OtherRows", "PhysicsModel", "speed_model"]

OtherRows = Mapping[Quantity, Sequence[Sequence[Row]]]
"""What other models' runs gave on this machine: rows by quantity, a group for each model."""

_BASES: Final[tuple[Basis, ...]] = ("shipped", "refined", "measured")


def speed_model(
    header: ModelHeader,
    machine: Fingerprint,
    engine: EngineFacts | None,
    coefficients: Coefficients,
    evidence: tuple[Evidence, ...] = (),
    *,
    n_prompt: int = REFERENCE_TURN.n_prompt,
    others: OtherRows | None = None,
) -> PhysicsModel:
    """Prepare the speed of one model on one machine.

    `machine.devices` are the accelerators that this engine can use, in its order; devices that settings name beside
    them are ignored. Without an `engine`, a build made for this CPU is assumed. `evidence` are measurements of this
    model, machine and engine, of prompts of `n_prompt` tokens; those on devices that are gone do not count. `others`
    are what other models' runs gave on this machine, a group for each.
    """
    model = PhysicsModel(header, machine, engine, coefficients, n_prompt=n_prompt)
    if evidence or others:
        model.learn(evidence, others)
    return model


class PhysicsModel:
    """Physics times stated efficiencies, corrected by what was measured here. See `SpeedModel`.

    Each distinct placement and batch is priced once and remembered, so one question costs a few microseconds. Rates
    are in tokens/second, times in seconds.
    """

    def __init__(
        self,
        header: ModelHeader,
        machine: Fingerprint,
        engine: EngineFacts | None,
        coefficients: Coefficients,
        *,
        n_prompt: int = REFERENCE_TURN.n_prompt,
    ) -> None:
        self._measured_prompt = max(1, n_prompt)
        repackable = repackable_types(extra_buffers(engine, machine.cpu), machine.cpu.features, header.n_vocab)
        self._header = header
        self._coefficients = coefficients
        self._disk = machine.disk_bandwidth
        self._costs = model_costs(header, repackable)
        self.traits = model_traits(header, self._costs)
        self._host = host_rates(machine.cpu, coefficients, self.traits)
        self._devices = device_rates(machine, coefficients, self.traits)
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._tokens: dict[tuple[object, ...], StepSeconds] = {}
        self._prompts: dict[tuple[object, ...], tuple[BatchSeconds, ...]] = {}
        self._threads: dict[int, tuple[float, float, float]] = {}
        self._over_rpc: dict[tuple[str, ...], bool] = {}
        self.calibration = Calibration()

    def words_of(self, device: str) -> frozenset[str]:
        """What the learned correction knows of a device by its name; of the host for an empty one."""
        return (self._devices[device] if device else self._host).words

    def learn(self, evidence: Sequence[Evidence], others: OtherRows | None = None) -> None:
        """Refine every prediction by these measurements; what was learned before is forgotten."""
        usable = self._of_devices_here(evidence)
        self.calibration = calibrate(usable, self._estimate(), self._coefficients.doubt, others)

    def rows(self, evidence: Sequence[Evidence], quantity: Quantity) -> tuple[Row, ...]:
        """What these measurements say beside the shipped prediction, for other models on this machine."""
        usable = self._of_devices_here(evidence)
        return rows_of_evidence(usable, quantity, self._estimate(), self._coefficients.doubt)

    def shipped_rate(self, settings: Settings, quantity: Quantity, depth: int = 0) -> float:
        """Tokens/second before any correction; prompts as long as the measured ones."""
        n_threads = settings.n_threads if quantity == "tg" else settings.n_threads_batch
        host, elsewhere = self._seconds(settings, quantity, n_threads, self._measured_prompt, depth)
        return (1 if quantity == "tg" else self._measured_prompt) / (host + elsewhere)

    def tg_seconds(self, settings: Settings, n_threads: int, depth: int = 0) -> float:
        """Seconds for one generated token after `depth` tokens, with that many threads."""
        known = self.calibration.tg
        if known is None:
            step = self._token(settings, depth)
            return step.on_host(self._share(n_threads)) + step.elsewhere
        if depth == 0 and (rate := known.exact.get(exact_key(settings, "tg", n_threads))):
            return 1.0 / rate[0]
        seconds = self._seconds(settings, "tg", n_threads, 1, depth)
        return sum(seconds) * math.exp(-known.shift(self._features(settings, "tg", n_threads, seconds, depth)))

    def pp_seconds(self, settings: Settings, n_threads_batch: int, n_prompt: int, depth: int = 0) -> float:
        """Seconds to read `n_prompt` tokens after `depth` tokens, with that many threads."""
        known = self.calibration.pp
        if known is not None and depth == 0 and (rate := known.exact.get(exact_key(settings, "pp", n_threads_batch))):
            return n_prompt / rate[0]
        seconds = self._seconds(settings, "pp", n_threads_batch, n_prompt, depth)
        if known is None:
            return sum(seconds)
        return sum(seconds) * math.exp(-known.shift(self._features(settings, "pp", n_threads_batch, seconds, depth)))

    def speed(self, settings: Settings, workload: Workload) -> Speed:
        """Everything, with 90 % intervals: rates by their factors, sums of times by the sums of their ends."""
        n_prompt = max(workload.n_prompt, 1)
        tg = self._interval(settings, "tg", 1.0 / self.tg_seconds(settings, settings.n_threads))
        pp_seconds = self.pp_seconds(settings, settings.n_threads_batch, n_prompt)
        pp = self._interval(settings, "pp", n_prompt / pp_seconds)
        return Speed(
            pp=pp,
            tg=tg,
            ttft_seconds=_turn(workload.n_prompt, pp, 1, tg),
            turn_seconds=_turn(workload.n_prompt, pp, workload.n_gen, tg),
            ready_seconds=self._ready(settings),
            n_runs=self.calibration.n_runs,
        )

    def rate_interval(self, settings: Settings, quantity: Quantity, depth: int = 0) -> Interval:
        """Tokens/second with the 90 % interval, prompts as long as the measured ones."""
        n_prompt = self._measured_prompt
        if quantity == "tg":
            return self._interval(settings, "tg", 1.0 / self.tg_seconds(settings, settings.n_threads, depth), depth)
        seconds = self.pp_seconds(settings, settings.n_threads_batch, n_prompt, depth)
        return self._interval(settings, "pp", n_prompt / seconds, depth)

    def _interval(self, settings: Settings, quantity: Quantity, rate: float, depth: int = 0) -> Interval:
        known = self.calibration.tg if quantity == "tg" else self.calibration.pp
        if known is None:
            factor = self._shipped_factor(settings, quantity)
            return Interval(rate, rate / factor, rate * factor, "shipped")
        n_threads = settings.n_threads if quantity == "tg" else settings.n_threads_batch
        if depth == 0 and (measured := known.exact.get(exact_key(settings, quantity, n_threads))):
            value, low, high = measured
            again = self._coefficients.doubt.rerun_factor_90
            return Interval(value, min(low, value / again), max(high, value * again), "measured")
        seconds = self._seconds(settings, quantity, n_threads, self._measured_prompt, depth)
        factor = known.factor_90(self._features(settings, quantity, n_threads, seconds, depth))
        return Interval(rate, rate / factor, rate * factor, "refined")

    def _ready(self, settings: Settings) -> Interval:
        plan = self._plan(settings)
        warm, cold = ready_seconds(self._header, plan, settings, self._coefficients.ready, self._disk)
        runs = self.calibration.ready.get(exact_key(settings, "ready", 0))
        if runs:
            value = sorted(runs)[len(runs) // 2]
            return Interval(value, min(warm, *runs), max(cold, *runs), "measured")
        return Interval(math.sqrt(warm * cold), warm, cold, "shipped")

    def _of_devices_here(self, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
        return tuple(item for item in evidence if all(name in self._devices for name in item.settings.devices))

    def _estimate(self) -> Estimate:
        def features(item: Evidence, quantity: Quantity) -> Features:
            n_threads = item.settings.n_threads if quantity == "tg" else item.settings.n_threads_batch
            seconds = self._seconds(item.settings, quantity, n_threads, self._measured_prompt, item.depth)
            return self._features(item.settings, quantity, n_threads, seconds, item.depth)

        def doubts(quantity: Quantity) -> tuple[float, float]:
            devices = (self._doubt(device, quantity) for device in self._devices.values())
            return self._doubt(self._host, quantity), max(devices, default=0.0)

        return Estimate(
            rate=lambda item, quantity: self.shipped_rate(item.settings, quantity, item.depth),
            features=features,
            doubts=doubts,
        )

    def _features(
        self, settings: Settings, quantity: Quantity, n_threads: int, seconds: tuple[float, float], depth: int
    ) -> Features:
        host, elsewhere = seconds
        over_rpc = self._over_rpc.get(settings.devices)
        if over_rpc is None:
            used = (self._devices[name] for name in settings.devices if name in self._devices)
            over_rpc = self._over_rpc[settings.devices] = any(device.kind_name == "rpc" for device in used)
        place = Place(host / (host + elsewhere), self._host.cores, over_rpc)
        return features_of(settings, quantity, place, n_threads, depth)

    def _seconds(
        self, settings: Settings, quantity: Quantity, n_threads: int, n_prompt: int, depth: int
    ) -> tuple[float, float]:
        """Seconds on the host and elsewhere for one token or a prompt, before any correction."""
        threads = self._share(n_threads)
        if quantity == "tg":
            step = self._token(settings, depth)
            return step.on_host(threads), step.elsewhere
        host = elsewhere = 0.0
        for batch in self._prompt(settings, n_prompt, depth):
            host += batch.times * batch.seconds.on_host(threads)
            elsewhere += batch.times * batch.seconds.elsewhere
        return host, elsewhere

    def _shipped_factor(self, settings: Settings, quantity: Quantity) -> float:
        """Half-width of the 90 % interval: of the host and the widest device, weighted by time in logarithms."""
        n_threads = settings.n_threads if quantity == "tg" else settings.n_threads_batch
        host, elsewhere = self._seconds(settings, quantity, n_threads, self._measured_prompt, 0)
        crossings = self._plan(settings).crossings
        elsewhere_doubt = max((self._doubt(crossing.device, quantity) for crossing in crossings), default=0.0)
        host_doubt = self._doubt(self._host, quantity)
        return math.exp((host_doubt * host + elsewhere_doubt * elsewhere) / (host + elsewhere))

    def _doubt(self, place: HostRates | DeviceRates, quantity: Quantity) -> float:
        """Logarithm of a place's 90 % factor, learned or its kind's; a guessed rate adds its own, independent doubt."""
        kind, gains = place.kind, place.gains
        doubt = (gains.tg_doubt or math.log(kind.tg_factor_90)) if quantity == "tg" else gains.pp_doubt
        doubt = doubt or math.log(kind.pp_factor_90)
        return math.hypot(doubt, math.log(self._coefficients.doubt.guessed_factor_90)) if place.guessed else doubt

    def _share(self, n_threads: int) -> tuple[float, float, float]:
        share = self._threads.get(n_threads)
        if share is None:
            share = self._threads[n_threads] = self._host.threads(n_threads)
        return share

    def _plan(self, settings: Settings) -> Plan:
        key = (settings.n_gpu_layers, settings.devices, settings.tensor_split, settings.n_cpu_moe, settings.repack)
        plan = self._plans.get(key)
        if plan is None:
            devices = [self._devices[name] for name in settings.devices if name in self._devices]
            plan = self._plans[key] = make_plan(self._costs, devices, settings)
        return plan

    def _token(self, settings: Settings, depth: int) -> StepSeconds:
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
        step = self._tokens.get(key)
        if step is None:
            step = self._tokens[key] = token_seconds(self._plan(settings), self._host, settings, depth)
        return step

    def _prompt(self, settings: Settings, n_prompt: int, depth: int) -> tuple[BatchSeconds, ...]:
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
        return prompt


def _turn(n_prompt: int, pp: Interval, n_gen: int, tg: Interval) -> Interval:
    """Seconds for a prompt and its answer; the ends add up as if both rates were off in the same direction."""
    basis = _BASES[min(_BASES.index(pp.basis), _BASES.index(tg.basis))]
    return Interval(
        n_prompt / pp.value + n_gen / tg.value,
        n_prompt / pp.high + n_gen / tg.high,
        n_prompt / pp.low + n_gen / tg.low,
        basis,
    )
