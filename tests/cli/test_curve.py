"""``hothead curve``: tables, the result file, what it reads without torch, and what it refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, ToyFiles

from hothead import DraftShape, DraftVocab, SamplingParams, SpeculativeDecoder, TokenRanking, load_draft, load_target
from hothead.cli.curve import read_rankings
from hothead.errors import InputError
from hothead.replay.curve import read_curves
from hothead.replay.paths import Paths

Run = Callable[..., Outcome]


@pytest.fixture
def curve(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> Run:
    def run(*options: str) -> Outcome:
        models = ["--target", toy_files.target, "--draft", toy_files.target, "--dtype", "float32"]
        files = ["--ranking", toy_files.ranking, "--prompts", toy_files.prompts, "--cache", str(tmp_path / "cache")]
        return run_cli("curve", *models, *files, "-n", "8", *options)

    return run


def test_tables_for_every_k_and_group(curve: Run) -> None:
    outcome = curve(
        "--num-steps", "1,3", "--slots", "4,8", "--sizes", "64", "--policy", "on_miss", "--policy", "prompt"
    )
    assert outcome.status == 0, outcome.err
    for words in ("k = 1, overall", "k = 3, 95%", "mt_bench (1)", "qa (2)", "64+4", "64+8", "rows  rows%", "320"):
        assert words in outcome.out
    assert outcome.out.count("on_miss") == 4


def test_rows_count_slots_too(curve: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    options = ("--slots", "8,16", "--rows", "144", "--every", "8", "--policy", "on_miss", "--policy", "full_refresh")
    assert curve("-o", str(path), *options).status == 0
    found = {(d.policy, d.size, d.slots) for d in read_curves(path).dynamic}
    assert found == {("on_miss", 136, 8), ("on_miss", 128, 16), ("full_refresh", 144, 0)}


def test_missed_tokens_are_those_that_coverage_lacks(curve: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    assert curve("-o", str(path)).status == 0
    curves = read_curves(path)
    overall = curves.curve()
    missed = {found.size: found for found in curves.missed}
    for size in curves.standard_sizes:
        lacking = round((1 - overall.coverage[curves.index(size)]) * overall.tokens)
        assert lacking == (missed[size].tokens if size in missed else 0)
    assert missed and all(example.count > 0 for found in missed.values() for example in found.examples)


def test_the_result_file_holds_every_size_and_says_what_the_engine_does(
    curve: Run, toy_files: ToyFiles, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "curve.json"
    assert curve("-o", str(path), "--every", "40", "--num-steps", "2,4").status == 0
    curves = read_curves(path)
    assert curves.sizes == (40, 80, 120, 160, 200, 240, 280, 320)
    assert curves.groups == ("mt_bench", "qa", "overall")
    assert len(curves.curves) == 2 * 3
    target = load_target(toy_files.target, "float32")
    draft = load_draft(toy_files.target, target)
    ranking = TokenRanking.load(toy_files.ranking)
    overall = curves.curve(num_steps=4)
    for size in (120, 320):
        vocab = DraftVocab.from_ranking(ranking, size=size, target_vocab_size=320, multiple_of=40)
        decoder = SpeculativeDecoder(target, draft, vocab, shape=DraftShape(4))
        tokens = rounds = 0
        for prompt in [json.loads(line) for line in Path(toy_files.prompts).read_text().splitlines()]:
            messages: list[dict[str, Any]] = []
            for turn in prompt["turns"]:
                messages.append({"role": "user", "content": turn})
                result = decoder.generate(messages, SamplingParams(max_new_tokens=8))
                messages.append({"role": "assistant", "content": result.text})
                tokens += result.stats.new_tokens - 1
                rounds += result.stats.rounds
        assert overall.tokens == tokens
        assert overall.acceptance_length.value[curves.index(size)] == pytest.approx(tokens / rounds, abs=1e-6)


def test_the_json_document_is_the_file(curve: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    outcome = curve("-o", str(path), "--json", "--temperature", "0.7", "--draft-sampling", "greedy")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out) == json.loads(path.read_text())
    series = json.loads(outcome.out)["curves"][-1]["acceptance_length"]
    bounds = zip(series["low"], series["value"], series["high"], strict=True)
    assert all(low <= value <= high for low, value, high in bounds)


def test_several_rankings_and_no_cache(curve: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    ranking = TokenRanking.load(toy_files.ranking)
    other = tmp_path / "other.safetensors"
    TokenRanking(ranking.counts[::-1].copy(), ranking.tokenizer_fingerprint).save(other)
    outcome = curve("--ranking", str(other), "--no-keep", "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert [each["name"] for each in found["rankings"]] == ["ranking", "other"]
    lengths = [c["acceptance_length"]["value"] for c in found["curves"] if c["group"] == "overall"]
    assert lengths[0][-1] == lengths[1][-1], "the full vocabulary has no order"
    assert lengths[0][0] != lengths[1][0]
    assert not (tmp_path / "cache").exists()


def test_rankings_of_one_name_are_told_apart_by_their_folders(toy_files: ToyFiles, tmp_path: Path) -> None:
    ranking = TokenRanking.load(toy_files.ranking)
    files = [tmp_path / "code" / "r.safetensors", tmp_path / "web" / "r.safetensors"]
    for file in files:
        ranking.save(file)
    assert list(read_rankings(files)) == ["code/r", "web/r"]
    with pytest.raises(InputError, match="two rankings are called"):
        read_rankings([files[0], files[0]])


def test_a_second_question_is_answered_from_the_cache(curve: Run) -> None:
    assert curve().status == 0
    outcome = curve("--json", "--every", "32")
    cost = json.loads(outcome.out)["cost"]
    assert cost["cached"] == cost["answers"] == 4
    assert cost["generate_s"] == cost["pass_s"] == 0


def test_an_interruption_says_what_is_kept(curve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Paths._read
    calls: list[int] = []

    def interrupted(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return read(self, *arguments)

    monkeypatch.setattr(Paths, "_read", interrupted)
    outcome = curve()
    assert outcome.status == 130
    assert "2 answers are kept" in outcome.err
    monkeypatch.undo()
    assert json.loads(curve("--json").out)["cost"]["cached"] == 2


def test_showing_and_plotting_a_file_need_no_torch(curve: Run, tmp_path: Path) -> None:
    path, plot = tmp_path / "curve.json", tmp_path / "plot.svg"
    first = curve("-o", str(path), "--slots", "8")
    assert first.status == 0
    code = (
        "import sys; from hothead.cli.main import run_command; "
        f"status = run_command(['curve', 'show', {str(path)!r}, '--plot', {str(plot)!r}]);"
        "sys.exit(status or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2:] == first.out.splitlines()[2:]
    assert b"<svg" in plot.read_bytes()


def test_damaged_and_foreign_files_are_refused(curve: Run, run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    assert curve("-o", str(path)).status == 0
    found = json.loads(path.read_text())
    for change, said in (
        ({"format": "other"}, "not a result of hothead curve"),
        ({"version": 9}, "a curve of version 9"),
        ({"sizes": "many"}, "a damaged curve (sizes"),
    ):
        path.write_text(json.dumps({**found, **change}))
        outcome = run_cli("curve", "show", str(path))
        assert (outcome.status, said in outcome.err) == (2, True), outcome.err
    path.write_text("{")
    assert "not a readable JSON file" in run_cli("curve", "show", str(path)).err
    assert "no such file" in run_cli("curve", "show", str(tmp_path / "none.json")).err


def test_sizes_between_two_of_the_curve_are_rounded_up_like_a_vocabulary(curve: Run, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    assert curve("-o", str(path)).status == 0
    curves = read_curves(path)
    assert [curves.sizes[curves.index(size)] for size in (64, 65, 128, 300, 320)] == [64, 128, 128, 320, 320]
    assert np.all(np.diff(curves.curve().coverage) >= 0)
    with pytest.raises(InputError, match="between 1 and 320; found 321"):
        curves.index(321)
    with pytest.raises(InputError, match="no curve of ranking 'mine', k = 4"):
        curves.curve("mine")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--num-steps", "17"], "between 1 and 16; found 17"),
        (["--num-steps", "2,2"], "each once"),
        (["--num-steps", "few"], "whole numbers joined by commas"),
        (["--every", "0"], "--every must be at least 1"),
        (["--slots", "8", "--policy", "lucky"], "no policy is called 'lucky'"),
        (["--policy", "prompt"], "give --slots too"),
        (["--rows", "64"], "give --slots too"),
        (["--slots", "8", "--rows", "64", "--sizes", "64"], "give one of them"),
        (["--slots", "8", "--rows", "8"], "--rows must be above --slots"),
        (["--temperature", "-1"], "temperature must be 0"),
        (["--draft-sampling", "beam"], "draft_sampling must be"),
        (["--dtype", "int8"], "--dtype must be one of"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--plot", "plot.bmp"], "found .bmp"),
        (["-o", "."], "it is a folder"),
        (["--prompts", "missing.jsonl"], "no such file"),
    ],
)
def test_bad_options_are_refused_unloaded(
    curve: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    from hothead.models import loading

    monkeypatch.setattr(loading, "load_target", lambda *_: pytest.fail("loaded a model for nothing"))
    outcome = curve(*options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_ranking_of_another_tokenizer_is_refused(curve: Run, tmp_path: Path, toy_files: ToyFiles) -> None:
    other = tmp_path / "other.safetensors"
    TokenRanking(TokenRanking.load(toy_files.ranking).counts, "0" * 64).save(other)
    outcome = curve("--ranking", str(other))
    assert outcome.status == 2
    assert "rank again with the right one" in outcome.err


def test_answers_of_one_token_make_no_curve(curve: Run) -> None:
    outcome = curve("-n", "1")
    assert outcome.status == 2
    assert "Allow more new tokens" in outcome.err
