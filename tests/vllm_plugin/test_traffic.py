"""Counters and recorded counts: files, what Prometheus sees, what a restart goes on with. No vLLM."""

from pathlib import Path

import numpy as np
import pytest

from hothead.errors import InputError, TokenizerMismatch
from hothead.models.toy import toy_tokenizer
from hothead.ranking.ranking import TokenRanking
from hothead.vllm_plugin.drafter import COUNTERS
from hothead.vllm_plugin.traffic import (
    Collector,
    CounterFile,
    TrafficRecorder,
    counter_file,
    read_counters,
    save_what_is_left,
)


def test_another_process_reads_what_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    assert read_counters(path) == dict.fromkeys(COUNTERS, 0)
    file = CounterFile(path)
    assert read_counters(path) == dict.fromkeys(COUNTERS, 0)
    file.write(np.array([4, 3, 2, 1]))
    assert read_counters(path) == {"observed": 4, "missed": 3, "accepted": 2, "inserted": 1}
    file.remove()
    assert not path.exists()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "counters").symlink_to(precious)
    CounterFile(tmp_path / "counters").write(np.array([1, 1, 1, 1]))
    assert precious.read_text() == "mine"


def test_engines_have_files_of_their_own() -> None:
    assert counter_file("abc", 0) != counter_file("abc", 1) != counter_file("abd", 1)


def test_prometheus_sees_each_engine(tmp_path: Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    files = {engine: tmp_path / str(engine) for engine in (0, 1)}
    for engine, path in files.items():
        CounterFile(path).write(np.array([10 + engine, 2, 3, 4]))
    registry = prometheus.CollectorRegistry()
    registry.register(Collector("smollm2", files))
    labels = {"model_name": "smollm2", "engine": "1"}
    assert registry.get_sample_value("vllm:hothead_observed_tokens_total", labels) == 11
    assert registry.get_sample_value("vllm:hothead_missed_tokens_total", labels) == 2


def test_recorded_counts_are_a_ranking_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "traffic.safetensors"
    emitted = np.zeros(320, dtype=np.int64)  # the head is padded past the tokenizer
    recorder = TrafficRecorder(path, toy_tokenizer())
    recorder.save(emitted)
    assert not path.exists()  # nothing to say yet
    emitted[[5, 6]] = [3, 1]
    recorder.save(emitted)
    emitted[5] += 2
    recorder.save(emitted)
    assert TokenRanking.load(path).counts[[5, 6]].tolist() == [5, 1]
    TrafficRecorder(path, toy_tokenizer()).save(emitted)  # the server started again
    ranking = TokenRanking.load(path)
    assert ranking.counts[[5, 6]].tolist() == [10, 2]
    assert len(ranking.special_target_ids)


def test_counts_of_a_killed_engine_are_saved(tmp_path: Path) -> None:
    ranking, shared = tmp_path / "traffic.safetensors", [tmp_path / f"{engine}.counters" for engine in range(3)]
    recorders = {path: TrafficRecorder(ranking, toy_tokenizer()) for path in shared}
    emitted = np.zeros(320, dtype=np.int64)
    emitted[5] = 3
    TrafficRecorder(ranking, toy_tokenizer()).save(emitted)  # by the engine itself, a while before
    emitted[6] = 1
    CounterFile(shared[0], 320).write(np.array([4, 0, 0, 0]), emitted)
    CounterFile(shared[1], 320)  # nothing emitted; and the third has left no file
    save_what_is_left(recorders)
    assert TokenRanking.load(ranking).counts[[5, 6]].tolist() == [3, 1]
    assert not any(path.exists() for path in shared)


def test_a_file_that_is_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "traffic.safetensors"
    path.write_text("notes")
    with pytest.raises(InputError):
        TrafficRecorder(path, toy_tokenizer())
    assert path.read_text() == "notes"
    other = toy_tokenizer()
    other.add_tokens(["<|more|>"])
    TokenRanking.from_texts(["text"], other).save(path)
    with pytest.raises(TokenizerMismatch, match="record_counts"):
        TrafficRecorder(path, toy_tokenizer())
