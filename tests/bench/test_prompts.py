"""Prompt sets: every format that is read, grouping, and what is refused."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from hothead.bench.prompts import MT_BENCH, MT_BENCH_CATEGORIES, Prompt, prompts_digest, read_prompts
from hothead.errors import InputError

REPOSITORY = Path(__file__).parents[2]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_spec_bench_is_read_with_its_groups(tmp_path: Path) -> None:
    path = write(
        tmp_path / "spec_bench.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
        {"question_id": 82, "category": "stem", "turns": ["Explain.", "More."], "reference": ["x"]},
        {"question_id": 83, "category": "rag", "turns": ["Read this."]},
    )
    assert read_prompts(path) == (
        Prompt("81", MT_BENCH, ("Write.", "Again.")),
        Prompt("82", MT_BENCH, ("Explain.", "More.")),
        Prompt("83", "rag", ("Read this.",)),
    )


def test_all_eight_conversation_categories_are_one_group(tmp_path: Path) -> None:
    categories = sorted(MT_BENCH_CATEGORIES)
    assert len(categories) == 8
    others = ["translation", "summarization", "qa", "math_reasoning", "rag"]
    path = write(tmp_path / "p.jsonl", *({"category": c, "turns": ["x"]} for c in [*categories, *others]))
    assert [prompt.group for prompt in read_prompts(path)] == [MT_BENCH] * 8 + others


def test_gsm8k_parquet_and_human_eval(tmp_path: Path) -> None:
    gsm8k = tmp_path / "gsm8k_test.parquet"
    parquet.write_table(pyarrow.table({"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"]}), gsm8k)
    assert read_prompts(gsm8k) == (Prompt("1", "gsm8k_test", ("1 + 1?",)), Prompt("2", "gsm8k_test", ("2 + 2?",)))
    human_eval = write(tmp_path / "human_eval.jsonl", {"task_id": "HumanEval/0", "prompt": "def f():", "test": "x"})
    assert read_prompts(human_eval) == (Prompt("HumanEval/0", "human_eval", ("def f():",)),)


def test_messages_end_with_the_last_user_message(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}
    answer = {"role": "assistant", "content": "Hello."}
    path = write(tmp_path / "p.jsonl", {"messages": [system, user, answer, user, answer]})
    (prompt,) = read_prompts(path)
    assert prompt.history == (system, user, answer)
    assert prompt.turns == ("Hi.",)
    assert prompt.messages() == [system, user, answer, user]


def test_later_turns_follow_the_answers() -> None:
    prompt = Prompt("1", "g", ("one", "two"))
    assert [message["content"] for message in prompt.messages(["ONE"])] == ["one", "ONE", "two"]


def test_plain_text_json_lists_and_strings(tmp_path: Path) -> None:
    text = tmp_path / "asked.txt"
    text.write_text("First?\n\n  Second?  \n", encoding="utf-8")
    assert read_prompts(text) == (Prompt("1", "asked", ("First?",)), Prompt("2", "asked", ("Second?",)))
    listed = tmp_path / "asked.json"
    listed.write_text(json.dumps([{"text": "First?"}, "Second?"]), encoding="utf-8")
    assert [prompt.turns for prompt in read_prompts(listed)] == [("First?",), ("Second?",)]


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_prompts(path)[0].turns == ("a\u2028b",)


def test_per_group_takes_the_first_of_each(tmp_path: Path) -> None:
    records = [{"id": n, "category": "ab"[n % 2], "prompt": str(n)} for n in range(7)]
    path = write(tmp_path / "p.jsonl", *records)
    assert [prompt.id for prompt in read_prompts(path, per_group=2)] == ["0", "1", "2", "3"]
    assert len(read_prompts(path, per_group=100)) == 7


def test_the_digest_follows_content_and_order() -> None:
    one, two = Prompt("1", "g", ("x",)), Prompt("2", "g", ("y",))
    assert prompts_digest([one, two]) == prompts_digest([one, two])
    others = [[two, one], [one], [one, Prompt("2", "h", ("y",))], [one, Prompt("2", "g", ("y", "z"))]]
    assert len({prompts_digest(prompts) for prompts in [[one, two], *others]}) == 5


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "holds no prompts"),
        ("{not json\n", r"line 1: not JSON"),
        ('{"prompt": "x"}\n[1]\n', "line 2: expected an object with a prompt; found list"),
        ('{"solution": "x"}\n', "none of the fields turns, messages, question"),
        ('{"prompt": " "}\n', "text that is not empty"),
        ('{"turns": []}\n', "text that is not empty"),
        ('{"turns": ["x", 3]}\n', "text that is not empty"),
        ('{"messages": [{"role": "user"}]}\n', "a role and a content"),
        ('{"messages": [{"role": "system", "content": "x"}]}\n', "no message is from the user"),
        ('{"id": 1, "prompt": "x"}\n{"id": 1, "prompt": "y"}\n', "two prompts have the id '1'"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_prompts(path)


def test_missing_binary_and_truncated_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "missing.jsonl")
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(InputError, match="not a readable UTF-8"):
        read_prompts(tmp_path / "p.txt")
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="not a readable parquet"):
        read_prompts(tmp_path / "p.parquet")
    with pytest.raises(InputError, match="at least 1"):
        read_prompts(tmp_path / "p.txt", per_group=0)


def test_the_demo_prompts_are_two_of_each_of_the_six_kinds() -> None:
    prompts = read_prompts(REPOSITORY / "prompts" / "demo.jsonl")
    groups = [prompt.group for prompt in prompts]
    kinds = (MT_BENCH, "translation", "summarization", "qa", "math_reasoning", "rag")
    assert {group: groups.count(group) for group in groups} == dict.fromkeys(kinds, 2)
    assert all(len(prompt.turns) == (2 if prompt.group == MT_BENCH else 1) for prompt in prompts)
