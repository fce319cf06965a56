"""Reading metrics, cutting waves and summing up; asking real servers is in tests/vllm_plugin/test_server.py."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hothead.bench.prompts import Prompt
from hothead.bench.server import Wave, portable, read_metrics, read_waves, summarize, waves_of
from hothead.errors import InputError

PAGE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a b"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a } b"} 5.0
python_gc_objects_collected_total{generation="0"} 15126.0
vllm:hothead_observed_tokens_total{engine="0",model_name="a"} 1.2e+03
sglang:spec_accept_length 2.5
"""
# llama-server's, with a draft.
LLAMA_PAGE = """# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 40
llamacpp:spec_decode_num_accepted_tokens_total 22
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 15
llamacpp:prompt_tokens_seconds 31.5
"""


@pytest.fixture(params=[PAGE])
def metrics_url(request: pytest.FixtureRequest) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param.encode())

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_metrics_are_summed_over_engines(metrics_url: str) -> None:
    assert read_metrics(metrics_url) == {"drafts": 15.0, "observed": 1200.0, "sglang:spec_accept_length": 2.5}


@pytest.mark.parametrize("metrics_url", [LLAMA_PAGE], indirect=True)
def test_llama_servers_metrics_mean_the_same(metrics_url: str) -> None:
    assert read_metrics(metrics_url) == {"drafts": 40.0, "accepted": 22.0}


def test_no_metrics_page_is_no_metrics() -> None:
    assert read_metrics("http://127.0.0.1:9") == {}


def test_waves_keep_groups_apart() -> None:
    prompts = [Prompt(str(n), "even" if n % 2 == 0 else "odd", ("hi",)) for n in range(19)]
    waves = list(waves_of(prompts, 2))
    assert [(group, [p.id for p in members]) for group, members in waves] == [
        ("even", ["0", "2", "4", "6", "8", "10", "12", "14"]),
        ("even", ["16", "18"]),
        ("odd", ["1", "3", "5", "7", "9", "11", "13", "15"]),
        ("odd", ["17"]),
    ]
    assert all(len(members) == 1 for _, members in waves_of(prompts, 1))


def wave(config: str, number: int, tokens: int, seconds: float, **more: object) -> Wave:
    settings = {"group": "qa", "prompts": 1, "digests": [str(number)], "counters": {}, **more}
    return Wave(config=config, wave=number, tokens=tokens, seconds=seconds, **settings)  # type: ignore[arg-type]


def test_rates_ratios_and_acceptance() -> None:
    counted = {"drafts": 10.0, "accepted": 6.0, "observed": 16.0, "missed": 4.0}
    waves = [
        wave("plain", 0, 100, 10.0),
        wave("full", 0, 100, 8.0, counters={"drafts": 10.0, "accepted": 8.0}),
        wave("static", 0, 100, 5.0, counters=counted, digests=["other"]),
        wave("full", 1, 50, 2.0, counters={"drafts": 10.0, "accepted": 8.0}),
        wave("static", 1, 50, 2.5, counters=counted, errors=["1: ReadTimeout"]),
        wave("plain", 1, 50, 5.0),
    ]
    plain, full, static = (row for row in summarize(waves) if row.group == "overall")
    assert plain.rate.value == 10.0
    assert plain.acceptance is None
    assert full.acceptance == pytest.approx(1.8)
    assert static.rate.value == 20.0
    assert static.versus["plain"].value == 2.0
    assert static.versus["full"].value == pytest.approx(20 / 15)
    assert static.acceptance == pytest.approx(1.6)
    assert static.missed == 0.25
    assert static.same_text == 0.5
    assert static.errors == 1


def test_a_damaged_result_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind": "header"}\n')
    with pytest.raises(InputError, match="not a result file of hothead bench server"):
        read_waves(path)


@pytest.mark.parametrize(
    ("word", "published"),
    [
        ("/anywhere/bin/python", "python"),
        ("drafts/smollm2", "drafts/smollm2"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ('{"model": "/some/folder/draft", "method": "eagle"}', '{"model": "draft", "method": "eagle"}'),
    ],
)
def test_published_commands_hold_no_path_of_the_machine(word: str, published: str) -> None:
    assert portable(word) == published
