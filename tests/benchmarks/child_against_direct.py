"""Compares the worker child with a direct loop over the same library, at equal settings, in interleaved rounds.

Usage: python tests/benchmarks/child_against_direct.py MODEL.gguf [--rounds 15] [--threads 1]

The direct loop is a fresh process of its own that calls llama.cpp's functions with nothing of this project between.
Both stay loaded and take turns, so that noise hits both alike. Ratios of medians from 0.9 to 1.1 are expected.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from magnitude_tune.engines import llama_cpp_python
from magnitude_tune.engines.values import Launch
from magnitude_tune.request import Settings

N_CTX, N_BATCH = 2048, 512

DIRECT = """
import ctypes, json, random, sys, time
import llama_cpp.llama_cpp as lib
path, n_ctx, n_batch, n_threads = sys.argv[1], *map(int, sys.argv[2:])
lib.llama_backend_init()
mp = lib.llama_model_default_params()
mp.n_gpu_layers, mp.use_extra_bufts, mp.load_mode = 0, False, lib.LLAMA_LOAD_MODE_MMAP
model = lib.llama_model_load_from_file(path.encode(), mp)
cp = lib.llama_context_default_params()
cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max, cp.n_outputs_max = n_ctx, n_batch, n_batch, 1, 1
cp.n_threads = cp.n_threads_batch = n_threads
cp.flash_attn_type, cp.swa_full = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, False
context = lib.llama_init_from_model(model, cp)
memory = lib.llama_get_memory(context)
n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
for line in sys.stdin:
    kind, n = line.split()
    n = int(n)
    tokens = (ctypes.c_int32 * n)(*(random.randrange(n_vocab) for _ in range(n)))
    lib.llama_memory_clear(memory, False)
    started = time.perf_counter()
    if kind == "prompt":
        lib.llama_decode(context, lib.llama_batch_get_one(tokens, n))
    else:
        for i in range(n):
            lib.llama_decode(context, lib.llama_batch_get_one((ctypes.c_int32 * 1)(tokens[i]), 1))
            lib.llama_synchronize(context)
    lib.llama_synchronize(context)
    print(json.dumps(n / (time.perf_counter() - started)), flush=True)
"""


def main() -> None:
    """Measure in turns and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    settings = Settings(
        n_gpu_layers=0,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        n_batch=N_BATCH,
        n_ubatch=N_BATCH,
        n_ctx=N_CTX,
    )
    session = llama_cpp_python.open_session(Launch(model_path=options.model, settings=settings))
    arguments = [options.model, str(N_CTX), str(N_BATCH), str(options.threads)]
    with subprocess.Popen(
        [sys.executable, "-c", DIRECT, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as direct:
        try:
            compare(session, direct, options.rounds)
        finally:
            session.close()
            direct.kill()


def compare(session: llama_cpp_python.LlamaCppPythonSession, direct: subprocess.Popen[str], rounds: int) -> None:
    """Take turns in alternating order, the first round as warm-up, and print one line for each kind of work."""
    # Short turns: what else the machine does then hits both sides of a round alike.
    for label, kind, n_tokens, work in (
        ("pp256", "prompt", 256, session.prompt),
        ("tg16", "generate", 16, session.generate),
    ):
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(rounds + 1):
            if turn % 2:
                theirs.append(asked(direct, f"{kind} {n_tokens}"))
            ours.append(work(n_tokens).rate)
            if not turn % 2:
                theirs.append(asked(direct, f"{kind} {n_tokens}"))
        child, loop = statistics.median(ours[1:]), statistics.median(theirs[1:])
        print(f"{label}: child {child:.1f} t/s, direct {loop:.1f} t/s, ratio {child / loop:.3f}")


def asked(direct: subprocess.Popen[str], request: str) -> float:
    """The direct loop's rate in tokens/second for one request."""
    if direct.stdin is None or direct.stdout is None:
        raise RuntimeError("the direct loop has no pipes")
    direct.stdin.write(request + "\n")
    direct.stdin.flush()
    return float(json.loads(direct.stdout.readline()))


if __name__ == "__main__":
    main()
