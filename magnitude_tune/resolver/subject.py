"""What a request is resolved for."""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.values import FootprintModel
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.throughput.values import SpeedModel

__all__ = ["Subject"]


class Subject(NamedTuple):
    """A model on a machine with an engine, and what predicts it.

    `machine.devices` are those that the engine can use; `engine` is None where none is known: then settings are
    planned as for the newest llama-server.
    """

    header: ModelHeader
    machine: Fingerprint
    engine: EngineFacts | None
    footprint: FootprintModel
    speed: SpeedModel

    @property
    def has_prompt_cache(self) -> bool:
        """Whether the engine keeps a prompt cache in host memory."""
        return self.engine is None or self.engine.prompt_cache
