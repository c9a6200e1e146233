"""NVIDIA's management library, by the `pynvml` module of the extra `nvidia`: faster than `nvidia-smi`, and exact."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from magnitude_tune.fingerprint.cards import Bus, NvidiaCard

__all__ = ["ask_nvml", "load_nvml"]

ANSWER_SECONDS: Final = 10.0
"""A driver without persistence mode takes seconds to wake, more with many cards: a shorter wait would plan a sound
machine without them. It is waited for once: `nvidia-smi` asks the same driver, and is not asked after that."""

_MOST_CARDS: Final = 64
_MOST_INSTANCES: Final = 16
_MOST_BYTES: Final = 1 << 50


def load_nvml() -> Any | None:
    """The `pynvml` module, None where it is not installed or cannot be imported."""
    try:
        import pynvml
    except Exception:  # noqa: BLE001  (whatever a stranger's module raises, nvidia-smi is asked instead)
        return None
    return pynvml


def ask_nvml(nvml: Any) -> list[NvidiaCard] | None:
    """Cards in the bus's order, a divided one as its MIG instances; None where the library cannot say.

    The library runs in this process, so a driver that hangs is left behind in a thread after the time limit.

    Raises:
        TimeoutError: the driver did not answer within `ANSWER_SECONDS`.
    """
    answers: list[list[NvidiaCard]] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            nvml.nvmlInit()
            try:
                answers.append(_cards(nvml))
            finally:
                nvml.nvmlShutdown()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if answers:
        return answers[0]
    if thread.is_alive():
        raise TimeoutError(f"NVML did not answer within {ANSWER_SECONDS:.0f} s")
    return None


def _cards(nvml: Any) -> list[NvidiaCard]:
    driver = _text(nvml, "nvmlSystemGetDriverVersion")
    version = _number(_tried(nvml, "nvmlSystemGetCudaDriverVersion_v2"))
    runtime = f"CUDA {version // 1000}.{version % 1000 // 10}" if version else None
    cards: list[NvidiaCard] = []
    for index in range(min(int(nvml.nvmlDeviceGetCount()), _MOST_CARDS)):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        card = _card(nvml, handle)._replace(driver=driver, runtime=runtime)
        mode = _tried(nvml, "nvmlDeviceGetMigMode", handle)
        divided = isinstance(mode, list | tuple) and list(mode[:1]) == [1]
        cards += _instances(nvml, handle, card) if divided else [card]
    return cards


def _card(nvml: Any, handle: Any) -> NvidiaCard:
    total, free = _memory(nvml, handle)
    capability = _tried(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    return NvidiaCard(
        name=_text(nvml, "nvmlDeviceGetName", handle) or "NVIDIA card without a name",
        source="NVML",
        total_bytes=total,
        free_bytes=free,
        compute_capability=".".join(map(str, capability))[:8] if isinstance(capability, list | tuple) else None,
        bus=Bus.of(
            _number(_tried(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)),
            _number(_tried(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)),
        ),
        uuid=_text(nvml, "nvmlDeviceGetUUID", handle),
    )


def _instances(nvml: Any, handle: Any, card: NvidiaCard) -> list[NvidiaCard]:
    """MIG instances of a card; a card whose instances cannot be listed has no memory that could be planned with."""
    found: list[NvidiaCard] = []
    count = _number(_tried(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle)) or 0
    for index in range(min(count, _MOST_INSTANCES)):
        instance = _tried(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if instance is None:
            continue
        total, free = _memory(nvml, instance)
        name = _text(nvml, "nvmlDeviceGetName", instance) or card.name
        found.append(
            card._replace(
                name=name if " MIG" in name else f"{card.name} MIG",
                uuid=_text(nvml, "nvmlDeviceGetUUID", instance),
                total_bytes=total,
                free_bytes=free,
                whole_bytes=card.total_bytes,
            )
        )
    return found or [card._replace(name=f"{card.name} MIG", total_bytes=None, free_bytes=None, uuid=None)]


def _memory(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    """Total and free bytes; parts that share the host's memory refuse the question."""
    memory = _tried(nvml, "nvmlDeviceGetMemoryInfo", handle)
    total, free = _number(getattr(memory, "total", None)), _number(getattr(memory, "free", None))
    if total is None or not 0 < total < _MOST_BYTES:
        return None, None
    return total, min(free, total) if free is not None and free >= 0 else None


def _tried(nvml: Any, name: str, *arguments: Any) -> Any | None:
    """A function's answer; None where the library refuses, for what a card, a driver or the binding lacks."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:  # noqa: BLE001  (NVMLError is the module's own class)
        return None


def _text(nvml: Any, name: str, *arguments: Any) -> str | None:
    """A function's answer as text: older bindings give bytes."""
    answer = _tried(nvml, name, *arguments)
    if isinstance(answer, bytes):
        answer = answer.decode("utf-8", "replace")
    return answer.strip()[:120] or None if isinstance(answer, str) else None


def _number(answer: Any) -> int | None:
    return int(answer) if isinstance(answer, int) and not isinstance(answer, bool) else None
