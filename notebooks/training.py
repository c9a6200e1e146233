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
# # How the speed model is trained, and how far it can be trusted
#
# `magnitude-tune` predicts tokens a second by physics times a small regression. This notebook fits that regression on a
# part of the published benchmarks in `models/training/`, predicts every device from fits without it, and looks at how
# far off that is.
#
# Open it with Jupytext, or run it as a script: `python notebooks/training.py`. It needs
# `pip install 'magnitude-tune[notebooks,train]'`. With `MAGNITUDE_TUNE_ROWS=0` it takes all rows, as
# `magnitude-tune train` does; otherwise at most that many a device, 20 where unset.

# %%
from __future__ import annotations

import math
import os
from collections import defaultdict
from statistics import median

import matplotlib.pyplot as plt

from magnitude_tune.learning.cases import Models
from magnitude_tune.learning.regression import (
    CHOICES,
    Sample,
    Validation,
    fit,
    spread_at,
    spreads_of,
    term_names,
    validate,
)
from magnitude_tune.learning.shipped import stated_document, training_tables
from magnitude_tune.learning.table import Row, read_devices, read_rows
from magnitude_tune.learning.train import samples_of, usable, without_correction

MOST = int(os.environ.get("MAGNITUDE_TUNE_ROWS", "20"))

# %% [markdown]
# ## The table
#
# Each row is used or dropped by a named rule; nothing is picked by hand.

# %%
table, sheets = training_tables()
devices = read_devices(sheets)
read = read_rows(table, devices)
print(f"{len(read.rows)} usable rows, {sum(read.skipped.values())} left out:")
for reason, n in read.skipped.items():
    print(f"  {n:4d} {reason}")


# %%
def few(rows: list[Row]) -> list[Row]:
    """At most `MOST` rows a device, spread over all that it has."""
    by_device: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_device[row.device.name].append(row)
    return [row for own in by_device.values() for row in own[:: max(1, math.ceil(len(own) / MOST))]] if MOST else rows


# %% [markdown]
# ## Physics first, then what physics misses
#
# A sample's target is log(measured / physics). Were the physics perfect it would be 0 everywhere.

# %%
models = Models(without_correction(*stated_document()), devices)
rows = {quantity: few(usable(read.rows, quantity)) for quantity in CHOICES}
samples: dict[str, list[Sample]] = {quantity: samples_of(own, models) for quantity, own in rows.items()}


def error(logs: list[float], own: list[Sample]) -> float:
    """Median over devices of each one's median error, as a fraction."""
    by_device: defaultdict[str, list[float]] = defaultdict(list)
    for sample, log in zip(own, logs, strict=True):
        by_device[sample.device].append(abs(math.exp(-log) - 1))
    return median(median(values) for values in by_device.values())


# %% [markdown]
# ## Unseen devices
#
# Ten folds, grouped by device: each device is predicted by a fit that never saw it.

# %%
checked: dict[str, Validation] = {}
for quantity, own in samples.items():
    names = term_names(own, CHOICES[quantity])
    checked[quantity] = validate(own, names, CHOICES[quantity].penalty)
    before, after = error([each.target for each in own], own), error(list(checked[quantity].residuals), own)
    n = len({each.device for each in own})
    print(f"{quantity}: {len(own)} rows of {n} devices, physics alone {before:.1%}, unseen devices {after:.1%}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5))
for axis, quantity in zip(axes, samples, strict=True):
    measured = [row.rate for row in rows[quantity]]
    predicted = [rate * math.exp(-off) for rate, off in zip(measured, checked[quantity].residuals, strict=True)]
    axis.loglog(measured, predicted, ".", markersize=3)
    axis.loglog([min(measured), max(measured)], [min(measured), max(measured)], linewidth=1)
    axis.set_title(f"{quantity}: unseen devices")
    axis.set_xlabel("measured, tokens/s")
    axis.set_ylabel("predicted, tokens/s")
figure.tight_layout()

# %% [markdown]
# ## Intervals
#
# A family's spread is how far off its unseen devices were; the interval is the multiple of it that holds 90 %, every
# device weighing the same. Row by row it may hold more or less.

# %%
spreads, multiple = spreads_of(samples["tg"], checked["tg"])
held = [
    abs(off) <= multiple * spread_at(spreads, sample.features)
    for sample, off in zip(samples["tg"], checked["tg"].residuals, strict=True)
]
print(f"tg: {sum(held) / len(held):.1%} of rows inside, multiple {multiple:.2f}")

# %%
figure, axis = plt.subplots(figsize=(9, 4.5))
ordered = sorted(spreads.items(), key=lambda item: item[1])
axis.bar([word.removeprefix("family:") for word, _ in ordered], [math.expm1(multiple * each) for _, each in ordered])
axis.set_title("tg: upper half of the interval by family")
axis.set_ylabel("share of the value")
axis.tick_params(axis="x", rotation=70)
figure.tight_layout()

# %% [markdown]
# ## What was learned
#
# The largest terms: what a family, a backend or a quantisation is worth beyond the data sheet.

# %%
names = term_names(samples["tg"], CHOICES["tg"])
fitted = fit(samples["tg"], names, CHOICES["tg"].penalty)
for name, value in sorted(fitted.terms.items(), key=lambda item: -abs(item[1]))[:8]:
    print(f"tg {name:28} x {math.exp(value):.2f}")

# %%
plt.show()
