"""Result files: what is written is read back, what is damaged is refused, a run goes on where it ended."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from records import answer, block, failure, header

from hothead.bench.log import ResultLog
from hothead.bench.schema import Answer, Difference, read_results, to_lines
from hothead.errors import InputError


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    log = ResultLog(header(), path)
    difference = Difference(position=3, plain_target_id=5, target_id=None, plain_gap=0.5)
    first = (answer("plain"), answer("full", equality="different", difference=difference, target_ids=(1, 2), text="é"))
    second = (failure("plain", turn=1), failure("full", turn=1))
    log.append(first)
    log.append(second)
    found = read_results(path)
    assert found == log.results
    assert found.header == header()
    assert list(found.blocks.values()) == [first, second]
    assert found.answers == first
    assert found.failures == second
    assert len(found.sessions) == 1


def test_records_are_frozen_and_closed() -> None:
    record = answer("plain")
    with pytest.raises(ValidationError):
        record.new_tokens = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="tokens_new"):
        Answer.model_validate({**record.model_dump(), "tokens_new": 3})


def test_a_run_goes_on_after_its_complete_blocks(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ResultLog(header(), path).append(block("1"))
    whole = path.read_text()
    path.write_text(whole + to_lines(block("2")[:1]) + '{"kind": "ans')  # killed while it wrote
    assert read_results(path).dropped == 2
    log = ResultLog(header(), path)
    assert list(log.blocks) == [("1", 0, 0)]
    log.append(block("2"))
    found = read_results(path)
    assert list(found.blocks) == [("1", 0, 0), ("2", 0, 0)]
    assert len(found.sessions) == 2
    assert found.dropped == 0


def test_another_comparison_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ResultLog(header(), path).append(block("1"))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"settings.max_new_tokens was 64 and is 65 now"):
        ResultLog(header(max_new_tokens=65), path)
    assert path.read_bytes() == before


def test_a_failed_write_leaves_whole_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    log = ResultLog(header(), path)
    log.append(block("1"))
    before = path.read_bytes()

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hothead.bench.log.os.fsync", full_disk)
    with pytest.raises(InputError, match=r"No space left on device; the 1 blocks in it are whole"):
        log.append(block("2"))
    assert path.read_bytes() == before


def test_results_can_stay_in_memory() -> None:
    log = ResultLog(header())
    log.append(block("1"))
    assert log.results.answers == block("1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no complete line"),
        ('{"kind": "header"', "no complete line"),
        ("hello\n", "must be a hothead.compare header"),
        ('{"format": "hothead.compare", "version": 99}\n', "version 99; this hothead reads version 1"),
        ('{"format": "hothead.compare", "version": 1}\n', "line 1: a damaged header"),
    ],
)
def test_what_is_no_result_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_results(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 3: not a result record"),
        ('{"kind": "guess"}', "line 3: not a result record"),
        (json.dumps({**answer("plain").model_dump(), "extra": 1}), "line 3: not a result record .*extra"),
        (to_lines([answer("turbo")]).strip(), "line 3: method 'turbo' is there twice, or not in the header"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "r.jsonl"
    ResultLog(header(), path)
    path.write_text(path.read_text() + line + "\n" + to_lines(block("1")))
    with pytest.raises(InputError, match=said):
        read_results(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "missing.jsonl")
    (tmp_path / "r.jsonl").write_bytes(b"\x80\x04\xff")
    with pytest.raises(InputError, match="not a readable result file"):
        read_results(tmp_path / "r.jsonl")
