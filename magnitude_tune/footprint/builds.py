"""Rules that changed between builds of the engine, tied to the version of its tensor library.

What was seen: ggml 0.20.0 by the buffer lines and the memory of its llama-server, ggml 0.25.3 in its source and by
llama-cpp-python. A version between the two is taken for the newer one.

Seen and not modelled: where an architecture has a default period of sliding blocks, ggml 0.20.0 takes an array in the
file for a period of 0, so that every block slides; 0.25.3 reads the array.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from magnitude_tune.units import GIB

__all__ = ["BuildRules", "build_rules"]

_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_OLD: Final = (0, 20)


class BuildRules(NamedTuple):
    """What one build does in its own way.

    Args:
        packs_first: without mmap, repacked matrices are read before the plain tensors, not in the order of the
            buffers' names (AMX, CPU, CPU_REPACK): their read buffer then fits into memory that is needed later.
        lazy_above_bytes: per-layer embeddings larger than this stay in the file and are mapped whatever the load
            mode; None where the build does not know that.
        mtp_caches_trunk: a context that drafts with the model's own blocks caches all blocks, of hybrids only those.
    """

    packs_first: bool = True
    lazy_above_bytes: int | None = 4 * GIB
    mtp_caches_trunk: bool = False


_NEWEST: Final = BuildRules()
_RULES_UP_TO_0_20: Final = BuildRules(packs_first=False, lazy_above_bytes=None, mtp_caches_trunk=True)


def build_rules(ggml_version: str | None) -> BuildRules:
    """The rules of a build by its ggml version, `0.25.3` for instance; the newest ones where it is not known."""
    match = _VERSION.match(ggml_version or "")
    if match is None:
        return _NEWEST
    return _RULES_UP_TO_0_20 if (int(match[1]), int(match[2])) <= _OLD else _NEWEST
