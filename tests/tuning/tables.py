"""Made-up tables of turn times to tune on: true seconds by candidate, a belief about them, and noisy runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from magnitude_tune.request import Settings
from magnitude_tune.tuning.session import tune
from magnitude_tune.tuning.values import Candidate, Expected, Run, Tuned

SETTINGS = Settings(n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=1024)


def candidates(count: int) -> tuple[Candidate, ...]:
    """That many, which differ by name only."""
    return tuple(Candidate(SETTINGS, (("number", str(n)),) if n else ()) for n in range(count))


def belief(predicted: Sequence[float], sigma: float) -> Callable[[Sequence[Run]], Sequence[Expected]]:
    """Predictions that one factor corrects, as a machine's speed does; sigma is what they are off beyond that."""

    def expect(runs: Sequence[Run]) -> Sequence[Expected]:
        if not runs:
            return [Expected(each, 1.0) for each in predicted]
        off = sorted(math.log(run.seconds / predicted[run.candidate]) for run in runs)
        factor = math.exp(off[len(off) // 2])
        return [Expected(each * factor, sigma) for each in predicted]

    return expect


def session(
    seconds: Sequence[float],
    predicted: Sequence[float],
    *,
    scatter: float,
    seed: int,
    max_runs: int = 8,
    sigma: float = 0.08,
    noise: float = 0.03,
) -> Tuned:
    """Tune on a table whose runs scatter that much (standard deviation of the logarithm)."""
    dice = random.Random(seed)  # noqa: S311 - tables, not secrets

    def run(number: int) -> Run:
        return Run(number, seconds[number] * math.exp(dice.gauss(0.0, scatter)), scatter)

    return tune(candidates(len(seconds)), belief(predicted, sigma), run, max_runs=max_runs, noise=noise)
