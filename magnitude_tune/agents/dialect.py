"""What a dialect has to say: where its block is, and how it names the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from magnitude_tune.agents.document import AgentDocument
from magnitude_tune.agents.nodes import MappingNode

__all__ = ["ALIASES", "NAMES", "Dialect", "canonical_name"]

NAMES: Final = frozenset({
    "magnitude",
    "model",
    "engine",
    "n_ctx",
    "n_parallel",
    "kv_unified",
    "n_gpu_layers",
    "n_threads",
    "n_threads_batch",
    "n_batch",
    "n_ubatch",
    "flash_attn",
    "type_k",
    "type_v",
    "load_mode",
    "repack",
    "cache_ram",
    "ctx_checkpoints",
    "n_cpu_moe",
    "tensor_split",
    "main_gpu",
    "mmproj",
    "no_mmproj_offload",
    "model_draft",
    "spec_type",
    "n_gpu_layers_draft",
    "type_k_draft",
    "type_v_draft",
    "workload",
    "allow",
    "allow_overcommit",
    "target",
})  # fmt: skip
"""Names that a block may use in every dialect."""

ALIASES: Final[Mapping[str, str]] = {
    "backend": "engine",
    "model_path": "model",
    "ctx_size": "n_ctx",
    "max_ctx_size": "n_ctx",
    "gpu_layers": "n_gpu_layers",
    "ngl": "n_gpu_layers",
    "threads": "n_threads",
    "threads_batch": "n_threads_batch",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "parallel": "n_parallel",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "mmproj_path": "mmproj",
    "draft_model": "model_draft",
    "gpu_layers_draft": "n_gpu_layers_draft",
    "cache_type_k_draft": "type_k_draft",
    "cache_type_v_draft": "type_v_draft",
    "mmap": "load_mode",
    "use_mmap": "load_mode",
}
"""Other names of the same settings, as llama.cpp's options and its launchers write them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way of writing a request into a file.

    Args:
        name: what `--dialect` would call it.
        find: the block of settings in a document; None where the document is of another dialect.
        written_names: how the dialect names settings where it doesn't use ours; used for keys that are added.
        owns_block: every key of the block is a setting, so each unknown one is reported; else only likely slips are.
    """

    name: str
    find: Callable[[AgentDocument], MappingNode | None]
    written_names: Mapping[str, str] = field(default_factory=dict)
    owns_block: bool = True


def canonical_name(key: str) -> str | None:
    """Our name of a setting, from any of its names, with dashes or underscores; None for an unknown key."""
    name = key.replace("-", "_")
    if name in NAMES:
        return name
    return ALIASES.get(name)
