"""Field reports about threads and batches, end to end: the plan that people get, with the real models."""

from __future__ import annotations

from itertools import pairwise

import pytest
from resolver.real_subjects import a_model, a_real_subject
from resolver.stand_ins import a_machine
from resolver.test_resolve import a_card_machine, pin

from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.request import Request
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.units import GIB, MIB

MAGNITUDES = (0.5, 1.0, 2.0, 3.0, 3.7, 4.0, 4.4, 5.0, 6.0)


@pytest.mark.parametrize("cores", [8, 16])
def test_b04_the_count_is_said_and_never_beyond_the_cores(cores: int) -> None:
    """Field report B04: on 8 cores with 16 threads (or 16 with 128) the plan states a count, at most the cores."""
    subject = a_real_subject(a_model([60 * MIB] * 20), a_machine(cores=cores))
    for magnitude in MAGNITUDES:
        settings = resolve(subject, Request(magnitude=magnitude)).settings
        assert 1 <= settings.n_threads <= cores
        assert 1 <= settings.n_threads_batch <= cores


@pytest.mark.parametrize(("cores", "hyperthreads"), [(8, 16), (16, 128)])
@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch"])
def test_b04_threads_beyond_the_cores_are_refused_by_name(cores: int, hyperthreads: int, name: str) -> None:
    """Field report B04: a config that asks for every hyperthread is told how many cores are usable."""
    subject = a_real_subject(a_model([60 * MIB] * 20), a_machine(cores=cores))
    with pytest.raises(DoesNotFitError, match=f"{hyperthreads} threads do not fit .* {cores} cores are usable"):
        resolve(subject, Request(magnitude=6.0, pins=(pin(name, hyperthreads),)))


@pytest.mark.parametrize("cores", [2, 8, 16])
def test_b23_more_magnitude_never_predicts_less_speed(cores: int) -> None:
    """Field report B23: the predicted turn never gets longer as the magnitude rises, nor the rates worth the name."""
    subject = a_real_subject(a_model([60 * MIB] * 20), a_machine(cores=cores))
    found = [resolve(subject, Request(magnitude=m)).predicted for m in MAGNITUDES]
    turns = [speed.turn_seconds.value for speed in found]
    # Among plans within 3 % of the best the gentlest is taken.
    assert all(later <= earlier * 1.03 for earlier, later in pairwise(turns))
    rates = [speed.tg.value for speed in found]
    assert all(later >= earlier * 0.94 for earlier, later in pairwise(rates))


def test_b23_fully_offloaded_few_threads_suffice() -> None:
    """Field report B23: with every layer on the card, the host's threads are as few as serve it."""
    subject = a_card_machine()
    settings = resolve(subject, Request()).settings
    assert settings.n_gpu_layers == subject.header.all_layers
    real = a_real_subject(a_model([60 * MIB] * 20), subject.machine)
    assert resolve(real, Request()).settings.n_threads <= 2


def test_b30_a_raised_batch_raises_the_physical_one_of_an_embedding_model() -> None:
    """Field report B30: n_batch 1024 with n_ubatch left alone: both hold the longest input, or the plan says no."""
    subject = a_real_subject(a_model([20 * MIB] * 12, causal=False, context_length=8192), a_machine(total=64 * GIB))
    settings = resolve(subject, Request(n_ctx=8192, pins=(pin("n_batch", 1024),))).settings
    assert settings.n_ubatch == settings.n_batch


@pytest.mark.parametrize(("n_batch", "n_ctx"), [(1, 512), (512, 4096), (10**9, 2048)])
def test_b82_batches_stay_between_one_and_the_context(n_batch: int, n_ctx: int) -> None:
    """Field report B82: 1 <= n_ubatch <= n_batch <= n_ctx, for a batch of one token as for one beyond every context."""
    subject = a_real_subject(a_model([60 * MIB] * 20), a_machine())
    settings = resolve(subject, Request(n_ctx=n_ctx, pins=(pin("n_batch", n_batch),))).settings
    assert 1 <= settings.n_ubatch <= settings.n_batch == min(n_batch, n_ctx)
