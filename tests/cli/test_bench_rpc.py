"""`bench` over RPC on loopback: a second device with real arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.console import run

from magnitude_tune import processes
from magnitude_tune.fingerprint.values import EngineFacts

HALF = 10  # of 19 layers: the output layer and the last nine blocks


@pytest.mark.engine
def test_half_the_layers_are_offloaded(
    real_model: Path, real_server: EngineFacts, rpc_server: tuple[str, processes.Child]
) -> None:
    """The offload is confirmed from the engine's buffer lines, and its bytes are the predicted ones."""
    address, _ = rpc_server
    options = ("--rpc", address, "--engine-path", real_server.path, "--n-gpu-layers", str(HALF), "--n-ctx", "1024")
    done = run("bench", real_model, *options, "--budget", "10", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["resolution"]["settings"]["n_gpu_layers"] == HALF
    on_rpc = {line["kind"]: 0 for line in document["buffers"]}
    for line in document["buffers"]:
        if line["buffer"].startswith("RPC0"):
            on_rpc[line["kind"]] += line["n_bytes"]
    predicted = {
        term["name"]: term["reserved_bytes"] for term in document["resolution"]["terms"] if term["device"] == "RPC0"
    }
    printed_precision = 2 * 0.005 * (1 << 20)
    assert abs(on_rpc["model"] - predicted["weights"]) <= printed_precision
    assert abs(on_rpc["kv"] - predicted["kv_cache"]) <= 2 * printed_precision
    assert "MT027" not in {finding["id"] for finding in document["findings"]}
    assert document["measured"]["tg"]["n"] >= 1
