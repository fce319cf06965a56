"""A real server, started by ``hothead serve``, asked by the real openai client; and ``hothead bench server`` on it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from vllm_toys import KV_BYTES

from hothead.bench.server import Server, read_metrics
from hothead.bench.servers import free_port, running, wait_until_healthy
from hothead.ranking.ranking import TokenRanking
from hothead.vllm_plugin.launch import ServerConfig

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "drafts" / "smollm2-135m-instruct-eagle"
HOTHEAD = [sys.executable, "-m", "hothead"]
VLLM = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "4"]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts") / "traffic.safetensors"


@pytest.fixture(scope="module")
def server(smollm2_folder: Path, counts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``hothead serve`` with what lies in the draft's folder; a module's tests share it."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    options = ["--size", "2048", "--slots", "256", "--record-counts", str(counts), "--port", str(port)]
    command = [*HOTHEAD, "serve", str(smollm2_folder), "--draft", str(DRAFT), *options, *VLLM]
    with running(command, log) as process:
        wait_until_healthy("hothead serve", f"http://127.0.0.1:{port}", process, log)
        hot = Server("hot", f"http://127.0.0.1:{port}", tuple(command))
        yield hot
        emitted = read_metrics(hot.url)["observed"]
    assert "the draft head is hot: 2048 static rows and 256 slots" in log.read_text()
    # The server is gone: what it emitted is a ranking, and verbs read it.
    shown = subprocess.run(
        [*HOTHEAD, "rank", "show", str(counts), "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout)["tokens"] == TokenRanking.load(counts).token_total == emitted > 100


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client: Any, text: str, **more: Any) -> Any:
    model = client.models.list().data[0].id
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=24, temperature=0, **more
    )


def test_answers_in_several_languages_at_once(client: Any, server: Server) -> None:
    questions = ["Name three rivers.", "Nenne drei Flüsse.", "Citez trois rivières.", "Write a Python loop."]
    alone = [ask(client, question).choices[0].message.content for question in questions]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda question: ask(client, question).choices[0].message.content, questions))
    assert together == alone
    assert all(alone)


def test_metrics_are_vllms_and_ours(client: Any, server: Server) -> None:
    before = read_metrics(server.url)
    reply = ask(client, "Count from one to ten.", extra_body={"ignore_eos": True})
    after = read_metrics(server.url)
    added = {name: after[name] - before[name] for name in after}
    assert reply.usage.completion_tokens == 24
    assert added["observed"] >= 24
    assert added["accepted"] > 0
    assert 0 <= added["missed"] < added["observed"]


def test_bad_aborted_and_streamed_requests_leave_it_serving(client: Any, server: Server) -> None:
    import openai

    with pytest.raises(openai.BadRequestError):
        ask(client, "word " * 3000)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Hello"}],
            temperature=-1.0,
        )
    stream = ask(client, "Tell a long story.", stream=True)
    next(iter(stream))
    stream.close()  # the client went away
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(client, "Name three rivers.", stream=True)]
    assert "".join(pieces) == ask(client, "Name three rivers.").choices[0].message.content


def test_bench_server_asks_running_servers(server: Server, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    base = [*HOTHEAD, "bench", "server", "-o", str(results)]
    options = ["--prompts", str(ROOT / "prompts" / "demo.jsonl"), "--per-group", "1", "-n", "8"]
    urls = ["--url", f"plain={server.url}", "--url", f"dynamic={server.url}"]
    run = subprocess.run([*base, *options, *urls, "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(run.stdout)["rows"]
    overall = [row for row in rows if row["group"] == "overall"]
    assert [row["config"] for row in overall] == ["plain", "dynamic"]
    assert overall[1]["same_text"] == 1.0
    assert overall[1]["acceptance"] > 1
    assert all(row["errors"] == 0 for row in rows)
    again = subprocess.run([*base, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["rows"] == rows
    assert httpx.get(f"{server.url}/health").is_success


@pytest.mark.parametrize(("stop", "engines"), [("SIGTERM", 2), ("SIGINT", 1)])
def test_a_stopped_server_has_saved_its_counts(toys: dict[str, Path], tmp_path: Path, stop: str, engines: int) -> None:
    """Long before a save is due, and whichever way it is stopped: a service's (the server alone is told) or Ctrl-C.

    Engines keep a file each; requests go to them in turn.
    """
    port, log, counts = free_port(), tmp_path / "log", tmp_path / "traffic.safetensors"
    config = ServerConfig(
        str(toys["target"]),
        str(toys["draft_model"]),
        "draft_model",
        hothead={"token_ids": [1, 2, 3], "dynamic_slots": 8, "record_counts": str(counts), "special_tokens": "ignore"},
        extra=(*VLLM, "--max-model-len", "128", "--kv-cache-memory-bytes", str(KV_BYTES), f"-dp={engines}"),
    )
    url = f"http://127.0.0.1:{port}"
    with running(config.command(port), log, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}) as process:
        wait_until_healthy("toy", url, process, log)
        for seed in range(8):
            body = {"model": str(toys["target"]), "prompt": [5, 6, 7, seed], "max_tokens": 32}
            httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()
        emitted = read_metrics(url)["observed"]
        if stop == "SIGTERM":
            process.terminate()
            process.wait(60)
    files = [counts, counts.with_name("traffic.1.safetensors")][:engines]
    saved = [sum(source.tokens for source in TokenRanking.load(file).sources) for file in files]
    assert sum(saved) == emitted
    assert min(saved) > 30  # each engine's
