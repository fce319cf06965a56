"""Asking a real server on this machine: retries, resumption, refusals, and what is counted of the answers."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hothead.errors import InputError
from hothead.ranking.answers import Answer, AnswerLog, Prompt, prompts_of
from hothead.ranking.counts import count_records
from hothead.ranking.endpoint import Endpoint, ask_endpoint, endpoint_settings, find_model
from hothead.ranking.generate import Sampling
from hothead.ranking.records import ChatRecord, IdsRecord, PromptRecord, TextRecord
from hothead.tokenizer import tokenizer_size

SAMPLING = Sampling(max_tokens=20)
Reply = tuple[int, dict[str, Any], dict[str, str]]


class Server:
    """An OpenAI-compatible server that answers each prompt with its own words in capitals.

    ``misbehave`` may give a reply of its own for the nth request of a body; None lets the request through.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.misbehave: Callable[[int, dict[str, Any]], Reply | None] = lambda n, body: None
        self.in_flight = self.most_in_flight = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "parrot"}]} if self.path == "/v1/models" else {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append(body)
                    server.headers.append(dict(self.headers))
                    n = server.requests.count(body)
                    server.in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server.in_flight)
                try:
                    odd = server.misbehave(n, body)
                    if odd is not None:
                        self.reply(*odd)
                        return
                    text = body["messages"][-1]["content"].upper()
                    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                    self.reply(200, {"choices": [choice]})
                finally:
                    with server._lock:
                        server.in_flight -= 1

            def reply(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                for name, content in (headers or {}).items():
                    self.send_header(name, content)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HOTHEAD_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    yield running
    running.close()


def ask(server: Server, prompts: list[Prompt], path: Path, **options: Any) -> AnswerLog:
    endpoint = Endpoint(server.url, **{"backoff_s": 0.01, "concurrency": 4, **options})
    log = AnswerLog(path, endpoint_settings("parrot", SAMPLING))
    ask_endpoint(prompts, endpoint, "parrot", log, SAMPLING)
    return log


def texts(log: AnswerLog, prompts: list[Prompt]) -> list[list[str]]:
    return [[answer.text for answer in log.answers(key)] for key in log.keys(prompts)]


PROMPTS = [Prompt((f"say {i}",)) for i in range(12)] + [Prompt(("first", "second"))]
SAID = [[f"SAY {i}"] for i in range(12)] + [["FIRST", "SECOND"]]


def test_every_turn_is_asked_with_what_was_said_before(server: Server, tmp_path: Path) -> None:
    system = ({"role": "system", "content": "be brief"},)
    prompts = [Prompt(("one", "two"), system)]
    assert texts(ask(server, prompts, tmp_path / "log"), prompts) == [["ONE", "TWO"]]
    assert server.requests[1]["messages"] == [
        *system,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "ONE"},
        {"role": "user", "content": "two"},
    ]
    assert server.requests[0]["max_tokens"] == 20 and server.requests[0]["temperature"] == 0


def test_failures_are_tried_again(server: Server, tmp_path: Path) -> None:
    failures: list[Reply] = [(503, {}, {}), (429, {}, {"Retry-After": "0.05"})]
    server.misbehave = lambda n, body: failures[n - 1] if n <= 2 else None
    assert texts(ask(server, PROMPTS, tmp_path / "log"), PROMPTS) == SAID
    assert len(server.requests) == 3 * 14


def test_as_many_requests_at_once_as_asked_for(server: Server, tmp_path: Path) -> None:
    four = threading.Barrier(4)

    def wait_for_four(n: int, body: dict[str, Any]) -> None:
        four.wait(timeout=20)

    server.misbehave = wait_for_four
    ask(server, PROMPTS[:12], tmp_path / "log", concurrency=4, tries=1)
    assert server.most_in_flight == 4


def test_a_dropped_connection_and_a_broken_reply_are_tried_again(server: Server, tmp_path: Path) -> None:
    def misbehave(n: int, body: dict[str, Any]) -> Reply | None:
        if n == 1:
            raise ConnectionError  # the handler dies without a reply
        return None

    server.misbehave = misbehave
    server._http.handle_error = lambda *_: None  # type: ignore[method-assign]
    assert texts(ask(server, PROMPTS[:3], tmp_path / "log"), PROMPTS[:3]) == SAID[:3]


def test_nothing_is_asked_twice(server: Server, tmp_path: Path) -> None:
    server.misbehave = lambda n, body: (503, {}, {}) if body["messages"][-1]["content"] == "say 7" else None
    with pytest.raises(InputError, match=r"no answer in 2 tries \(503.*run the same command again"):
        ask(server, PROMPTS, tmp_path / "log", tries=2, concurrency=1)
    assert texts(AnswerLog(tmp_path / "log", endpoint_settings("parrot", SAMPLING)), PROMPTS)[:7] == SAID[:7]
    with (tmp_path / "log").open("a") as file:
        file.write('{"key": "cut off by a cra')
    server.misbehave = lambda n, body: None
    server.requests.clear()
    log = ask(server, PROMPTS, tmp_path / "log")
    assert texts(log, PROMPTS) == SAID
    assert len(server.requests) == 14 - 7
    ask(server, PROMPTS, tmp_path / "log")
    assert len(server.requests) == 14 - 7
    other = AnswerLog(tmp_path / "log", endpoint_settings("parrot", Sampling(temperature=1)))
    assert texts(other, PROMPTS)[0] == []  # another temperature is another question


def test_an_unanswerable_prompt_is_skipped_and_a_refusal_stops(server: Server, tmp_path: Path) -> None:
    too_long = (400, {"error": {"message": "too long"}}, {})
    server.misbehave = lambda n, body: too_long if body["messages"][-1]["content"] == "say 3" else None
    log = ask(server, PROMPTS, tmp_path / "log")
    assert sum(map(len, texts(log, PROMPTS))) == 14
    assert ["too long" in why for why in log.skipped(log.keys(PROMPTS))] == [True]
    server.misbehave = lambda n, body: (401, {"error": "no such key"}, {})
    with pytest.raises(InputError, match=r"the server refuses .401 .*no such key"):
        ask(server, [Prompt(("more",))], tmp_path / "log")


def test_the_key_is_sent_from_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(server, PROMPTS[:1], tmp_path / "log")
    monkeypatch.setenv("HOTHEAD_API_KEY", "s3cret")
    ask(server, PROMPTS[1:2], tmp_path / "log")
    found = [{k.lower(): v for k, v in headers.items()}.get("authorization") for headers in server.headers]
    assert found == [None, "Bearer s3cret"]
    assert "s3cret" not in (tmp_path / "log").read_text()


def test_the_model_is_the_servers_first(server: Server) -> None:
    assert find_model(Endpoint(server.url)) == "parrot"
    assert find_model(Endpoint(server.url, "mine")) == "mine"
    with pytest.raises(InputError, match="lists no model"):
        find_model(Endpoint(server.url + "/elsewhere"))
    server.close()
    with pytest.raises(InputError, match="no answer in 1 tries"):
        find_model(Endpoint(server.url, tries=1, backoff_s=0))
    with pytest.raises(InputError, match="not the URL of a server"):
        Endpoint("localhost:8000")


def test_a_reply_that_is_no_completion_is_said(server: Server, tmp_path: Path) -> None:
    server.misbehave = lambda n, body: (200, {"detail": "hello"}, {})
    with pytest.raises(InputError, match="not a chat completion"):
        ask(server, PROMPTS[:1], tmp_path / "log")


# --- the log --------------------------------------------------------------------------------------


def test_a_repeated_prompt_is_asked_again(server: Server, tmp_path: Path) -> None:
    prompts = [Prompt(("same",))] * 3
    log = ask(server, prompts, tmp_path / "log")
    assert len(set(log.keys(prompts))) == 3 and len(server.requests) == 3


def test_texts_count_with_their_end_of_turn_and_ids_as_they_are(smollm2_tokenizer: Any, tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "log", {})
    log.add("a", 0, Answer(None, "Hello there", finished=True))
    log.add("b", 0, Answer(None, "Hello there", finished=False))
    log.add("c", 0, Answer((5, 6), "anything"))
    log.add("c", 1, Answer(skipped="too long"))
    log = AnswerLog(tmp_path / "log", {})  # as the next run reads it
    size = tokenizer_size(smollm2_tokenizer)
    counts = count_records(log.records(["a", "b", "c"], smollm2_tokenizer), smollm2_tokenizer, size).counts
    hello = smollm2_tokenizer.encode("Hello there")
    assert np.array_equal(counts, np.bincount([*hello, *hello, 2, 5, 6], minlength=size))


def test_a_log_that_is_no_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("hello\n")
    with pytest.raises(InputError, match="line 1: not an answer of an earlier run"):
        AnswerLog(tmp_path / "log", {})


def test_prompts_of_all_kinds() -> None:
    chat = tuple({"role": role, "content": role} for role in ("system", "user", "assistant"))
    assert prompts_of([TextRecord("t", ""), PromptRecord(("a", "b"), ""), ChatRecord(chat, "")]) == [
        Prompt(("t",)),
        Prompt(("a", "b")),
        Prompt(("user",), chat[:1]),
    ]
    for records, said in (
        ([IdsRecord([1], "here")], "here: prompts must be texts"),
        ([ChatRecord(chat[:1], "here")], "here: no user message"),
        ([], "no prompts"),
    ):
        with pytest.raises(InputError, match=said):
            prompts_of(records)  # type: ignore[arg-type]
