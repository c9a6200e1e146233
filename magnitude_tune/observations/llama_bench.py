"""Stored rows in the shape that llama-bench writes, so that tools made for it read them."""

from __future__ import annotations

import json
import sqlite3
from typing import Final

from magnitude_tune.observations.schema import connect_to_read
from magnitude_tune.observations.store import damaged_rows_said, opened, require_plain, store_path

__all__ = ["BOOLEANS", "COLUMNS", "INTEGERS", "REALS", "TEXTS", "exported_rows"]

BOOLEANS: Final = frozenset({"cpu_strict", "no_kv_offload", "embeddings", "no_host"})
"""Columns that llama-bench writes as `true` and `false` in JSON, and as 0 and 1 elsewhere."""

COLUMNS: Final = (
    *("build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type"),
    *("model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll"),
    *("type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn"),
    *("devices", "tensor_split", "tensor_buft_overrides", "load_mode", "lazy_mode", "embeddings", "no_op_offload"),
    *("no_host", "repack", "fit_target", "fit_min_ctx", "n_prompt", "n_gen", "n_depth", "test_time"),
    *("avg_ns", "stddev_ns", "avg_ts", "stddev_ts"),
)
"""llama-bench's columns in its order."""

REALS: Final = frozenset({"avg_ts", "stddev_ts"})
TEXTS: Final = frozenset(
    {
        *("build_commit", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "cpu_mask"),
        *("type_k", "type_v", "split_mode", "devices", "tensor_split", "tensor_buft_overrides"),
        *("load_mode", "lazy_mode", "test_time"),
    }
)
INTEGERS: Final = frozenset(COLUMNS) - REALS - TEXTS


def exported_rows(*, model_hash: str | None = None, model_text: str | None = None) -> tuple[dict[str, object], ...]:
    """Every stored row, oldest first: llama-bench's columns, then `samples_ns` and `samples_ts`, as its JSON has them.

    Args:
        model_hash: only rows of the model with this content.
        model_text: only rows whose model's file name, type or hash holds this text, whatever its case.

    Raises:
        UsageError: the store cannot be read.
    """
    if not store_path().exists():
        return ()
    query = (
        # Column names are this module's own constants; values are bound.
        f"SELECT {', '.join(COLUMNS)}, samples FROM llama_bench "  # noqa: S608
        "WHERE (?1 IS NULL OR model_hash = ?1) AND (?2 IS NULL OR instr(lower("
        "coalesce(model_filename, '') || char(10) || coalesce(model_type, '') || char(10) || model_hash"
        "), lower(?2))) ORDER BY rowid"
    )
    with opened(connect_to_read) as connection, damaged_rows_said():
        connection.row_factory = sqlite3.Row
        return tuple(_document(row) for row in connection.execute(query, (model_hash, model_text)))


def _document(row: sqlite3.Row) -> dict[str, object]:
    require_plain(row)
    document: dict[str, object] = {name: row[name] for name in COLUMNS}
    for name in BOOLEANS:
        document[name] = bool(document[name])
    samples = [(int(n_tokens), float(seconds)) for n_tokens, seconds in json.loads(row["samples"])]
    document["samples_ns"] = [round(seconds * 1e9) for _, seconds in samples]
    document["samples_ts"] = [n_tokens / seconds for n_tokens, seconds in samples]
    return document
