"""`magnitude-tune bench --url`: what is shown and kept of a server that runs already."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli.console import run
from engines.stub_servers import Handler, Stub, api, llama_server, ollama, page, serving

from magnitude_tune.observations.store import store_path

FAST = ("--budget", "1")


def stored() -> list[tuple[str, ...]]:
    """Engine, build, model and machine of every row in the store."""
    if not store_path().exists():
        return []
    connection = sqlite3.connect(store_path())
    rows = connection.execute("SELECT engine, engine_build, model_hash, machine_hash FROM llama_bench").fetchall()
    connection.close()
    return rows


def test_a_running_server_is_measured() -> None:
    """The page names server and model and shows rates, first token and turn with their widths; no promise."""
    with serving(llama_server()) as stub:
        done = run("bench", "--url", stub.url, *FAST)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"server +{re.escape(stub.url)}, llama-server b8123-4b3f9c1\n", done.stdout)
    assert re.search(r"model +m\.gguf, 235 MiB, /models/m\.gguf\n", done.stdout)
    assert re.search(r"pp +250 t/s ", done.stdout)
    assert re.search(r"tg +50\.0 t/s ", done.stdout)
    assert re.search(r"ttft +\d", done.stdout)
    assert "Promise" not in done.stdout
    assert "predicted" not in done.stdout
    assert f"INFO: {stub.url} answers with m.gguf" in done.stderr


def test_json_and_the_store() -> None:
    """One object with intervals, samples and no promise; the run is kept as `served`, by the model's name."""
    with serving(llama_server()) as stub:
        done = run("bench", "--url", stub.url, "--json", "-q", *FAST)
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema_version"
    assert document["promise"] is None
    assert document["resolution"] is None
    assert document["served"]["kind"] == "llama_server"
    assert document["served"]["n_ctx"] == 4096
    assert document["measured"]["pp"]["value"] == pytest.approx(250)
    assert document["measured"]["tg"]["samples"][0] == {"n_tokens": 127, "seconds": 2.54}
    assert document["measured"]["ttft_seconds"]["low"] <= document["measured"]["ttft_seconds"]["value"]
    assert document["engine"] == {"name": "served", "build": "llama_server b8123-4b3f9c1"}
    assert done.stderr == ""
    assert len(document["stored"]) == 32
    rows = stored()
    assert len(rows) == 2
    assert {row[:3] for row in rows} == {("served", "llama_server b8123-4b3f9c1", "served:m.gguf")}


def test_a_model_beside_it_is_predicted_for_information(real_model: Path) -> None:
    """The prediction stands beside, differences are findings, and there is still no verdict."""
    with serving(llama_server()) as stub:
        done = run("bench", real_model, "--url", stub.url, "--n-ctx", "256", *FAST)
    assert done.returncode == 0, done.stderr
    assert re.search(r"predicted +measured", done.stdout)
    assert "no promise" in done.stdout
    assert f"the prediction is for {real_model.name}, the server answers with m.gguf" in done.stdout
    assert "magnitude mismatch: expected 256, got 4096 (n_ctx)" in done.stdout
    assert "Promise" not in done.stdout


def test_what_was_served_calibrates_nothing(real_model: Path) -> None:
    """A plan is predicted as before: other process, unknown settings."""
    before = json.loads(run("resolve", real_model, "--json").stdout)["predicted"]
    stub = llama_server()
    stub.answers["/props"] = page({"total_slots": 1, "model_path": str(real_model), "build_info": "b1"})
    with serving(stub):
        assert run("bench", "--url", stub.url, *FAST).returncode == 0
    assert stored()
    assert json.loads(run("resolve", real_model, "--json").stdout)["predicted"] == before


def test_plain_servers_and_ollama() -> None:
    """Each kind is named, and where its times come from."""
    with serving(api("some-model", pause=0.001)) as stub:
        done = run("bench", "--url", f"{stub.url}/v1", *FAST)
    assert "OpenAI-compatible vllm" in done.stdout
    assert "by the stream's arrival here" in done.stdout
    with serving(ollama("a:1b", stored=("b:2b",))) as stub:
        done = run("bench", "--url", stub.url, "--model", "b:2b", *FAST)
    assert "Ollama 0.12.3" in done.stdout
    assert re.search(r"model +b:2b\n", done.stdout)
    assert re.search(r"pp +200 t/s ", done.stdout)
    assert re.search(r"tg +40\.0 t/s ", done.stdout)


def test_the_key_comes_from_the_environment() -> None:
    """A server that wants a key gets OPENAI_API_KEY; without it the person is told, and it is shown nowhere."""
    stub = llama_server()
    stub.key = "sk-secret"
    with serving(stub):
        done = run("bench", "--url", stub.url, *FAST, env={"OPENAI_API_KEY": "sk-secret"})
        assert done.returncode == 0, done.stderr
        assert "sk-secret" not in done.stdout + done.stderr
        assert "without encryption" not in done.stderr
        done = run("bench", "--url", stub.url, *FAST, env={"OPENAI_API_KEY": ""})
    assert done.returncode == 2
    assert "wants a key" in done.stderr
    assert "OPENAI_API_KEY" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--url", "127.0.0.1:8080"), "not an http or https URL"),
        (("--url", ""), "not an http or https URL"),
        (("--url", "http://127.0.0.1:1", "--n-threads", "4"), "keeps its own settings"),
        (("--url", "http://127.0.0.1:1", "--machine", "x"), "only this machine"),
        (("--url", "http://127.0.0.1:1", "--engine-path", "x"), "--engine-path"),
        (("--url", "http://127.0.0.1:1", "--rpc", "127.0.0.1:2"), "--rpc"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...], says: str) -> None:
    """Wrong addresses and settings that nobody could apply end with 2 before anything is sent."""
    done = run("bench", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "hint:" in done.stderr


def test_failures_have_their_exit_codes() -> None:
    """Nobody there and a server that is loading are 5, a web page is 2; nothing is stored."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        done = run("bench", "--url", f"http://127.0.0.1:{probe.getsockname()[1]}")
    assert (done.returncode, done.stdout) == (5, "")
    assert "cannot be reached" in done.stderr
    with serving(Stub({"/props": page({"error": {"message": "Loading model"}}, 503)})) as stub:
        done = run("bench", "--url", stub.url)
    assert done.returncode == 5
    assert "Loading model" in done.stderr

    def html(_: Stub, handler: Handler, __: dict[str, object]) -> None:
        handler.send(200, "<html>", "text/html")

    with serving(Stub({"/props": html})) as stub:
        done = run("bench", "--url", stub.url)
    assert done.returncode == 2
    assert "web page" in done.stderr
    assert stored() == []


def test_a_store_that_cannot_be_written_never_costs_the_result() -> None:
    """The whole result is on stdout, then the error says what to do."""
    store_path().parent.mkdir(parents=True, exist_ok=True)
    store_path().write_text("not a database " * 100)
    with serving(llama_server()) as stub:
        done = run("bench", "--url", stub.url, *FAST)
    assert done.returncode == 2
    assert re.search(r"pp +250 t/s ", done.stdout)
    assert str(store_path()) in done.stderr


def test_a_server_that_fails_midway_keeps_what_was_measured() -> None:
    """After good turns a failure is shown with them, stored as incomplete, and ends with 5."""
    stub = llama_server(prompt_ms=1000.0)
    good = stub.answers["/v1/completions"]

    def failing(stub: Stub, handler: Handler, body: dict[str, object]) -> None:
        n_turns = sum(path == "/v1/completions" for path, _ in stub.seen)
        if n_turns > 4:
            handler.send(500, {"error": {"message": "out of memory"}})
        else:
            good(stub, handler, body)

    stub.answers["/v1/completions"] = failing
    with serving(stub):
        done = run("bench", "--url", stub.url, "--budget", "60")
    assert done.returncode == 5, done.stderr
    assert re.search(r"written, crashed\n", done.stdout)
    assert re.search(r"tg +50\.0 t/s ", done.stdout)
    assert "out of memory" in done.stderr
    assert "shown and kept" in done.stderr
    connection = sqlite3.connect(store_path())
    assert {row[0] for row in connection.execute("SELECT complete FROM llama_bench")} == {0}
    connection.close()


def test_an_interrupt_keeps_what_was_measured() -> None:
    """Ctrl-C after the first turns ends with 130; what was measured is shown and marked."""
    with serving(api("m", pause=0.01)) as stub:
        process = subprocess.Popen(
            [sys.executable, "-m", "magnitude_tune", "bench", "--url", stub.url, "-v"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "2 samples" in line:
                break
        process.send_signal(signal.SIGINT)
        page_text, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "interrupted" in page_text
