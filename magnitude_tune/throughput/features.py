"""What the learned correction knows of a device and of a model: words that hold or do not, and a few logarithms.

Nothing here depends on settings, so a correction is worked out once for a model on a device. Nothing depends on a
device's rates either: they act through the physics, where more of them is never slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import Cpu, Device
from magnitude_tune.header.values import ModelHeader, Role
from magnitude_tune.throughput.costs import ModelCosts

__all__ = ["NUMBERS", "ModelTraits", "device_words", "features", "host_words", "is_feature", "model_traits"]

_FAMILIES: Final = (
    ("apple", r"apple m\d|^m[1-9](?: (?:pro|max|ultra))?\b"),
    ("blackwell", r"rtx (?:pro )?50\d0|rtx pro \d{4}|\bgb?(?:10|100|200|300)\b|\bb[123]00\b|dgx spark"),
    ("hopper", r"\bg?h[12]00\b"),
    ("ada", r"rtx 40\d0|\bada\b|\bl40?s?\b"),
    ("ampere", r"rtx 30\d0|rtx a\d{3,4}\b|\ba(?:2|10|16|30|40|100)g?\b|orin"),
    ("turing", r"rtx 20\d0|gtx 16\d0|quadro rtx|titan rtx|\bt(?:4|400|600|1000|1200)\b|\bmx4\d0"),
    ("volta", r"\bv100|titan v|xavier"),
    ("pascal", r"gtx 10\d0|\bp(?:4|40|100|106)\b|titan x|quadro p\d|\bmx[123]\d0"),
    ("maxwell", r"gtx 9\d0|\bm(?:4|10|40|60)\b|quadro m\d|jetson nano|titan x \(maxwell"),
    ("cdna", r"\bmi[123]\d\d"),
    ("gcn", r"\bmi(?:25|50|60)\b|vega|radeon (?:pro )?vii|\brx [45]\d0\b|radeon 7 "),
    ("rdna1", r"\brx 5\d{3}|pro 5\d00"),
    ("rdna2", r"\brx 6\d{3}|\bv620|pro w6\d{3}|\b6[68]0m\b"),
    ("rdna3", r"\brx 7\d{3}|\bw7\d{3}|\b7[0-9]0m\b|\b8[0-9]{2}m\b|80[456]0s|z1 extreme"),
    ("rdna4", r"\brx 9\d{3}|r9[67]00"),
    ("xe2", r"arc (?:pro )?b\d|\b1[34]0v\b|lunar lake"),
    ("xe_lp", r"iris|uhd graphics|arc graphics|meteor lake|arrow lake"),
    ("xe_hpg", r"arc (?:pro )?a\d"),
)
"""Families by the words of a device's name; the first that matches holds."""
_CHECKS: Final = (
    ("laptop", r"laptop|mobile|max-q|\b\d{3,4}m\b"),
    ("stacked", r"\b(?:a30|a100|h[12]00|v100|p100|mi\d+)|titan v|radeon (?:pro )?vii|vega"),
    ("workstation", r"rtx a\d|\bada\b|quadro|\b(?:l4|l40s?|a2|a10|a16|a40)\b|tesla|titan|\bw[67]\d|\bpro\b"),
)
_VENDORS: Final = (
    ("nvidia", frozenset({"blackwell", "hopper", "ada", "ampere", "turing", "volta", "pascal", "maxwell"})),
    ("amd", frozenset({"cdna", "gcn", "rdna1", "rdna2", "rdna3", "rdna4"})),
    ("intel", frozenset({"xe2", "xe_lp", "xe_hpg"})),
)

NUMBERS: Final = ("size", "small", "bits", "moe", "sparsity")
"""Features that are numbers: what a token reads (log GB), how far that lies below 1.5 GB, bits a weight (log), whether
there are experts, and the logarithm of all parameters over those a token uses."""
_SUBJECTS: Final = frozenset(("kind", "family", "backend", "vendor", "quant", "is"))
_LONGEST: Final = 16
_READ: Final = frozenset((Role.ATTENTION, Role.DENSE_FFN, Role.EXPERT_FFN, Role.SHARED_EXPERT, Role.RECURRENT))


class ModelTraits(NamedTuple):
    """A model's features: its words, and its numbers as `NUMBERS` names them."""

    words: frozenset[str]
    numbers: tuple[float, ...]


def is_feature(name: str) -> bool:
    """Whether a name can be a feature: `one`, a number of `NUMBERS`, or a word such as `family:ada`."""
    subject, _, word = name.partition(":")
    return name == "one" or name in NUMBERS or (subject in _SUBJECTS and 0 < len(word) <= _LONGEST and word.isascii())


def device_words(device: Device, kind_name: str) -> frozenset[str]:
    """What holds for an accelerator: kind, backend, family and vendor by its name, laptop part, stacked memory."""
    name = " ".join(re.sub(r"\((?:r|tm|c)\)", " ", device.description[:200].lower()).split())
    words = {f"kind:{kind_name}", f"backend:{device.backend}"}
    family = next((family for family, pattern in _FAMILIES if re.search(pattern, name)), None)
    if family is not None:
        words.add(f"family:{family}")
        words.update(f"vendor:{vendor}" for vendor, families in _VENDORS if family in families)
    if family == "apple" and (generation := re.search(r"\bm(\d)", name)):
        words.add(f"family:m{generation[1]}")
    words.update(f"is:{word}" for word, pattern in _CHECKS if family != "apple" and re.search(pattern, name))
    return frozenset(words)


def host_words(cpu: Cpu) -> frozenset[str]:
    """What holds for the host's processor."""
    arm = cpu.architecture.lower() in ("aarch64", "arm64")
    return frozenset(("kind:cpu", "backend:cpu", "family:arm" if arm else "family:x86"))


def model_traits(header: ModelHeader, costs: ModelCosts) -> ModelTraits:
    """A model's words (the type that most of its bytes have) and numbers; all bounded, whatever the header says."""
    whole = costs.between(0, costs.block_count)
    read = whole.dense_bytes + whole.expert_read_bytes + costs.output.dense_bytes
    flops = whole.dense_flops + whole.expert_flops + costs.output.dense_flops
    size = _log(read / 1e9, -4.0, 6.0)
    moe = 1.0 if whole.expert_bytes > 0 and costs.used_share < 1.0 else 0.0
    numbers = (
        size,
        max(0.0, _log(1.5, -4.0, 6.0) - size),
        _log(16.0 * read / flops if flops > 0 else 1.0, 0.0, 3.5),
        moe,
        moe * _log(2e9 * header.n_params / (flops * 1e9) if flops > 0 else 1.0, 0.0, 4.0),
    )
    kinds: dict[str, float] = {}
    for group in header.groups:
        if group.role in _READ:
            kinds[group.type_name] = kinds.get(group.type_name, 0.0) + group.n_bytes
    most = max(sorted(kinds), key=lambda name: kinds[name], default="")
    words = (f"quant:{most[:3] if most.startswith('iq') else most}",) if most.isidentifier() else ()
    return ModelTraits(frozenset(words), numbers)


def features(words: frozenset[str], model: ModelTraits) -> Mapping[str, float]:
    """All features of a model on a device, by name; absent ones are 0."""
    found = dict.fromkeys((*words, *model.words, "one"), 1.0)
    found.update(zip(NUMBERS, model.numbers, strict=True))
    return found


def _log(value: float, low: float, high: float) -> float:
    return min(max(math.log(value), low), high) if value > 0 else low
