"""A made-up replay table of the measured ones' form: shipped predictions, wrong in the ways that machines are."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from throughput.conftest import accelerator, header, machine

from magnitude_tune.fingerprint.stored import to_document
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.header.cached import header_document
from magnitude_tune.header.values import ShardFile
from magnitude_tune.pipeline.resolve import shipped_coefficients
from magnitude_tune.request import Settings
from magnitude_tune.throughput.model import PhysicsModel

_SHARDS = (ShardFile("model.gguf", 1, 0),)
TURN = {"n_prompt": 256, "n_gen": 32}
CORES = 4


def _machine() -> Fingerprint:
    rpc = accelerator("RPC0", backend="rpc", pool="ram", bandwidth=machine().cpu.bandwidth, flops=machine().cpu.flops)
    return machine(rpc, cores=CORES)


def _settings() -> list[tuple[dict[str, Any], Settings]]:
    usual = {"threads": CORES, "ubatch": 512, "flash_attn": True, "depth": 0, "offloaded": 0.0, "rpc_threads": 0}
    changes: list[dict[str, Any]] = [
        {},
        *({"threads": n} for n in (1, 2, 8)),
        *({"ubatch": n} for n in (16, 32, 64, 128, 256)),
        *({"threads": n, "ubatch": 64} for n in (1, 2, 8)),
        {"flash_attn": False},
        {"flash_attn": False, "threads": 1},
        {"depth": 2048},
        {"depth": 2048, "threads": 1},
        *({"offloaded": share, "rpc_threads": n} for share in (0.5, 1.0) for n in (1, 2)),
        *({"offloaded": 1.0, "rpc_threads": n, "threads": 1} for n in (1, 2)),
        *({"offloaded": 0.5, "rpc_threads": n, "ubatch": 64} for n in (1, 2)),
    ]
    found = []
    for change in changes:
        setting = usual | change
        layers = round(setting["offloaded"] * header().all_layers)
        settings = Settings(
            n_gpu_layers=layers,
            n_threads=setting["threads"],
            n_threads_batch=setting["threads"],
            n_batch=512,
            n_ubatch=setting["ubatch"],
            n_ctx=4096 if setting["depth"] else 1024,
            flash_attn=setting["flash_attn"],
            devices=("RPC0",) if layers else (),
        )
        found.append((setting, settings))
    return found


def write_table(path: Path, *, scatter: float = 0.01, structure: float = 1.0, seed: int = 1) -> Path:
    """Write a table whose machine is 30 % slower than predicted, best at half its cores and small batches.

    Args:
        scatter: standard deviation of the logarithm between runs.
        structure: how much settings differ beyond the prediction; 0 makes every turn the same.
    """
    dice = random.Random(seed)  # noqa: S311 - a table, nothing secret
    speed = PhysicsModel(header(), _machine(), _engine(), shipped_coefficients(), n_prompt=TURN["n_prompt"])
    rows = []
    for setting, settings in _settings():
        off = 0.7 if setting["offloaded"] == 0 else 0.35 * setting["rpc_threads"]
        off *= 1.5 if setting["threads"] == 2 else 1.0
        off *= 1.15 if setting["ubatch"] == 64 else 1.0
        rates = {}
        for quantity in ("pp", "tg"):
            shipped = speed.shipped_rate(settings, quantity, setting["depth"])
            rates[quantity] = shipped * off if structure else {"pp": 200.0, "tg": 20.0}[quantity]
        rounds = []
        for number in range(3):
            run = math.exp(dice.gauss(0.0, scatter))
            rounds.append(
                {
                    "started_at": f"2026-12-01T00:00:0{number}Z",
                    **{q: [rate * run * (1 + 0.01 * k) for k in (-1, 0, 1)] for q, rate in rates.items()},
                    "doubted": 0,
                    "disturbance": {"notes": []},
                }
            )
        rows.append({"setting": setting, "settings": asdict(settings), "rounds": rounds, "failure": None})
    document = {
        "schema_version": 1,
        "turn": TURN,
        "model": {"path": "model.gguf", "header": header_document(replace(header(), shards=_SHARDS))},
        "machine": to_document(_machine()),
        "engine": json.loads(TypeAdapter(EngineFacts).dump_json(_engine())),
        "rows": rows,
    }
    path.write_text(json.dumps(document))
    return path


def _engine() -> EngineFacts:
    return replace(EngineFacts(name="llama_server", path="llama-server", build="b10434", ggml_version="0.25.3"))
