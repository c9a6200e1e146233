"""Checkpoints and the prompt cache: what is kept of conversations, out of what the plan leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from resolver.stand_ins import PlainFootprint, a_header, a_machine, a_subject, an_engine

from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.findings import Place
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape
from magnitude_tune.request import Pin, Request, Settings
from magnitude_tune.resolver.prompt_cache import needs_checkpoints
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import GIB, MIB

ONE = 400 * MIB
"""One checkpoint of the stand-in."""

SLIDING = a_header(layers=(LayerKv(Attention.SLIDING, 16, 8, 1024, 1024),) * 28, sliding_window=1024)


class ForgettingFootprint(PlainFootprint):
    """The plain one, with checkpoints of `ONE` bytes."""

    def footprint(self, settings: Settings) -> Footprint:
        terms = super().footprint(settings).terms
        n_bytes = settings.ctx_checkpoints * settings.n_parallel * ONE
        return Footprint((*terms, terms[0]._replace(name="checkpoints", device="CPU", reserved_bytes=n_bytes)))


def forgetting(total: int) -> Subject:
    """A model with sliding windows on a host of that size."""
    subject = a_subject(SLIDING, a_machine(total=total))
    return subject._replace(footprint=ForgettingFootprint(SLIDING, subject.machine))


def pinned(**values: int) -> Request:
    """A request with these settings pinned."""
    return Request(pins=tuple(Pin(name, value, str(value), Place("a test")) for name, value in values.items()))


@pytest.mark.parametrize(
    ("attention", "needed"),
    [
        (Attention.FULL, False),
        (Attention.MLA, False),
        (Attention.SLIDING, True),
        (Attention.RECURRENT, True),
        (Attention.HYBRID, True),
    ],
)
def test_only_models_that_forget_need_checkpoints(attention: Attention, needed: bool) -> None:
    """Sliding windows and recurrent state cannot be rolled back; one such layer is enough."""
    layers = (*a_header().layers[1:], LayerKv(attention, 16, 8, 1024, 1024))
    assert needs_checkpoints(a_header(layers=layers, recurrent=RecurrentShape(1, 1))) is needed
    assert not needs_checkpoints(a_header(layers=layers, causal=False))


@pytest.mark.parametrize(
    ("total", "checkpoints", "cache_ram"), [(64, 4, 8192), (12, 4, 0), (6, 4, 0), (5, 1, 0), (4.5, 0, 0)]
)
def test_checkpoints_come_before_the_cache(total: float, checkpoints: int, cache_ram: int) -> None:
    """Four, else one, else none; and a cache only where it holds a conversation with its checkpoints."""
    settings = resolve(forgetting(int(total * GIB)), Request()).settings
    assert (settings.ctx_checkpoints, settings.cache_ram) == (checkpoints, cache_ram)


def test_models_that_keep_everything_get_none() -> None:
    """The server would make none, so nothing is asked for and nothing explained away."""
    resolution = resolve(a_subject(machine=a_machine(total=64 * GIB)), Request())
    assert resolution.settings.ctx_checkpoints == 0
    assert not any("checkpoints" in text for text in resolution.given_up)


def test_an_engine_without_a_prompt_cache_makes_no_checkpoints() -> None:
    """The embedded engine has no server that could keep any."""
    subject = forgetting(64 * GIB)._replace(engine=an_engine(prompt_cache=False))
    assert resolve(subject, Request()).settings.ctx_checkpoints == 0


def test_fewer_checkpoints_are_said_to_be_given_up() -> None:
    """Who gets one of four reads so, and why there are any."""
    resolution = resolve(forgetting(5 * GIB), Request())
    assert "context checkpoints (1 of 4 a slot)" in resolution.given_up
    reasons = {reason.setting: reason.text for reason in resolution.reasons}
    assert "goes on from a copy" in reasons["ctx_checkpoints"]


def test_pins_are_kept() -> None:
    """A pinned number of checkpoints and a pinned cache are what runs, also a cache that keeps no conversation."""
    settings = resolve(forgetting(64 * GIB), pinned(ctx_checkpoints=2)).settings
    assert (settings.ctx_checkpoints, settings.cache_ram) == (2, 8192)
    settings = resolve(forgetting(64 * GIB), pinned(ctx_checkpoints=0, cache_ram=256)).settings
    assert (settings.ctx_checkpoints, settings.cache_ram) == (0, 256)


def test_pinned_checkpoints_that_do_not_fit_are_refused() -> None:
    """The refusal names the setting."""
    with pytest.raises(DoesNotFitError, match="context checkpoints") as caught:
        resolve(forgetting(8 * GIB), pinned(ctx_checkpoints=32))
    assert caught.value.where == "ctx_checkpoints"


def test_the_plan_itself_does_not_depend_on_checkpoints() -> None:
    """They take what is left: layers, ubatch and repacking are those of the same model without them."""
    with_them = resolve(forgetting(10 * GIB), Request()).settings
    without = resolve(forgetting(10 * GIB), pinned(ctx_checkpoints=0, cache_ram=0)).settings
    assert replace(with_them, ctx_checkpoints=0, cache_ram=0) == without
