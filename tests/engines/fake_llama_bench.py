"""A program that looks like llama-bench; FAKE_* variables say how it behaves. The shapes are those of public reports.

FAKE_BUILD: `new` (flash-attn on|off|auto, load-mode, repack, devices) or `old` (0|1, mmap, no devices).
FAKE_END: `exit:CODE` or `signal:NUMBER` instead of a row; `late:CODE` after it.
FAKE_SAY: what it says on stderr before.
FAKE_ROW: `good`, `zero` (no time), `none`, `twice`, `other` (another test's), `cut`.
FAKE_OTHER: `help` for another program's help.  FAKE_DEVICES: lines of --list-devices.
FAKE_CALLS: a file that takes the arguments of every start.
"""

# ruff: noqa: T201 - a program that talks on its streams, as the real one does

from __future__ import annotations

import json
import os
import signal
import sys
import time

OLD_HELP = """usage: ./llama-bench [options]

options:
  -h, --help
  --numa <distribute|isolate|numactl>         numa mode (default: disabled)
  -r, --repetitions <n>                       number of times to repeat each test (default: 5)
  -o, --output <csv|json|jsonl|md|sql>        output format printed to stdout (default: md)
  -v, --verbose                               verbose output

test parameters:
  -m, --model <filename>                      (default: models/7B/ggml-model-q4_0.gguf)
  -p, --n-prompt <n>                          (default: 512)
  -n, --n-gen <n>                             (default: 128)
  -b, --batch-size <n>                        (default: 2048)
  -ub, --ubatch-size <n>                      (default: 512)
  -ctk, --cache-type-k <t>                    (default: f16)
  -ctv, --cache-type-v <t>                    (default: f16)
  -t, --threads <n>                           (default: 8)
  -ngl, --n-gpu-layers <n>                    (default: 99)
  -sm, --split-mode <none|layer|row>          (default: layer)
  -mg, --main-gpu <i>                         (default: 0)
  -fa, --flash-attn <0|1>                     (default: 0)
  -mmp, --mmap <0|1>                          (default: 1)
  -ts, --tensor-split <ts0/ts1/..>            (default: 0)

Multiple values can be given for each parameter by separating them with ','
"""
NEW_HELP = (
    OLD_HELP.replace("<0|1>                     (default: 0)", "<on|off|auto>             (default: auto)")
    .replace("-mmp, --mmap <0|1>                          (default: 1)",
             "-lm, --load-mode <none|mmap|mlock|dio>       (default: mmap)\n"
             "  -mmp, --mmap <0|1>                          (DEPRECATED IN FAVOUR OF --load-mode)\n"
             "  --repack <0|1>                              (default: 1)\n"
             "  -d, --n-depth <n>                           (default: 0)\n"
             "  -ncmoe, --n-cpu-moe <n>                     (default: 0)\n"
             "  -dev, --device <dev0/dev1/...>              (default: auto)")
    .replace("  -v, --verbose", "  --offline                                   no network\n"
             "  --list-devices                              list available devices and exit\n  -v, --verbose")
)  # fmt: skip
SHARED = {
    "build_commit": "4b3f9c1", "build_number": 8123, "cpu_info": "AMD EPYC 7763 64-Core Processor", "gpu_info": "",
    "backends": "CPU", "model_filename": "m.gguf", "model_type": "gemma3 270M Q4_K - Medium",
    "model_size": 246546944, "model_n_params": 268098176, "n_batch": 512, "n_ubatch": 512, "n_threads": 2,
    "cpu_mask": "0x0", "cpu_strict": False, "poll": 50, "type_k": "f16", "type_v": "f16", "n_gpu_layers": 0,
    "split_mode": "layer", "main_gpu": 0, "no_kv_offload": False, "tensor_split": "0.00", "embeddings": False,
}  # fmt: skip
OF_BUILD = {
    "old": {"flash_attn": False, "use_mmap": True},
    "new": {
        "flash_attn": 1, "devices": "auto", "n_cpu_moe": 0, "tensor_buft_overrides": "none", "load_mode": "mmap",
        "lazy_mode": "auto", "no_op_offload": 0, "no_host": False, "repack": True, "fit_target": 0, "fit_min_ctx": 0,
        "n_depth": 0,
    },
}  # fmt: skip
LOG = """ggml_vulkan: Found 1 Vulkan devices:
load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
llama_kv_cache:        CPU KV buffer size =    24.00 MiB
llama_perf_context_print: prompt eval time =       0.00 ms /    13 tokens
"""


def setting(name: str, default: str) -> str:
    """A FAKE_* variable."""
    return os.environ.get(f"FAKE_{name}", default)


def end(how: str) -> None:
    """End as `exit:CODE` or `signal:NUMBER` says."""
    kind, _, value = how.partition(":")
    if kind == "signal":
        if int(value) != signal.SIGKILL:
            signal.signal(int(value), signal.SIG_DFL)
        os.kill(os.getpid(), int(value))
        time.sleep(5)
    sys.exit(int(value))


def row(n_prompt: int, n_gen: int, kind: str) -> dict[str, object]:
    """One row; a slow test's deviation in whole nanoseconds is beyond belief, as in the real program."""
    nanoseconds = 0 if kind == "zero" else n_prompt * 4_000_000 + n_gen * 20_000_000
    rate = 0.0 if kind == "zero" else (n_prompt + n_gen) * 1e9 / nanoseconds
    return {
        **SHARED,
        **OF_BUILD[setting("BUILD", "new")],
        "n_prompt": n_prompt + (1 if kind == "other" else 0),
        "n_gen": n_gen,
        "test_time": "2026-03-01T10:00:00Z",
        "avg_ns": nanoseconds,
        "stddev_ns": 18446744073709551615,
        "avg_ts": rate,
        "stddev_ts": 0.0,
        "samples_ns": [nanoseconds],
        "samples_ts": [rate],
    }


def main() -> None:
    """Answer a question, or do one test."""
    arguments = sys.argv[1:]
    if calls := setting("CALLS", ""):
        with open(calls, "a", encoding="utf-8") as stream:  # noqa: PTH123 - starts faster without pathlib
            stream.write(json.dumps(arguments) + "\n")
    if "--help" in arguments:
        if setting("OTHER", ""):
            print("usage: other [--colour]")
            return
        print(NEW_HELP if setting("BUILD", "new") == "new" else OLD_HELP, end="")
        return
    if "--list-devices" in arguments:
        print("Available devices:\n" + setting("DEVICES", "  (none)"))
        return
    n_prompt, n_gen = (int(arguments[arguments.index(name) + 1]) for name in ("-p", "-n"))
    if n_prompt == n_gen == 0:
        print("| model | size | params | backend | threads | test | t/s |\n\nbuild: 4b3f9c1 (8123)")
        return
    print(LOG + setting("SAY", ""), file=sys.stderr, flush=True)
    how, kind = setting("END", ""), setting("ROW", "good")
    if how and not how.startswith("late:"):
        end(how)
    text = json.dumps(row(n_prompt, n_gen, kind))
    lines = {"none": "", "twice": f"{text}\n{text}\n", "cut": text[:-40]}.get(kind, text + "\n")
    print("warning: debug build, performance may be affected {0}\n" + lines, end="", flush=True)
    if how:
        end(how.replace("late:", "exit:"))


main()
