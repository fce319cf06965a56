"""``hothead rank`` from files to ranking: what it prints and writes, and that bad input costs one line and no file."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMOLLM2
from safetensors.numpy import save_file

from hothead import files
from hothead.cli import main, rank
from hothead.ranking import counts as counts_module
from hothead.ranking import records
from hothead.ranking.ranking import TokenRanking


@dataclass
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def spec(toy_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    toy_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def other_spec(other_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("other")
    other_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run_line(*arguments: str | Path) -> Outcome:
        status = main.run_command(["rank", *map(str, arguments)])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run_line


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    turns = [{"role": "user", "content": "zzz"}, {"role": "assistant", "content": "abca"}]
    path.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(3)))
    return path


def tokens(path: Path, tokenizer: Any) -> dict[str, int]:
    counts = TokenRanking.load(path).counts
    return {tokenizer.convert_ids_to_tokens(int(i)): int(counts[i]) for i in np.flatnonzero(counts)}


# --- what it does ---------------------------------------------------------------------------------


def test_chats_become_a_ranking_of_what_the_assistant_says(
    run: Any, chats: Path, spec: str, toy_tokenizer: Any, tmp_path: Path
) -> None:
    outcome = run("chats.jsonl", "--target", spec, "-o", "r.safetensors")
    assert outcome.status == 0 and outcome.err == ""
    assert outcome.out.startswith("r.safetensors: 15 tokens of 3 records\n")
    assert tokens(tmp_path / "r.safetensors", toy_tokenizer) == {"a": 6, "b": 3, "c": 3, "<|im_end|>": 3}
    outcome = run("build", chats, "--tokenizer", spec, "-o", "r.safetensors", "--count", "all", "--json")
    document = json.loads(outcome.out)
    assert document["output"] == "r.safetensors" and document["vocab_size"] == 260
    assert document["coverage"]["260"] == 1 and document["coverage"]["256"] == 1
    assert tokens(tmp_path / "r.safetensors", toy_tokenizer)["z"] == 9


def test_the_same_input_gives_the_same_bytes(run: Any, chats: Path, spec: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(chats, "--target", spec, "-o", name).status == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a").read_bytes()  # no paths of this machine
    assert not list(tmp_path.glob("*.partial"))


def test_merge_adds_and_show_tells(run: Any, chats: Path, spec: str, toy_tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("aab")
    run(chats, "--target", spec, "-o", "a")
    run("text.txt", "--target", spec, "-o", "b")
    outcome = run("merge", "a", "b", "-o", "c", "--weights", "1,10")
    assert outcome.status == 0 and "45 tokens of 2 rankings" in outcome.out
    assert tokens(tmp_path / "c", toy_tokenizer) == {"a": 26, "b": 13, "c": 3, "<|im_end|>": 3}
    outcome = run("show", "c")
    assert "45 tokens; 4 of the tokenizer's 260 occur" in outcome.out
    assert "chats.jsonl: 15 tokens of 3 records (assistant)" in outcome.out
    assert "text.txt: 3 tokens of 1 records (assistant) x 10" in outcome.out
    assert outcome.out.splitlines()[-1].split() == ["260", "100.00%"]
    document = json.loads(run("show", "c", "--json").out)
    assert document["tokens"] == 45 and document["sources"][1]["weight"] == 10


def test_show_plots_the_curve(run: Any, chats: Path, spec: str, tmp_path: Path) -> None:
    run(chats, "--target", spec, "-o", "r")
    for suffix, magic in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert run("show", "r", "--plot", f"curve.{suffix}").status == 0
        assert (tmp_path / f"curve.{suffix}").read_bytes().startswith(magic)
    outcome = run("show", "r", "--plot", "curve.doc")
    assert outcome.status == 2 and "written as .png, .svg or .pdf" in outcome.err


def test_real_prompts_and_tokenizer(run: Any, smollm2_tokenizer: Any, tmp_path: Path) -> None:
    smollm2_tokenizer.save_pretrained(tmp_path / "tokenizer")
    lines = [{"question": f"What is {i} times 3?", "answer": f"It is {3 * i}."} for i in range(50)]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run("qa.jsonl", "--target", "tokenizer", "-o", "r").status == 0
    found = tokens(tmp_path / "r", smollm2_tokenizer)
    assert found["It"] == found["Ġis"] == found["."] == found["<|im_end|>"] == 50
    assert "What" not in found and "Ġtimes" not in found


# --- answers --------------------------------------------------------------------------------------


def test_a_models_own_answers(run: Any, toy_tokenizer: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(toy_tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    toy_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    line = ("--generate-with", "model", "--prompts", "prompts.txt", "--max-tokens", "5", "-o", "r.safetensors")
    outcome = run(*line)
    assert outcome.status == 0, outcome.err
    log = tmp_path / "r.answers.jsonl"
    said = [json.loads(text)["target_ids"] for text in log.read_text().splitlines()]
    ranking = TokenRanking.load(tmp_path / "r.safetensors")
    assert len(said) == 2 and ranking.counts.tolist() == np.bincount(np.concatenate(said), minlength=260).tolist()
    assert ranking.sources[0].made_by == "model, greedy, at most 5 tokens"
    before = (log.read_bytes(), (tmp_path / "r.safetensors").read_bytes())
    assert run(*line).status == 0
    assert (log.read_bytes(), (tmp_path / "r.safetensors").read_bytes()) == before


def test_a_server_that_is_not_there(run: Any, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hothead.ranking import endpoint

    async def at_once(_: float) -> None:
        return None

    monkeypatch.setattr(endpoint.asyncio, "sleep", at_once)
    (tmp_path / "prompts.txt").write_text("one\n")
    line = ("--endpoint", "http://127.0.0.1:9/v1", "--prompts", "prompts.txt", "--target", spec, "-o", "r")
    outcome = run(*line)
    assert outcome.status == 2 and len(outcome.err.splitlines()) == 1
    assert "no answer in 6 tries" in outcome.err


# --- bad input: one line, status 2, the earlier file as it was --------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", "", "no tokens were counted"),
        ("empty.jsonl", "\n\n", "no tokens were counted"),
        ("ids.jsonl", '{"ids": [1, 260]}', "ids.jsonl line 1: token id 260 is outside the tokenizer's vocabulary"),
        ("ids.jsonl", '{"ids": [-1]}', "token id -1 is outside"),
        ("cut.jsonl", '{"text": "abc"}\n{"text": "a', "cut.jsonl line 2: not JSON"),
        ("turns.jsonl", '{"turns": ["abc"]}', "nothing to count in 1 records: prompts without answers"),
        ("odd.jsonl", '{"score": 1}', "name one with --field"),
        ("wrong.parquet", "not parquet", "not a readable parquet file"),
    ],
)
def test_bad_corpora(run: Any, spec: str, tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "r").write_bytes(b"earlier")
    outcome = run(name, "--target", spec, "-o", "r")
    assert outcome.status == 2 and outcome.out == ""
    assert said in outcome.err and len(outcome.err.splitlines()) == 1
    assert (tmp_path / "r").read_bytes() == b"earlier"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.txt", "--target", "SPEC", "-o", "r"], "missing.txt: no such file"),
        (["chats.jsonl", "-o", "r"], "--tokenizer is missing"),
        (["chats.jsonl", "--target", "SPEC"], "Missing option '--output'"),
        (["chats.jsonl", "--target", "./nowhere", "-o", "r"], "./nowhere: no such file or folder"),
        (["chats.jsonl", "--target", "SPEC", "-o", "."], "it is a folder"),
        (["chats.jsonl", "--target", "SPEC", "-o", "-"], "cannot go to standard output"),
        (["--target", "SPEC", "-o", "r"], "give input files, or --prompts"),
        (["chats.jsonl", "--prompts", "chats.jsonl", "--target", "SPEC", "-o", "r"], "--prompts goes with"),
        (["--generate-with", "SPEC", "-o", "r"], "--prompts goes with"),
        (["--generate-with", "a", "--endpoint", "b", "-o", "r"], "exclude each other"),
        (["chats.jsonl", "--count", "user", "--target", "SPEC", "-o", "r"], "'user' is not one of"),
        (["merge", "-o", "r"], "Missing argument"),
        (["merge", "a", "--weights", "x", "-o", "r"], "--weights are numbers"),
    ],
)
def test_bad_command_lines(run: Any, chats: Path, spec: str, tmp_path: Path, arguments: list[str], said: str) -> None:
    outcome = run(*(spec if word == "SPEC" else word for word in arguments))
    assert outcome.status == 2 and outcome.out == "" and len(outcome.err.splitlines()) == 1
    assert said in outcome.err
    assert not (tmp_path / "r").exists()


def test_bad_rankings(run: Any, chats: Path, spec: str, other_spec: str, tmp_path: Path) -> None:
    run(chats, "--target", spec, "-o", "mine")
    run(chats, "--target", other_spec, "-o", "other")
    good = (tmp_path / "mine").read_bytes()
    (tmp_path / "cut").write_bytes(good[: len(good) // 2])
    (tmp_path / "text").write_text("hello")

    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "pickle").write_bytes(pickle.dumps(Payload()))
    save_file({"weight": np.ones(3)}, tmp_path / "model.safetensors")
    (tmp_path / "c").write_bytes(b"earlier")
    for name, said in (
        ("other", "their ids mean other tokens"),
        ("cut", "cut: not a readable safetensors file"),
        ("text", "text: not a readable safetensors file"),
        ("pickle", "pickle: a pickle"),
        ("model.safetensors", "not a token ranking"),
        ("missing", "missing: no such file"),
    ):
        outcome = run("merge", "mine", name, "-o", "c")
        assert outcome.status == 2 and len(outcome.err.splitlines()) == 1 and said in outcome.err
        if name != "other":
            assert said in run("show", name).err
    assert (tmp_path / "c").read_bytes() == b"earlier" and not (tmp_path / "ran").exists()


def test_a_full_disk(run: Any, chats: Path, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r").write_bytes(b"earlier")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    outcome = run(chats, "--target", spec, "-o", "r")
    assert outcome.status == 2 and len(outcome.err.splitlines()) == 1
    assert "No space left on device" in outcome.err
    assert (tmp_path / "r").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chats.jsonl", "r"]


# --- interruption ---------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on(run: Any, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(50)))
    run("text.jsonl", "--target", spec, "-o", "whole")
    (tmp_path / "r").write_bytes(b"earlier")
    monkeypatch.setattr(counts_module, "BATCH_RECORDS", 10)
    whole, tokenised = counts_module.count_batch, []

    def interrupt(batch: Any, *arguments: Any) -> Any:
        tokenised.append(len(batch))
        if len(tokenised) == 3:
            raise KeyboardInterrupt
        return whole(batch, *arguments)

    monkeypatch.setattr(counts_module, "count_batch", interrupt)
    outcome = run("text.jsonl", "--target", spec, "-o", "r")
    assert outcome.status == 130
    assert outcome.err == f"hothead: interrupted; {rank.RESUME}\n"
    assert (tmp_path / "r").read_bytes() == b"earlier" and (tmp_path / "r.partial").exists()
    assert run("text.jsonl", "--target", spec, "-o", "r").status == 0
    assert sum(tokenised) == 50 + 10  # only the batch that was under way is tokenised again
    assert (tmp_path / "r").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / "r.partial").exists()


def bytes_read(pid: int, path: Path) -> int:
    """How far a process has read a file that it has open; 0 before it opens it."""
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            if link.readlink() == path:
                info = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                return int(info.split("pos:")[1].split()[0])
    return 0


@pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="needs /proc to see how far the process is")
def test_a_real_ctrl_c(spec: str, tmp_path: Path) -> None:
    corpus = tmp_path / "big.txt"
    corpus.write_text("some words of a line that goes on for a while\n" * 800_000)
    code = "from hothead.cli.main import run; run()"
    line = [sys.executable, "-c", code, "rank", str(corpus), "--target", spec, "-o", str(tmp_path / "r")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline and bytes_read(process.pid, corpus) < 4_000_000:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, "")
    assert err == f"hothead: interrupted; {rank.RESUME}\n"
    assert (tmp_path / "r.partial").exists() and not (tmp_path / "r").exists()


# --- the page about it ----------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "rank.md"


def test_the_page_names_the_fields_that_are_read() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text().split("A record is")[1].split("--field")[0]))
    assert named - {"from", "value"} == set(records.KNOWN_FIELDS)


def test_the_pages_python_runs(smollm2_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, {})
    assert TokenRanking.load("ranking.safetensors").token_total == 10


def test_the_pages_command_lines_are_understood(run: Any) -> None:
    lines = re.findall(r"^hothead rank (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        outcome = run(*line.split())
        assert outcome.status == 2 and "no such file" in outcome.err  # all that is missing is the files


@pytest.mark.slow
def test_smollm2_answers(run: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("What is the capital of France?\nCount from one to five.\n")
    line = ("--generate-with", SMOLLM2, "--prompts", "prompts.txt", "--max-tokens", "16", "-o", "r.safetensors")
    assert run(*line).status == 0
    said = [json.loads(text) for text in (tmp_path / "r.answers.jsonl").read_text().splitlines()]
    assert any("Paris" in answer["text"] for answer in said)
    ranking = TokenRanking.load(tmp_path / "r.safetensors")
    assert ranking.token_total == sum(len(answer["target_ids"]) for answer in said)
