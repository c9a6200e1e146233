"""Fixtures for the plumbing of a bench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.stand_ins import FakeSession, StubWatch, a_header, a_machine, a_resolution, an_engine

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.run import Subject


@pytest.fixture
def session() -> FakeSession:
    """A steady engine: 200 t/s reading, 40 t/s writing."""
    return FakeSession()


@pytest.fixture
def subject() -> Subject:
    """What a bench is given."""
    return Subject(resolution=a_resolution(), header=a_header(), engine=an_engine(), machine=a_machine())


@pytest.fixture
def watch_with(tmp_path: Path, session: FakeSession) -> Callable[..., Watch]:
    """Makes a watch on the session's clock; each number is how many cores others keep busy in one piece of work."""
    return lambda *busy: StubWatch(tmp_path, session.clock, iter(busy))
