"""Chooses the next run and judges the runs so far. Pure: the same runs always lead to the same choice.

The first run is the plan itself. Then comes whatever promises most against the best so far: the expected improvement
of a normal belief about the logarithm of the turn (Mockus 1975; Jones, Schonlau and Welch 1998). Runs are kept back
to measure the plan and the leader once more in turn, because the best of several runs looks better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import NormalDist, fmean
from typing import Final, NamedTuple

from magnitude_tune.tuning.values import Choice, Expected, Run, Verdict

__all__ = ["LEAST_NOISE", "PLAN", "choose", "judge", "noise_of"]

PLAN: Final = 0
"""The plan's number among the candidates."""

LEAST_NOISE: Final = 0.03
"""Differences up to this fraction are never called real: calm machines differ as much between runs."""

_SIGMA_90: Final = 1.6449
_T_99: Final = (31.8, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76)
"""Student's t at 99 %, by degrees of freedom from 1: a leader this far ahead is chance once in a hundred."""

_PLAINLY: Final = 0.25
_PLAIN_SIGMAS: Final = 4.0
"""A lead of 28 %, and of four times what the runs' own samples allow for, needs no confirmation."""

_HOPELESS: Final = 0.05
"""Probability of beating the best by more than the noise below which a candidate is not tried."""

_PRIOR_FREEDOM: Final = 1.0
_NORMAL: Final = NormalDist()


class _Known(NamedTuple):
    """All runs of one candidate: the mean of the turn's logarithm and its standard deviation."""

    candidate: int
    middle: float
    sigma: float
    n_runs: int


def noise_of(runs: Sequence[Run], before: float = LEAST_NOISE) -> float:
    """By how much two runs of one setting differ in 90 % of cases, a fraction, `LEAST_NOISE` at least.

    Args:
        before: what was known before these runs; it counts as one repetition.
    """
    return max(LEAST_NOISE, math.expm1(_SIGMA_90 * math.sqrt(2.0) * _between(runs, before)))


def choose(
    expected: Sequence[Expected],
    runs: Sequence[Run],
    *,
    max_runs: int,
    noise: float = LEAST_NOISE,
    struck: Collection[int] = (),
) -> Choice:
    """What to run next.

    Args:
        expected: what is expected of each candidate, the plan first, given these runs.
        max_runs: processes in all.
        noise: by how much two runs of one setting differ, as known before.
        struck: candidates that cannot run.
    """
    if PLAN in struck:
        return Choice(None, None, "the plan cannot be run")
    if PLAN not in {run.candidate for run in runs}:
        return Choice(PLAN, "baseline", "the plan: everything is compared with it")
    left = max_runs - len(runs)
    if left <= 0:
        return Choice(None, None, f"all {max_runs} runs are used")
    found = _next(expected, runs, left, noise, struck)
    return found or Choice(None, None, "nothing promises to beat the best by more than the noise")


def _next(
    expected: Sequence[Expected], runs: Sequence[Run], left: int, before: float, struck: Collection[int]
) -> Choice | None:
    """Something new as long as enough runs are kept back to confirm the leader, else the plan or the leader again."""
    known, noise = _known(runs, before), noise_of(runs, before)
    known = _known(runs, noise)
    best = min(known.values(), key=lambda each: each.middle)
    wanted = _to_confirm(known, best, noise, struck)
    found = _most_promising(expected, known, best, noise, struck) if len(wanted) < left else None
    if found is None and wanted:
        who = "the plan" if wanted[0] == PLAN else "the leader"
        found = Choice(wanted[0], "confirm", f"{who} once more, to tell the two apart from noise")
    return found


def judge(runs: Sequence[Run], noise: float = LEAST_NOISE) -> Verdict | None:
    """The winner among the candidates that were run; None before the plan was.

    Only undisturbed runs decide. A leader is recommended where its turn is shorter than the plan's by more than the
    least noise, and either both were measured again and are told apart, or the difference is plain.
    """
    here = noise_of(runs, noise)
    if not any(run.candidate == PLAN for run in runs):
        return None
    known = _known([run for run in runs if run.clean], noise)
    if PLAN not in known:
        return Verdict(PLAN, False, 0.0, 0.0, 0.0, here, "the plan's runs were all disturbed: nothing can be said")
    plan = known[PLAN]
    leader = min(known.values(), key=lambda each: each.middle)
    if leader.candidate == PLAN:
        why = "the plan is the fastest that was measured" if len(known) > 1 else "only the plan was measured"
        return Verdict(PLAN, False, 0.0, 0.0, 0.0, here, why)
    apart = plan.middle - leader.middle
    sigma = math.hypot(plan.sigma, leader.sigma)
    gain, low, high = (-math.expm1(-each) for each in (apart, apart - _SIGMA_90 * sigma, apart + _SIGMA_90 * sigma))
    if apart > _plain(plan, leader, here):
        return Verdict(
            leader.candidate, True, gain, low, high, here, "plainly more than two runs of one setting differ"
        )
    confirmed = min(plan.n_runs, leader.n_runs) >= 2
    if confirmed and apart > max(_needed(known) * sigma, math.log1p(LEAST_NOISE)):
        return Verdict(leader.candidate, True, gain, low, high, here, "measured again in turn, and still faster")
    why = "cannot be told from noise" if confirmed else "was not measured often enough to be told from noise"
    return Verdict(PLAN, False, gain, low, high, here, f"the fastest other setting {why}")


def _between(runs: Sequence[Run], before: float) -> float:
    """Standard deviation of the logarithm between runs of one setting: what was known before, and repetitions here."""
    groups: dict[int, list[float]] = {}
    for run in runs:
        groups.setdefault(run.candidate, []).append(math.log(run.seconds))
    prior = math.log1p(max(before, LEAST_NOISE)) / (_SIGMA_90 * math.sqrt(2.0))
    squares, freedom = _PRIOR_FREEDOM * prior**2, _PRIOR_FREEDOM
    for group in groups.values():
        middle = fmean(group)
        squares += sum((each - middle) ** 2 for each in group)
        freedom += len(group) - 1
    return math.sqrt(squares / freedom)


def _known(runs: Sequence[Run], noise: float) -> dict[int, _Known]:
    between = _between(runs, noise)
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.candidate, []).append(run)
    return {
        candidate: _Known(
            candidate,
            fmean(math.log(run.seconds) for run in group),
            math.sqrt(sum(max(between, run.sigma) ** 2 for run in group)) / len(group),
            len(group),
        )
        for candidate, group in groups.items()
    }


def _plain(plan: _Known, leader: _Known, noise: float) -> float:
    """The lead, in logarithms, that needs no confirmation."""
    return max(_PLAINLY, _PLAIN_SIGMAS * math.hypot(plan.sigma, leader.sigma), 2 * math.log1p(noise))


def _needed(known: dict[int, _Known]) -> float:
    """Standard deviations of a difference that chance hardly makes, by how often runs were repeated."""
    freedom = _PRIOR_FREEDOM + sum(each.n_runs - 1 for each in known.values())
    return _T_99[min(int(freedom), len(_T_99)) - 1]


def _to_confirm(known: dict[int, _Known], best: _Known, noise: float, struck: Collection[int]) -> tuple[int, ...]:
    """Runs that the comparison of the plan and the leader still lacks; the one measured less often comes first."""
    plan = known[PLAN]
    if best.candidate == PLAN or plan.middle - best.middle > _plain(plan, best, noise):
        return ()
    lacking = [each for each in (plan, best) if each.n_runs < 2]
    apart = plan.middle - best.middle
    if not lacking and apart <= _needed(known) * math.hypot(plan.sigma, best.sigma):
        lacking = [min((plan, best), key=lambda each: each.n_runs)] if apart > math.log1p(LEAST_NOISE) else []
    return tuple(each.candidate for each in lacking if each.candidate not in struck)


def _most_promising(
    expected: Sequence[Expected], known: dict[int, _Known], best: _Known, noise: float, struck: Collection[int]
) -> Choice | None:
    """The candidate with the largest expected improvement, of those that may beat the best by more than the noise."""
    found: Choice | None = None
    for number, each in enumerate(expected):
        if number in known or number in struck:
            continue
        ahead, sigma = best.middle - math.log(each.seconds), max(each.sigma, 1e-6)
        if 1.0 - _NORMAL.cdf((math.log1p(noise) - ahead) / sigma) < _HOPELESS:
            continue
        z = ahead / sigma
        gain = ahead * _NORMAL.cdf(z) + sigma * _NORMAL.pdf(z)
        if found is None or gain > found.gain:
            found = Choice(number, "explore", f"promises {gain:.1%} against the best so far", gain)
    return found
