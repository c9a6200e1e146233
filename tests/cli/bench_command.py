"""`bench` run in the test's own process, on a stand-in engine and plan."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence

import pytest
from bench.stand_ins import FakeSession, a_header, a_machine, a_resolution, an_engine

from magnitude_tune.bench.run import Opener
from magnitude_tune.cli.app import main
from magnitude_tune.observations.store import store_path
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.request import Request

Bench = Callable[..., int]


def a_resolved(**changes: object) -> Resolved:
    """What the pipeline would have given."""
    resolved = Resolved(
        resolution=a_resolution(),
        request=Request(),
        header=a_header(),
        machine=a_machine(),
        engine=an_engine(),
        rpc=(),
        agent=None,
    )
    return resolved._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def session() -> FakeSession:
    """A steady engine: 200 t/s reading, 40 t/s writing."""
    return FakeSession()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, session: FakeSession) -> Bench:
    """Runs the command in this process on a stand-in engine and plan; gives the exit code."""

    def command(
        *arguments: str,
        plans: Sequence[Resolved] = (),
        opener: Opener | None = None,
        free: Sequence[int] = (),
    ) -> int:
        coming = iter(plans or [a_resolved()])
        monkeypatch.setattr("magnitude_tune.pipeline.resolve.resolve_request", lambda _: next(coming))
        readings = iter(free)
        monkeypatch.setattr("magnitude_tune.pipeline.machine.find_machine", lambda **_: a_machine(next(readings, None)))
        monkeypatch.setattr("magnitude_tune.engines.sessions.open_or_without_repack", opener or session.opener)
        # This machine's own neighbours are no part of these tests.
        monkeypatch.setattr("magnitude_tune.bench.disturbance.busy_cores", lambda *_, **__: 0.0)
        monkeypatch.setattr("magnitude_tune.bench.taking.doubts", lambda *_, **__: ())
        monkeypatch.setattr(sys, "argv", ["magnitude-tune", "bench", "model.gguf", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    return command


def n_stored() -> int:
    """Rows in the store."""
    connection = sqlite3.connect(store_path())
    (count,) = connection.execute("SELECT count(*) FROM llama_bench").fetchone()
    connection.close()
    return int(count)
