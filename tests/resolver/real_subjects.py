"""Subjects with the real models of memory and speed, from headers of plain sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolver.stand_ins import a_header, an_engine

from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, Role, TensorGroup
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.throughput.coefficients import parse_coefficients
from magnitude_tune.throughput.model import speed_model
from magnitude_tune.units import MIB

SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"


def group(block: int | None, role: Role, n_bytes: int) -> TensorGroup:
    """Tensors of one role, none of which is ever repacked."""
    return TensorGroup(block, role, "q4_k", 1, n_bytes * 16 // 9, n_bytes, n_bytes, 0)


def a_model(dense: Sequence[int], experts: Sequence[int] = (), *, kv_width: int = 1024, **changes: Any) -> ModelHeader:
    """A model with those bytes of dense weights, and of experts, in each block."""
    groups = [group(None, Role.TOKEN_EMBEDDING, 200 * MIB), group(None, Role.OUTPUT, 200 * MIB)]
    groups += [group(block, Role.ATTENTION, n_bytes) for block, n_bytes in enumerate(dense)]
    groups += [group(block, Role.EXPERT_FFN, n_bytes) for block, n_bytes in enumerate(experts) if n_bytes]
    layers = (LayerKv(Attention.FULL, 32, kv_width // 128, kv_width, kv_width),) * len(dense)
    total = sum(each.n_bytes for each in groups)
    return a_header(len(dense), **{"groups": tuple(groups), "layers": layers, "tensor_bytes": total, **changes})


def a_real_subject(header: ModelHeader, machine: Fingerprint) -> Subject:
    """The model on the machine, with everything predicted as it is for users."""
    coefficients = parse_coefficients(json.loads(SHIPPED.read_bytes()), "throughput.json")
    engine = an_engine()
    footprint = footprint_model(header, machine, engine)
    return Subject(header, machine, engine, footprint, speed_model(header, machine, engine, coefficients))
