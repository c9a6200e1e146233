"""The peak resident memory of a real run against the footprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_tune.engines.find import find_engines
from magnitude_tune.engines.sessions import open_session
from magnitude_tune.engines.values import Launch
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.read import read_model
from magnitude_tune.pipeline.machine import find_machine
from magnitude_tune.request import Settings


@pytest.mark.engine
def test_the_peak_is_what_was_predicted(real_model: Path) -> None:
    """A full context of the embedded engine peaks within 10 % of what is resident, and never above what is reserved.

    `tests/benchmarks/peak_memory.py` measures many settings, to 5 %.
    """
    engine = next((each for each in find_engines() if each.name == "llama_cpp_python" and not each.problem), None)
    if engine is None:
        pytest.skip("the embedded engine is not installed")
    settings = Settings(
        n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=512, n_ctx=1024, load_mode="none"
    )
    footprint = footprint_model(read_model(real_model), find_machine(), engine).footprint(settings)
    session = open_session(engine, Launch(model_path=str(real_model), settings=settings))
    try:
        session.prompt(900)
        memory = session.memory()
    finally:
        session.close()
    assert memory is not None
    resident = sum(term.resident_bytes for term in footprint.terms)
    reserved = sum(term.reserved_bytes for term in footprint.terms)
    assert resident == pytest.approx(memory.peak_resident_bytes, rel=0.10)
    assert memory.peak_resident_bytes <= reserved
