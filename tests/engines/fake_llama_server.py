"""A program that looks like llama-server; FAKE_* variables say how it behaves.

FAKE_HEALTH: `ok`, `late:N` (503 to the first N calls), `never` (503 for ever), `exit:CODE`, `signal:NUMBER`.
FAKE_TIMINGS: `good`, `zero`, `short` (one token less than asked for), `none`.
FAKE_MODEL: the model path that /props gives, instead of its own.
FAKE_PROBE: `signal:NUMBER` or `missing:LIBRARY` instead of any answer to a probe; `other` for another program's help.
FAKE_DEVICES: lines of --list-devices.  FAKE_INFO: features of the system_info line.  FAKE_HELP: a file of options.
FAKE_DIE: `completion` ends the process with signal 4 at the first completion, `repack` only if it repacks.
FAKE_CACHE: `kept` or `lost`.
FAKE_CALLS: a file that takes the arguments of every start.
"""

# ruff: noqa: T201 - a program that talks on its streams, as the real one does

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path; see also `--hidden-in-text`
-c,    --ctx-size N                     size of the prompt context
-ngl,  --gpu-layers, --n-gpu-layers N   layers
-t,    --threads N                      threads
-tb,   --threads-batch N                threads
-b,    --batch-size N                   batch
-ub,   --ubatch-size N                  batch
-np,   --parallel N                     slots
-fa,   --flash-attn [on|off|auto]       flash attention
-fit,  --fit [on|off]                   fit
-dev,  --device <dev1,dev2,..>          devices
--rpc SERVERS                           servers
--repack, -nr, --no-repack              repacking
-cram, --cache-ram N                    prompt cache
-lv,   --verbosity, --log-verbosity N   verbosity
--host HOST                             address
--port PORT                             port
--list-devices                          devices
"""
LOG = """load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
llama_kv_cache:        CPU KV buffer size =    24.00 MiB
"""


def setting(name: str, default: str) -> str:
    """A FAKE_* variable."""
    return os.environ.get(f"FAKE_{name}", default)


def end(how: str) -> None:
    """End as `exit:CODE` or `signal:NUMBER` says."""
    kind, _, value = how.partition(":")
    if kind == "signal":
        signal.signal(int(value), signal.SIG_DFL) if int(value) not in (9, 19) else None
        os.kill(os.getpid(), int(value))
        time.sleep(5)
    sys.exit(int(value))


def probe(arguments: list[str]) -> None:
    """Answer --help, --version, --list-devices."""
    broken = setting("PROBE", "")
    if broken.startswith("signal:"):
        end(broken)
    if broken.startswith("missing:"):
        name = broken.partition(":")[2]
        print(f"llama-server: error while loading shared libraries: {name}: cannot open shared object", file=sys.stderr)
        sys.exit(127)
    if "--help" in arguments:
        if broken == "other":
            text = "usage: other [--colour]\n"
        elif path := setting("HELP", ""):
            with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - starts faster without pathlib
                text = stream.read()
        else:
            text = HELP
        print(text)
        sys.exit(0)
    if "--version" in arguments:
        print("version: 4242 (abc1234)\nbuilt with a pen", file=sys.stderr)
        sys.exit(0)
    if "--list-devices" in arguments:
        print("Available devices:\n" + setting("DEVICES", "  (none)"))
        sys.exit(0)


class Handler(BaseHTTPRequestHandler):
    """The pages that are asked for."""

    calls = 0
    model = ""
    slot: list[int] = []  # noqa: RUF012 - one handler class, one server

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Health, properties and models."""
        if self.path == "/health":
            self.health()
        elif self.path == "/props":
            self.send(200, {"model_path": setting("MODEL", Handler.model)})
        elif self.path == "/v1/models":
            self.send(200, {"data": [{"id": "x", "meta": {"n_vocab": 4096}}]})
        else:
            self.send(404, {})

    def health(self) -> None:
        """As FAKE_HEALTH says."""
        Handler.calls += 1
        how = setting("HEALTH", "ok")
        ready = how == "ok" or (how.startswith("late:") and Handler.calls > int(how[5:]))
        self.send(200 if ready else 503, {"status": "ok"} if ready else {"error": {"message": "Loading model"}})

    def do_POST(self) -> None:
        """A completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if setting("DIE", "") == "completion" or (setting("DIE", "") == "repack" and "--repack" in sys.argv):
            end("signal:4")
        prompt, n_predict = body["prompt"], max(1, body["n_predict"])
        n_kept = 0
        if body["cache_prompt"] and setting("CACHE", "kept") == "kept" and Handler.slot == prompt[: len(Handler.slot)]:
            n_kept = len(Handler.slot)
        Handler.slot = prompt
        time.sleep(0.002 * (len(prompt) - n_kept) / 64 + 0.002 * n_predict)
        how = setting("TIMINGS", "good")
        n_made = n_predict - 1 if how == "short" else n_predict
        scale = 0 if how == "zero" else 1
        timings = {
            "cache_n": n_kept,
            "prompt_n": len(prompt) - n_kept,
            "prompt_ms": 2.0 * (len(prompt) - n_kept) * scale,
            "predicted_n": n_made,
            "predicted_ms": 10.0 * (n_made - 1) * scale,
        }
        self.send(200, {"tokens_predicted": n_made, **({} if how == "none" else {"timings": timings})})

    def send(self, status: int, body: object) -> None:
        """One JSON answer."""
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Probe or serve."""
    arguments = sys.argv[1:]
    if path := setting("CALLS", ""):
        with open(path, "a", encoding="utf-8") as stream:  # noqa: PTH123 - as above
            stream.write(json.dumps(arguments) + "\n")
    probe(arguments)
    value = dict(itertools.pairwise(arguments))
    print(f"system_info: n_threads = 2 | CPU : {setting('INFO', 'REPACK = 1 | ')}", file=sys.stderr)
    if not os.path.exists(value["--model"]):  # noqa: PTH110 - as above
        print("error loading model", file=sys.stderr)
        sys.exit(1)
    sys.stderr.write(LOG)
    how = setting("HEALTH", "ok")
    if how.startswith(("exit:", "signal:")):
        print("error: failed to load model: the fake's own reason", file=sys.stderr, flush=True)
        end(how)
    Handler.model = value["--model"]
    HTTPServer((value["--host"], int(value["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
