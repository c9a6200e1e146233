"""Memory bandwidth: measured once, cached, guessed where it cannot be measured."""

from __future__ import annotations

import time

import pytest

from magnitude_tune.fingerprint import copy_rate
from magnitude_tune.fingerprint.bandwidth import cached_bandwidth, guessed_bandwidth, measured_bandwidth
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.copy_rate import Measured, Slice, buffer_bytes, joint_rate, measure

MIB = 1 << 20
GIB = 1 << 30
MACHINE = ("A processor", 4, 16 * GIB)


class Script:
    """Stands in for the measurement: gives one figure after the other, and counts."""

    def __init__(self, *figures):
        self.figures = list(figures)
        self.calls = []

    def __call__(self, threads, total_bytes):
        self.calls.append((threads, total_bytes))
        return self.figures.pop(0)


@pytest.fixture
def script(monkeypatch):
    """Put scripted measurements in the place of real ones."""

    def put(*figures):
        made = Script(*figures)
        monkeypatch.setattr(copy_rate, "measure", made)
        return made

    return put


def test_a_figure_is_measured_once(script):
    """The second look takes the first one's figure from the cache, dated."""
    made = script(Measured(25e9, False))
    first = measured_bandwidth(*MACHINE, 8 * GIB)
    assert first is not None
    assert first.value == 25e9
    assert first.source == time.strftime("measured %Y-%m-%d", time.gmtime())
    assert measured_bandwidth(*MACHINE, 8 * GIB) == first
    assert cached_bandwidth(*MACHINE) == first
    assert len(made.calls) == 1


@pytest.mark.parametrize("other", [("Another", 4, 16 * GIB), ("A processor", 2, 16 * GIB), ("A processor", 4, 2 * GIB)])
def test_another_machine_or_limit_is_measured_apart(script, other):
    """Processor, cores and memory are the key, and one does not push the other out."""
    script(Measured(25e9, False), Measured(12e9, False))
    measured_bandwidth(*MACHINE, 8 * GIB)
    assert cached_bandwidth(*other) is None
    measured_bandwidth(*other, 8 * GIB)
    kept = cached_bandwidth(*MACHINE)
    assert kept is not None
    assert kept.value == 25e9


def test_a_disturbed_figure_is_taken_again_later_and_the_higher_kept(script, monkeypatch):
    """Other work makes a figure too low: ten minutes later it is taken again; a lower one never replaces a higher."""
    made = script(Measured(14e9, True), Measured(26e9, True), Measured(20e9, False))
    now = time.time()
    rates = []
    for minutes in (0, 5, 11, 22, 40):
        monkeypatch.setattr(time, "time", lambda minutes=minutes: now + 60 * minutes)
        fact = measured_bandwidth(*MACHINE, 8 * GIB)
        assert fact is not None
        rates.append(fact.value)
    assert rates == [14e9, 14e9, 26e9, 26e9, 26e9]
    assert len(made.calls) == 3
    assert "beside other work" not in fact.source


def test_a_damaged_cache_is_measured_over(script, own_home):
    """Whatever the cache file holds, the figure is a figure."""
    script(Measured(25e9, False), Measured(24e9, False))
    measured_bandwidth(*MACHINE, 8 * GIB)
    (path,) = (own_home / "cache").glob("bandwidth-*.json")
    path.write_text(path.read_text().replace("25000000000.0", '"fast"'))
    fact = measured_bandwidth(*MACHINE, 8 * GIB)
    assert fact is not None
    assert fact.value == 24e9


def test_buffers_are_large_but_modest():
    """Beyond common caches, at most an eighth of what is free, none where that would measure a cache."""
    assert buffer_bytes(24 * GIB, 2) == 544 * MIB
    assert buffer_bytes(512 * GIB, 128) == 2560 * MIB
    assert buffer_bytes(10 * GIB, 1024) == 10 * GIB // 8
    assert buffer_bytes(1 * GIB, 4) == 128 * MIB
    assert buffer_bytes(256 * MIB, 4) == 0


def test_copying_gives_a_rate():
    """One thread copies a small buffer and gets a rate that memory can have; a size below a page measures nothing."""
    found = measure(1, 8 * MIB)
    assert found is None or 1e7 < found.rate < 1e14
    assert measure(4, 4096) is None


def on_core(start, seconds=0.001):
    """A slice whose thread kept its core."""
    return Slice(start, start + seconds, seconds)


def cut_short(start, seconds=0.004):
    """A slice during which other work had the core for three quarters of the time."""
    return Slice(start, start + seconds, seconds / 4)


def test_only_moments_on_the_core_count():
    """Slices that other work cut short lower nothing: the rate is that of the moments both threads had."""
    alone = [on_core(i / 1000) for i in range(100)]
    undisturbed = joint_rate([alone, alone], 10**6)
    assert undisturbed == Measured(pytest.approx(2e9), False)
    half = [on_core(i / 1000) if i % 20 < 4 else cut_short(i / 1000, 0.001) for i in range(100)]
    disturbed = joint_rate([alone, half], 10**6)
    assert disturbed is not None
    assert disturbed.rate == pytest.approx(2e9)
    assert disturbed.disturbed


def test_threads_that_never_ran_together_give_no_figure():
    """Rates of threads that took turns are not summed: memory was never shared then."""
    first = [on_core(i / 1000) if i < 50 else cut_short(i / 1000, 0.001) for i in range(100)]
    second = [cut_short(i / 1000, 0.001) if i < 50 else on_core(i / 1000) for i in range(100)]
    assert joint_rate([first, second], 10**6) is None
    assert joint_rate([[], []], 10**6) is None
    assert joint_rate([], 10**6) is None


def test_one_thread_of_many_may_be_off_its_core():
    """With eight threads, one kept off its core lowers the sum by its share and no more."""
    steady = [on_core(i / 1000) for i in range(50)]
    off = [cut_short(i / 1000, 0.001) for i in range(50)]
    found = joint_rate([steady] * 7 + [off], 10**6)
    assert found is not None
    assert found.rate == pytest.approx(7e9)


def test_without_threads_or_memory_nothing_is_measured(monkeypatch):
    """Threads or memory that cannot be had make no figure and no error."""

    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(copy_rate, "_copier", refuse)
    assert measure(2, 8 * MIB) is None


def test_the_guess_is_modest_grows_with_cores_and_says_so():
    """More cores never lower the guess, and it says that it is one."""
    guesses = [guessed_bandwidth(cores) for cores in range(1, 200)]
    values = [guess.value for guess in guesses]
    assert values == sorted(values)
    assert (values[1], values[3], values[-1]) == (20e9, 40e9, 200e9)
    assert all(guess.source.startswith("guessed") for guess in guesses)


def test_cached_only_never_measures(script):
    """Where only the cache may be used, nothing is measured: the figure is a guess."""
    made = script()
    fact = collect(cached_only=True).cpu.bandwidth
    assert made.calls == []
    assert fact.source.startswith("guessed")


def test_too_little_memory_to_measure_is_noted(script):
    """A machine with too little free memory gets a guess and a note."""
    script(None)
    fingerprint = collect()
    assert fingerprint.cpu.bandwidth.source.startswith("guessed")
    assert any("bandwidth could not be measured" in note.message for note in fingerprint.notes)
