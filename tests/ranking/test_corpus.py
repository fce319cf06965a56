"""Every format gives the records that are in the file, and what cannot be read is said in one line."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hothead.errors import InputError
from hothead.ranking import corpus as corpus_module
from hothead.ranking.corpus import PIECE_CHARS, PIECE_CHARS_MAX, Corpus
from hothead.ranking.records import (
    KNOWN_FIELDS,
    ChatRecord,
    IdsRecord,
    PromptRecord,
    TextRecord,
    record_of,
)

ASK = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Hello"}


def read(path: Path | str, **options: Any) -> list[Any]:
    return list(Corpus([path], **options))


# --- what a JSON value is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [ASK, REPLY]},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"prompt": "Hi", "completion": "Hello"},
        {"prompt": [ASK], "response": "Hello"},
        {"question": "Hi", "answer": "Hello", "text": "not this"},
        {"messages": [ASK], "choices": [{"message": REPLY}]},
        {"request": {"messages": [ASK]}, "response": {"choices": [{"message": REPLY}]}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, REPLY]},
        [ASK, REPLY],
    ],
)
def test_chats_by_all_their_names(value: Any) -> None:
    assert record_of(value, "here") == ChatRecord((ASK, REPLY), "here")


@pytest.mark.parametrize(
    ("value", "record"),
    [
        ("a text", TextRecord("a text", "here")),
        ({"id": 3, "text": "a text"}, TextRecord("a text", "here")),
        ({"output": "a text"}, TextRecord("a text", "here")),
        ({"turns": ["one", "two"], "category": "qa"}, PromptRecord(("one", "two"), "here")),
        ({"prompt": "one"}, PromptRecord(("one",), "here")),
        ({"instruction": "do", "input": "this"}, PromptRecord(("do\n\nthis",), "here")),
        ({"messages": [ASK]}, PromptRecord(("Hi",), "here")),
        ([3, 1, 4], IdsRecord([3, 1, 4], "here")),
        ({"input_ids": [3, 1], "text": "not this"}, IdsRecord([3, 1], "here")),
    ],
)
def test_texts_prompts_and_ids(value: Any, record: Any) -> None:
    assert record_of(value, "here") == record


def test_a_named_field_wins_over_the_guess() -> None:
    value = {"text": "no", "response": {"choices": [{"text": "yes"}]}}
    assert record_of(value, "here", "response.choices.0.text") == TextRecord("yes", "here")
    with pytest.raises(InputError, match=r"here: no field 'answer'; there are: response, text"):
        record_of(value, "here", "answer")
    with pytest.raises(InputError, match="neither text, nor messages"):
        record_of({"text": 5}, "here", "text")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*KNOWN_FIELDS, "role", "from", "message", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_json_value_is_a_record_or_an_input_error(value: Any) -> None:
    try:
        record = record_of(value, "here")
    except InputError as error:
        assert str(error).startswith("here: ")
    else:
        assert record.size >= 0


# --- files ----------------------------------------------------------------------------------------


def test_json_lines_and_arrays(tmp_path: Path) -> None:
    values = [{"text": "one"}, {"text": "zwei\nü"}, {"ids": [1, 2]}]
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n\n".join(json.dumps(value) for value in values))
    array = tmp_path / "a.json"
    array.write_text(json.dumps(values, indent=2))
    for path in (lines, array):
        contents = [getattr(record, "text", None) or record.target_ids for record in read(path)]
        assert contents == ["one", "zwei\nü", [1, 2]]
    assert [record.where for record in read(lines)] == [f"{lines} line {n}" for n in (1, 3, 5)]


@given(
    values=st.lists(
        st.text(max_size=30) | st.lists(st.integers(0, 9), min_size=1, max_size=9) | st.just("x" * 500),
        max_size=8,
    ),
    indent=st.sampled_from([None, 1]),
    block=st.integers(1, 40),
)
def test_json_arrays_stream_whatever_the_block(values: list[Any], indent: int | None, block: int) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    assert [value for value, _ in corpus_module._json_values(blocks, "x")] == values
    lines = "\n".join(json.dumps(value) for value in values)
    blocks = [lines[i : i + block] for i in range(0, len(lines), block)]
    assert [value for value, _ in corpus_module._line_values(blocks, "x")] == values


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2], "question": ["Hi", "Hi"], "answer": ["Hello", "Bye"]}), path)
    assert read(path)[0] == ChatRecord((ASK, REPLY), f"{path} row 1")
    assert read(path, field="answer")[1] == TextRecord("Bye", f"{path} row 2")
    with pytest.raises(InputError, match="no column 'text'; there are: n, question, answer"):
        read(path, field="text")
    pq.write_table(pa.table({"ids": [[1, 2], [3]], "turns": [["a"], ["b"]]}), path)
    assert [record.target_ids for record in read(path)] == [[1, 2], [3]]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_files(tmp_path: Path, pack: Any) -> None:
    suffix = ".gz" if pack is gzip.compress else ".zst"
    data = "".join(json.dumps({"text": f"línea {i}"}) + "\n" for i in range(5000)).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(data[:1000]) + pack(data[1000:]))  # several members, as log shippers write
    assert [record.text for record in read(path)] == [f"línea {i}" for i in range(5000)]
    path.write_bytes(pack(data)[:-20])
    with pytest.raises(InputError, match=r"a\.jsonl.*cannot be read.*[Tt]runcated"):
        read(path)


def test_several_files_and_globs(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert [r.text for r in Corpus([tmp_path / "c.txt", str(tmp_path / "[ab].txt")])] == ["c", "a", "b"]
    assert Corpus([str(tmp_path / "*.txt")]).names == ("a.txt", "b.txt", "c.txt")


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('{"text": "one"}\n', TextRecord("one", "standard input line 1")),
        ('["one"]', TextRecord("one", "standard input item 1")),
        ("plain { text", TextRecord("plain { text", "standard input piece 1")),
    ],
)
def test_standard_input_is_told_by_its_first_character(
    monkeypatch: pytest.MonkeyPatch, text: str, record: TextRecord
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert read("-") == [record]


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    text, table = tmp_path / "a.txt", tmp_path / "b.parquet"
    text.write_text("line\n" * 100_000)
    pq.write_table(pa.table({"text": [str(i) for i in range(3000)]}), table)
    corpus = Corpus([text, table])
    seen = [corpus.bytes_read for _ in corpus]
    assert seen == sorted(seen) and 0 < seen[0] < seen[-1] <= corpus.bytes_total
    assert corpus.bytes_read == corpus.bytes_total


# --- long texts -----------------------------------------------------------------------------------


@given(
    parts=st.lists(
        st.sampled_from(["word " * 700, "line of text\n" * 300, "x" * 20_000, "\n\n   indented\n", "é" * 100]),
        max_size=30,
    ),
    block=st.integers(100, 100_000),
)
def test_pieces_join_to_the_text_and_do_not_depend_on_blocks(parts: list[str], block: int) -> None:
    text = "".join(parts)
    whole = list(corpus_module._pieces([text]))
    assert list(corpus_module._pieces(text[i : i + block] for i in range(0, len(text), block))) == whole
    assert "".join(whole) == text
    assert all(PIECE_CHARS <= len(piece) <= PIECE_CHARS_MAX for piece in whole[:-1])


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"text": ', "a.jsonl line 2: not JSON"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1: not JSON"),
        ("a.jsonl", b'{"id": 1, "score": 2}', "a.jsonl line 1: no text, .* in its fields .id, score.*--field"),
        ("a.json", b'["one", "two"', "a.json: cut off"),
        ("a.json", b'["one", {"text": nope}]', "a.json item 2: not JSON"),
        ("a.json", b"[" * 100_000, "a.json item 1: not JSON"),
        ("a.json", b"[5]", "a.json item 1: this value is neither text"),
        ("a.txt", b"caf\xe9 au lait", "a.txt: not UTF-8"),
        ("a.txt.gz", b"not gzip at all", "a.txt.gz: cannot be read"),
        ("a.txt.zst", b"not zstd at all", "a.txt.zst: cannot be read"),
        ("a.parquet", b"PAR1 but no more", "a.parquet: not a readable parquet file"),
        ("a.parquet", b"", "a.parquet: not a readable parquet file"),
    ],
)
def test_unreadable_files_are_said(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read(path)
    assert len(str(caught.value)) < 400


def test_missing_inputs_and_folders_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Corpus([tmp_path / "missing.txt"])
    with pytest.raises(InputError, match="no such file"):
        Corpus([str(tmp_path / "*.txt")])
    with pytest.raises(InputError, match=r"is a folder; name files in it, such as .*/\*\.jsonl"):
        Corpus([tmp_path])
