"""Buffer lines of real logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.engines.buffers import parse_buffers
from magnitude_tune.engines.values import BufferLine
from magnitude_tune.units import MIB

LIBRARY_LOG = """load_tensors: layer  18 assigned to device CPU, is_swa = 0
load_tensors:          AMX model buffer size =   213.91 MiB
load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
llama_context: n_ctx_seq (8192) < n_ctx_train (32768) -- the full capacity of the model will not be utilized
llama_context:        CPU  output buffer size =     1.00 MiB
llama_kv_cache:        CPU KV buffer size =    24.00 MiB
llama_kv_cache: size =   24.00 MiB (  8192 cells,   3 layers,  1/1 seqs), K (f16):   12.00 MiB, V (f16):   12.00 MiB
llama_kv_cache:        CPU KV buffer size =    15.00 MiB
sched_reserve:        CPU compute buffer size =    26.77 MiB
sched_reserve: reserve took 2.49 ms, sched copies = 1
"""
SERVER_LOG = """0.00.586.178 I load_tensors: offloaded 9/19 layers to GPU
0.00.586.178 I load_tensors:   CPU_Mapped model buffer size =   205.82 MiB
0.00.586.179 I load_tensors: RPC0[127.0.0.1:50991] model buffer size =   199.34 MiB
0.01.265.200 I llama_context:        CPU  output buffer size =     1.00 MiB
0.01.266.108 I llama_kv_cache: RPC0[127.0.0.1:50991] KV buffer size =     4.00 MiB
0.01.287.280 I sched_reserve: RPC0[127.0.0.1:50991] compute buffer size =    17.52 MiB
0.01.287.303 I sched_reserve:  CUDA_Host compute buffer size =    20.77 MiB
"""


def test_the_librarys_log_is_read() -> None:
    """Every buffer of a log of llama-cpp-python, in order, and no other line."""
    assert parse_buffers(LIBRARY_LOG) == (
        BufferLine("AMX", "model", round(213.91 * MIB)),
        BufferLine("CPU_Mapped", "model", round(235.16 * MIB)),
        BufferLine("CPU", "output", MIB),
        BufferLine("CPU", "kv", 24 * MIB),
        BufferLine("CPU", "kv", 15 * MIB),
        BufferLine("CPU", "compute", round(26.77 * MIB)),
    )


def test_the_servers_log_is_read_with_its_prefix_and_remote_names() -> None:
    """Prefixes are skipped and `RPC0[host:port]` is one name; the summary line is no evidence."""
    lines = parse_buffers(SERVER_LOG)
    assert [(line.buffer, line.kind) for line in lines] == [
        ("CPU_Mapped", "model"),
        ("RPC0[127.0.0.1:50991]", "model"),
        ("CPU", "output"),
        ("RPC0[127.0.0.1:50991]", "kv"),
        ("RPC0[127.0.0.1:50991]", "compute"),
        ("CUDA_Host", "compute"),
    ]
    assert [line.n_bytes for line in lines if line.buffer.startswith("RPC0")] == [
        round(199.34 * MIB),
        4 * MIB,
        round(17.52 * MIB),
    ]
    assert parse_buffers("load_tensors: offloaded 19/19 layers to GPU\n") == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("load_tensors:   CPU_REPACK model buffer size =  1044.28 MiB", BufferLine("CPU_REPACK", "model", 1095006945)),
        ("llama_memory_recurrent:        CPU RS buffer size =     2.81 MiB", BufferLine("CPU", "recurrent", 2946499)),
        ("llama_kv_cache_unified:      CUDA0 KV buffer size =   512.00 MiB", BufferLine("CUDA0", "kv", 512 * MIB)),
    ],
)
def test_other_buffers_are_read(text: str, line: BufferLine) -> None:
    """Repacked weights, recurrent state and devices have their own names and kinds."""
    assert parse_buffers(text) == (line,)


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    """A log holds anything; reading it never fails and sizes are never negative."""
    assert all(line.n_bytes >= 0 for line in parse_buffers(text + "\nx: CPU model buffer size = 1 MiB\n"))
