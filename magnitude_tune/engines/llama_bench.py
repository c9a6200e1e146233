"""llama-bench as an engine: each piece of work is one process with one configuration, one test and one repetition.

A process for each sample loads the model again, and warms up again, outside of what it times. In return a sample is
taken when it is asked for, so that what disturbed it is known, tests interleave, and a prompt and a generation can have
their own numbers of threads. Time to ready, a server's prompt cache and several slots are nothing it can measure; its
context is only as long as the test, so its memory says nothing about the plan's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from magnitude_tune.engines.buffers import parse_buffers
from magnitude_tune.engines.crashes import engine_crash, oom_kill_count
from magnitude_tune.engines.llama_bench_arguments import build_arguments
from magnitude_tune.engines.server_files import library_dirs
from magnitude_tune.engines.values import BufferLine, Launch, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.processes import child_environment, run

__all__ = ["LlamaBenchSession", "open_session", "read_rows", "samples_of"]

_NAME: Final = "llama-bench"
_PATIENCE_SECONDS: Final = 60.0
_PATIENCE_SECONDS_PER_TOKEN: Final = 5.0
# Enough for the kernels of large batches, which are where repacked weights crash.
_FIRST_TOKENS: Final = 64
_MAX_FALSE_STARTS: Final = 64


def open_session(engine: EngineFacts, launch: Launch) -> LlamaBenchSession:
    """See that llama-bench runs the model with these settings, by reading a short prompt.

    Args:
        engine: a llama-bench found by `find_llama_bench`.

    Raises:
        EngineCrash: it died, failed or hung; carries its own line about the cause and its return code.
        EngineError: it lacks an option that the settings need, or gave no figures.
    """
    session = LlamaBenchSession(engine, launch)
    session.prompt(_FIRST_TOKENS)
    return session


class LlamaBenchSession:
    """An `EngineSession` without a lasting process: see this module's description."""

    ready_seconds: None = None
    pid = 0

    def __init__(self, engine: EngineFacts, launch: Launch) -> None:
        self._engine, self._launch = engine, launch
        self.buffers: tuple[BufferLine, ...] = ()

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read `n_prompt` random tokens after `depth` tokens of context; only the reading is timed.

        Raises:
            EngineCrash: the process died, failed or hung.
            EngineError: it cannot do this, or gave no figures.
        """
        return self._measure(n_prompt, 0, depth)

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Decode `n_gen` tokens, one at a time, after `depth` tokens of context; nothing is sampled.

        Raises:
            EngineCrash: the process died, failed or hung.
            EngineError: it cannot do this, or gave no figures.
        """
        return self._measure(0, n_gen, depth)

    def memory(self) -> None:
        """Nothing: the context of each process is only as long as its test."""

    def close(self) -> None:
        """Nothing to end: each process has ended with its piece of work."""

    def _measure(self, n_prompt: int, n_gen: int, depth: int) -> Sample:
        flags = self._engine.flags
        argv = build_arguments(self._launch, flags, n_prompt=n_prompt, n_gen=n_gen, depth=depth)
        environment, _ = child_environment(self._launch.environment, library_dirs=library_dirs(Path(self._engine.path)))
        # The warm-up does a prompt's work once more.
        patience = _PATIENCE_SECONDS + 2 * _PATIENCE_SECONDS_PER_TOKEN * (n_prompt + n_gen + depth)
        oom_kills = oom_kill_count()
        done = run(
            [self._engine.path, *argv],
            timeout_seconds=self._launch.ready_timeout_seconds + patience,
            env=environment,
        )
        if done.returncode != 0:
            # The code comes before the rows: a row that was printed before a crash is no measurement.
            raise engine_crash(_NAME, done.returncode, done.stderr, oom_kills_before=oom_kills)
        self.buffers = self.buffers or parse_buffers(done.stderr)
        return _one_sample(read_rows(done.stdout), n_prompt, n_gen)


def _one_sample(rows: tuple[Mapping[str, Any], ...], n_prompt: int, n_gen: int) -> Sample:
    if len(rows) != 1:
        raise EngineError(
            f"it ended well but printed {len(rows)} rows of figures instead of one",
            where=_NAME,
            hint="run it by hand with -o jsonl, or use another engine",
        )
    did = tuple(rows[0].get(name) for name in ("n_prompt", "n_gen"))
    if did != (n_prompt, n_gen):
        raise EngineError(f"asked for pp{n_prompt}, tg{n_gen}, its row is of pp{did[0]}, tg{did[1]}", where=_NAME)
    samples = samples_of(rows[0])
    if not samples:
        raise EngineError("its row holds no time above zero", where=_NAME, hint="measure more tokens")
    return samples[0]


def read_rows(text: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of figures in llama-bench's json or jsonl output, whatever stands before, between and behind them.

    A row that is cut off, as by a crash, is left out. Which fields a row has differs from build to build.
    """
    decoder, rows = json.JSONDecoder(), []
    position = false_starts = 0
    while false_starts < _MAX_FALSE_STARTS and (start := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            position, false_starts = start + 1, false_starts + 1
            continue
        if isinstance(value, dict) and {"n_prompt", "n_gen"} <= value.keys():
            rows.append(value)
    return tuple(rows)


def samples_of(row: Mapping[str, Any]) -> tuple[Sample, ...]:
    """One sample for each repetition in a row, from its `samples_ns`, or its `avg_ns` where it has no samples.

    The row's own deviation is not used: `stddev_ns` overflows on repetitions longer than about 2 s. A time of zero,
    as a clock that is switched off gives, is no sample.
    """
    n_tokens = sum(value for name in ("n_prompt", "n_gen") if isinstance(value := row.get(name), int))
    times = row.get("samples_ns")
    if not isinstance(times, list):
        times = [row.get("avg_ns")]
    return tuple(
        Sample(n_tokens, nanoseconds / 1e9)
        for nanoseconds in times
        if isinstance(nanoseconds, int | float)
        and not isinstance(nanoseconds, bool)
        and math.isfinite(nanoseconds)
        and nanoseconds > 0
        and n_tokens > 0
    )
