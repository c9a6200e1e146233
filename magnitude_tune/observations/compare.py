"""Two stored runs side by side: may they be compared, how far apart are they, and is that more than noise?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import variance
from typing import Final, Literal, NamedTuple

from magnitude_tune.errors import UsageError
from magnitude_tune.observations.history import StoredRun, StoredTest, Timed
from magnitude_tune.observations.statistics import SIGMA_90, Summary

__all__ = ["LEAST_NOISE", "Comparison", "Difference", "compare_runs", "noise_between_runs"]

Verdict = Literal["faster", "slower", "within noise", "undecided"]

LEAST_NOISE: Final = 0.03
"""Differences up to this fraction are never called real: on a calm machine two runs of one setting differ as much."""

_LEAST_FREEDOM: Final = 3


class Difference(NamedTuple):
    """One test of both runs. `ratio` is B's median over A's, with its 90 % interval (None below two samples).

    `noise` is the fraction by which two runs of one setting differ here. `reason` says what a verdict rests on.
    """

    key: Timed
    a: StoredTest
    b: StoredTest
    ratio: float
    low: float | None
    high: float | None
    noise: float
    verdict: Verdict
    reason: str


class Comparison(NamedTuple):
    """Runs A and B; `settings` holds what they were set to differently; `only` the tests that one of them lacks."""

    a: StoredRun
    b: StoredRun
    settings: tuple[tuple[str, object, object], ...]
    tests: tuple[Difference, ...]
    only: tuple[str, ...]


def compare_runs(a: StoredRun, b: StoredRun, stored: Iterable[StoredRun] = ()) -> Comparison:
    """How B's rates relate to A's, test by test.

    Args:
        stored: everything that is stored; repeated runs of one setting tell the noise between runs.

    Raises:
        UsageError: the runs are of unlike machines, models, engines or workloads; says which and how they differ.
    """
    unlike = [*_unlike(a, b), *_unlike_workloads(a, b)]
    if unlike:
        raise UsageError(
            "these runs cannot be compared: " + "; ".join(unlike),
            where=f"{a.run_id[:8]} and {b.run_id[:8]}",
            hint="compare runs that differ in their settings only",
        )
    of_a, of_b = ({test.key: test for test in run.tests} for run in (a, b))
    noise = noise_between_runs(run for run in stored if not _unlike(a, run))
    sides = (("A", a), ("B", b))
    doubts = [f"{name} was disturbed" for name, run in sides if not run.clean]
    doubts += [f"{name} was interrupted" for name, run in sides if not run.complete]
    return Comparison(
        a=a,
        b=b,
        settings=tuple(
            (name, a.settings.get(name), b.settings.get(name))
            for name in dict.fromkeys((*a.settings, *b.settings))
            if a.settings.get(name) != b.settings.get(name)
        ),
        tests=tuple(
            _difference(of_a[key], of_b[key], noise.get(key.kind, LEAST_NOISE), doubts) for key in of_a if key in of_b
        ),
        only=tuple(
            f"{name} has no {key}" for name, has, lacks in _sides(of_a, of_b) for key in has if key not in lacks
        ),
    )


def noise_between_runs(stored: Iterable[StoredRun]) -> dict[str, float]:
    """By kind of test, the fraction that two runs of one setting stay within in 90 % of cases; `LEAST_NOISE` at least.

    The pooled variance of the logarithms of medians within groups of equal settings and workload; the difference of
    two such has twice that variance. Kinds with fewer than three degrees of freedom are left out.
    """
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for run in stored:
        if not (run.clean and run.complete):
            continue
        subject = (run.machine_hash, run.model_hash, run.engine, run.engine_build)
        settings = tuple(sorted((name, str(value)) for name, value in run.settings.items()))
        for test in run.tests:
            if test.stable and test.summary.median > 0:
                groups[test.key.kind, test.key, subject, settings].append(math.log(test.summary.median))
    squares: dict[str, float] = defaultdict(float)
    freedom: dict[str, int] = defaultdict(int)
    for (kind, *_), medians in groups.items():
        if len(medians) > 1:
            squares[str(kind)] += variance(medians) * (len(medians) - 1)
            freedom[str(kind)] += len(medians) - 1
    return {
        kind: max(LEAST_NOISE, math.expm1(SIGMA_90 * math.sqrt(2 * squares[kind] / n)))
        for kind, n in freedom.items()
        if n >= _LEAST_FREEDOM
    }


def _unlike(a: StoredRun, b: StoredRun) -> list[str]:
    """What keeps two runs apart whatever was timed."""
    found = []
    if a.machine_hash != b.machine_hash:
        found.append(f"machine: {_machine(a)} and {_machine(b)}")
    if a.model_hash != b.model_hash:
        found.append(f"model: {_model(a)} and {_model(b)}")
    if (a.engine, a.engine_build) != (b.engine, b.engine_build):
        found.append(f"engine: {a.engine} {a.engine_build} and {b.engine} {b.engine_build}")
    return found


def _machine(run: StoredRun) -> str:
    name = " with ".join(part for part in (run.cpu_info, run.gpu_info) if part) or "unknown"
    return f"{name} ({_hash(run, run.machine_hash)})"


def _model(run: StoredRun) -> str:
    return f"{run.model_type or run.model_filename or 'unknown'} ({_hash(run, run.model_hash)})"


def _hash(run: StoredRun, whole: str) -> str:
    """Enough of a hash to tell two apart; imported runs have names only."""
    return whole[:12] if run.origin == "measured" else "imported"


def _unlike_workloads(a: StoredRun, b: StoredRun) -> list[str]:
    """A run may lack tests that the other has, but not both: then something else was timed."""
    of_a, of_b = ({test.key for test in run.tests} for run in (a, b))
    if of_a & of_b and (of_a <= of_b or of_b <= of_a):
        return []
    shown = [", ".join(str(key) for key in sorted(keys, reverse=True)) or "nothing" for keys in (of_a, of_b)]
    return [f"workload: {shown[0]} and {shown[1]}"]


def _sides(
    of_a: dict[Timed, StoredTest], of_b: dict[Timed, StoredTest]
) -> tuple[tuple[str, dict[Timed, StoredTest], dict[Timed, StoredTest]], ...]:
    return ("B", of_a, of_b), ("A", of_b, of_a)


def _difference(a: StoredTest, b: StoredTest, noise: float, doubts: Sequence[str]) -> Difference:
    ratio = b.summary.median / a.summary.median
    several = min(len(a.samples), len(b.samples)) > 1
    low, high = _ratio_interval(a.summary, b.summary) if several else (None, None)
    verdict, reason = _verdict(a, b, (ratio, low, high), noise, doubts)
    return Difference(a.key, a, b, ratio, low, high, noise, verdict, reason)


def _ratio_interval(a: Summary, b: Summary) -> tuple[float, float]:
    """90 % interval of the ratio of two medians: their intervals put together in logarithms (Zou and Donner 2008)."""
    middle = math.log(b.median / a.median)
    below = math.hypot(math.log(b.median / b.low), math.log(a.high / a.median))
    above = math.hypot(math.log(b.high / b.median), math.log(a.median / a.low))
    return math.exp(middle - below), math.exp(middle + above)


def _verdict(
    a: StoredTest,
    b: StoredTest,
    figures: tuple[float, float | None, float | None],
    noise: float,
    doubts: Sequence[str],
) -> tuple[Verdict, str]:
    ratio, low, high = figures
    sides = (("A", a), ("B", b))
    why = [*doubts, *(f"{name} has a mean only" for name, test in sides if not test.samples)]
    why += [f"{name} is unstable" for name, test in sides if test.samples and not test.stable]
    if why or low is None or high is None:
        return "undecided", ", ".join(why)
    if low <= 1 <= high:
        return "within noise", "the interval holds 1"
    if abs(math.log(ratio)) <= math.log1p(noise):
        return "within noise", f"runs of one setting differ by up to {noise:.0%} here"
    return ("faster" if ratio > 1 else "slower"), f"more than the {noise:.0%} by which runs of one setting differ"
