"""``hothead bench engine``: methods and peers in one table, errors in their place, results that are continued."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, ToyFiles

from hothead.bench.schema import LOOKUP, TRANSFORMERS, VLLM, read_results

Run = Callable[..., Outcome]
METHODS = "plain,full,static,dynamic tree,static size=64 k=2"


@pytest.fixture
def bench(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> Run:
    def run(*options: str) -> Outcome:
        places = ("--prompts", toy_files.prompts, "-n", "10", "--logs", str(tmp_path / "logs"))
        peers = ("--peers", f"{TRANSFORMERS},{LOOKUP},{VLLM}", "--vllm-python", "/no/python", "--tree", "3/2/5")
        return run_cli("bench", "engine", *toy_files.engine_options, *places, *peers, "--methods", METHODS, *options)

    return run


def test_the_table_has_everyone_and_a_failing_peer_stops_nothing(bench: Run, run_cli: Run, tmp_path: Path) -> None:
    path, plot = tmp_path / "r.jsonl", tmp_path / "r.svg"
    outcome = bench("-o", str(path), "--plot", str(plot))
    assert outcome.status == 0, outcome.err
    for words in ("mt_bench (1)", "overall (3)", "dynamic tree", "static size=64 k=2", " / it", TRANSFORMERS):
        assert words in outcome.out
    assert "Errors: vllm failed 4 times, such as: InputError: --vllm-python /no/python" in outcome.out
    assert f"{LOOKUP}: generate prompt_lookup_num_tokens=10" in outcome.out
    assert "Texts: 16 of 16 answers equal" in outcome.out  # of ours
    assert b"<svg" in plot.read_bytes()
    results = read_results(path)
    assert len(results.failures) == 4
    assert len(results.answers) == 4 * 7
    assert all(answer.answer_s for answer in results.answers)
    shown = run_cli("bench", "engine", "show", str(path))
    assert shown.out.replace(" ", "") in outcome.out.replace(" ", "")
    again = bench("-o", str(path))
    assert "4 of 4 blocks are there" in again.err
    assert read_results(path).answers == results.answers


def test_an_interrupted_run_goes_on(bench: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert bench("-o", str(path)).status == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 2 + 8 + 3]))  # a block, and a part of the next
    outcome = bench("-o", str(path))
    assert "1 of 4 blocks are there; going on" in outcome.err
    assert len(read_results(path).blocks) == 4


def test_the_json_document_times_whole_answers(bench: Run) -> None:
    outcome = bench("--json", "--groups", "qa", "--repeats", "2")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert [group["name"] for group in found["groups"]] == ["qa", "overall"]
    methods = {method["method"]: method for method in found["groups"][-1]["methods"]}
    assert methods["dynamic tree"]["best_hot_times_it"] is None
    assert methods[TRANSFORMERS]["best_hot_times_it"]["value"] > 0
    assert methods[TRANSFORMERS]["same_text"] == 1
    assert found["groups"][-1]["best_hot"] in ("static", "dynamic tree", "static size=64 k=2")
    assert found["header"]["settings"]["tree"] == "3/2/5"
    assert found["header"]["peers"][VLLM] == ["?"]
    assert len(found["errors"]) == 4


def test_several_prompt_sets_are_one(bench: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    more = tmp_path / "human_eval.jsonl"
    more.write_text(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():"}) + "\n")
    outcome = bench("--prompts", str(more), "--json", "--peers", "none", "--methods", "plain")
    found = json.loads(outcome.out)
    assert [group["name"] for group in found["groups"]] == ["mt_bench", "qa", "human_eval", "overall"]
    assert found["header"]["prompt_set"]["name"] == "prompts+human_eval"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "plain,turbo"], "no method is called 'turbo'"),
        (["--methods", "plain,static fast"], "'fast' is none of"),
        (["--methods", "plain,full 1/4/9"], "num_draft_tokens must be between"),
        (["--peers", "sglang"], "no peer is called 'sglang'"),
        (["--peers", "vllm,vllm"], "named twice"),
        (["--tree", "4-4"], "LEVELS/TOPK/TOKENS"),
        (["--groups", "code"], "no prompt is in the group 'code'; the groups are mt_bench, qa"),
        (["--repeats", "0"], "must be at least 1"),
        (["--plot", "p.bmp"], "found .bmp"),
    ],
)
def test_bad_options_are_refused_unloaded(
    bench: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    from hothead.models import loading

    monkeypatch.setattr(loading, "load_target", lambda *_: pytest.fail("loaded a model for nothing"))
    outcome = bench(*options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_showing_results_needs_no_torch(bench: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert bench("-o", str(path), "--peers", "none").status == 0
    code = (
        "import sys; from hothead.cli.main import run_command; status = run_command(['bench', 'engine', 'show', "
        f"{str(path)!r}]); sys.exit(status or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "overall (3)" in done.stdout
