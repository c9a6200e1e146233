"""The real server with checkpoints: conversations go on where they were left, within what is reserved."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magnitude_tune.engines.llama_server import open_session
from magnitude_tune.engines.server_client import ServerClient
from magnitude_tune.engines.values import Launch
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

N_PROMPT = 700
"""More than the real model's window of 512 tokens."""

SETTINGS = Settings(
    n_gpu_layers=0,
    n_threads=2,
    n_threads_batch=2,
    n_batch=512,
    n_ubatch=512,
    n_ctx=2048,
    cache_ram=64,
    ctx_checkpoints=1,
)


@pytest.mark.engine
def test_a_conversation_goes_on_after_another_one(real_server: EngineFacts, real_model: Path) -> None:
    """One checkpoint is enough: a second turn reads only what is new, although another conversation came between."""
    source = random.Random(1)  # noqa: S311 - the same tokens every time, no secret
    first, other, more = ([source.randrange(1000, 200_000) for _ in range(n)] for n in (N_PROMPT, N_PROMPT, 50))
    session = open_session(real_server, Launch(model_path=str(real_model), settings=SETTINGS))
    try:
        # A depth is read first and kept, also where the window has moved on.
        assert session.prompt(32, depth=N_PROMPT).n_tokens == 32
        client = ServerClient(session.port)
        before = session.memory()
        for tokens in (first, other):
            _read(client, tokens)
        n_read, n_kept = _read(client, first + more)
        after = session.memory()
    finally:
        session.close()
    assert n_kept >= N_PROMPT - 8
    assert n_read <= len(more) + 8
    checkpoint = 7.6 * MIB
    assert after.peak_resident_bytes - before.peak_resident_bytes <= SETTINGS.cache_ram * MIB + checkpoint


def _read(client: ServerClient, tokens: list[int]) -> tuple[int, int]:
    body: dict[str, object] = {"prompt": tokens, "n_predict": 4, "temperature": 0, "cache_prompt": True}
    answer = client.complete(body, timeout_seconds=300)
    return answer.count("timings", "prompt_n") or 0, answer.count("timings", "cache_n") or 0
