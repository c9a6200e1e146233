"""What engines say of their devices and of their code is kept, and read back from older files without it."""

from __future__ import annotations

import json

from magnitude_tune.engines.find import _facts
from magnitude_tune.engines.server_probe import from_stored, to_stored
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts

FACTS = EngineFacts(
    name="llama_server",
    path="llama-server",
    build="b1",
    ggml_version=None,
    devices=(EngineDevice("Vulkan0", "AMD Radeon 780M", 8 << 30, 7 << 30, True),),
    cuda_archs=(500, 890),
)


def test_integrated_devices_and_architectures_are_remembered() -> None:
    """A kept answer of a server says what the server said; one of before has neither."""
    stored = json.loads(json.dumps(to_stored(FACTS)))
    again = from_stored(stored, "llama_server")
    assert again is not None
    assert (again.devices, again.cuda_archs) == (FACTS.devices, (500, 890))
    del stored["cuda_archs"], stored["devices"][0]["integrated"]
    before = from_stored(stored, "llama_server")
    assert before is not None
    assert (before.devices[0].integrated, before.cuda_archs) == (False, ())


def test_the_embedded_engine_says_them_too() -> None:
    """The worker's answer holds the kind of each device and the library's own line about its code."""
    answer = {
        "path": "libllama.so",
        "build": "0.3.36",
        "ggml_version": None,
        "backends": ["cpu", "cuda"],
        "devices": [
            {"name": "CUDA0", "description": "Orin", "total_bytes": 8, "free_bytes": 7, "integrated": True},
        ],
        "extra_buffers": [],
        "gpu_offload": True,
        "system_info": "CUDA : ARCHS = 750,870 | USE_GRAPHS = 1 | CPU : NEON = 1 | ",
    }
    facts = _facts(answer)
    assert facts is not None
    assert (facts.devices[0].integrated, facts.cuda_archs) == (True, (750, 870))
