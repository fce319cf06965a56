"""``hothead optimize``: the whole chain on toy models, kept stages, each verdict's files, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, ToyFiles
from toy_drafts import save_eagle3

from hothead import DraftVocab, TokenRanking
from hothead.bench.prompts import Prompt, read_prompts
from hothead.bench.schema import read_results
from hothead.cli.optimize import held_out
from hothead.cli.optimize_files import hand_over
from hothead.errors import InputError
from hothead.export.base import Known, TokenMap, read_map
from hothead.plan.choice import make_plan
from hothead.plan.schema import BatchPlan, read_plan
from hothead.replay.curve import read_curves

Run = Callable[..., Outcome]
STAGES = ("ranking", "curve", "times", "head")


@pytest.fixture
def optimize(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> Run:
    def run(*options: str) -> Outcome:
        models = ["--target", toy_files.target, "--draft", toy_files.target, "--dtype", "float32"]
        few = ["--prompts", toy_files.prompts, "-n", "8", "--num-steps", "1,3", "--slots", "16", "--repeats", "1"]
        return run_cli("optimize", *models, *few, "-o", str(tmp_path / "out"), *options)

    return run


def told(outcome: Outcome) -> dict[str, str]:
    """What became of each stage: made or kept."""
    lines = [line.removeprefix("hothead: ").split(": ") for line in outcome.err.splitlines()]
    return {line[0]: line[1].split()[0] for line in lines if line[0] in STAGES}


def test_the_whole_chain_leaves_its_evidence(optimize: Run, tmp_path: Path) -> None:
    outcome = optimize("--json")
    assert outcome.status == 0, outcome.err
    assert told(outcome) == dict.fromkeys(STAGES, "made")
    found, out = json.loads(outcome.out), tmp_path / "out"
    plan = read_plan(out / "plan.json")
    assert plan == make_plan(read_curves(out / "curve.json"), plan.times)
    assert found["verdict"] == plan.batches[0].verdict
    assert found["choice"] == plan.batches[0].choice.model_dump()
    run = read_results(out / "compare.jsonl")
    assert run.header.settings.num_steps == plan.batches[0].choice.num_steps
    assert [check["method"] for check in found["verification"]["checks"]] == list(run.header.settings.methods[1:])
    assert all(answer.equality in ("reference", "equal") for answer in run.answers)
    assert {"curve", "times", "head times", "plan", "verifying run", "launch commands"} <= found["files"].keys()
    assert all(Path(path).exists() for path in found["files"].values())
    assert all(command in (out / "launch.txt").read_text() for command in found["commands"].values())


def test_prompts_that_are_ranked_are_not_measured(optimize: Run, tmp_path: Path, toy_files: ToyFiles) -> None:
    assert optimize().status == 0
    measured = {answer.prompt_id for answer in read_results(tmp_path / "out" / "compare.jsonl").answers}
    ranking = TokenRanking.load(tmp_path / "out" / "ranking.safetensors")
    asked = read_prompts(Path(toy_files.prompts))
    assert measured == {prompt.id for prompt in held_out(asked)[1]} < {prompt.id for prompt in asked}
    assert sum(source.records for source in ranking.sources) == sum(len(p.turns) for p in held_out(asked)[0])


def test_a_second_run_keeps_what_a_changed_option_does_not_touch(optimize: Run, tmp_path: Path) -> None:
    first = optimize("--json")
    assert first.status == 0, first.err
    again, kept = optimize("--json"), dict.fromkeys(STAGES, "kept")
    assert told(again) == kept
    assert json.loads(again.out) == json.loads(first.out)
    assert told(optimize("--repeats", "2")) == {**kept, "times": "made"}
    assert told(optimize("--num-steps", "2")) == {**kept, "curve": "made", "times": "made"}
    (tmp_path / "out" / "curve.json").write_text("{}")
    assert told(optimize("--num-steps", "2"))["curve"] == "made"


def test_an_interrupted_run_goes_on(optimize: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hothead.bench.compare import Comparison

    whole = Comparison._block
    calls: list[int] = []

    def interrupted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, *arguments, **named)

    monkeypatch.setattr(Comparison, "_block", interrupted)
    assert optimize("--ranking", str(saved_ranking(tmp_path))).status == 130
    path = tmp_path / "out" / "compare.jsonl"
    before = read_results(path).blocks
    assert len(before) == 1
    monkeypatch.undo()
    outcome = optimize("--ranking", str(saved_ranking(tmp_path)))
    assert outcome.status == 0, outcome.err
    after = read_results(path).blocks
    assert len(after) == 4
    assert before.items() <= after.items(), "what was measured is not measured again"


def saved_ranking(folder: Path) -> Path:
    """A ranking of the toy tokenizer that can be cut: no required ids."""
    from hothead.models.toy import toy_tokenizer
    from hothead.tokenizer import fingerprint

    path = folder / "given.safetensors"
    TokenRanking(np.arange(259, 0, -1), fingerprint(toy_tokenizer())).save(path)
    return path


def test_the_screen_says_what_to_do_and_why(optimize: Run, tmp_path: Path) -> None:
    outcome = optimize("--ranking", str(saved_ranking(tmp_path)))
    assert outcome.status == 0, outcome.err
    assert "ranking" not in told(outcome), "a given ranking is not made"
    first = outcome.out.splitlines()[0]
    assert first.startswith(("Draft with ", "Keep the full vocabulary", "Do not speculate here"))
    for words in ("Predicted and measured", "Why: ", "The run ", "answers equal plain decoding's", "hothead serve"):
        assert words in outcome.out
    assert len(outcome.out.splitlines()) <= 40


@pytest.fixture
def pruned() -> BatchPlan:
    """A plan for 128 of 320 rows with 16 slots."""
    from plan_inputs import curves_of, dynamic_of, times_of

    dynamic = [dynamic_of(2.9, 2.5, 128, 16, 3)]
    curves = curves_of({3: [2.0, 2.2, 2.5]}, sizes=(64, 128, 320), dynamic=dynamic)
    times = times_of(head_ms={64: 0.2, 320: 2.0}, updates=({"policy": "on_miss", "slots": 16, "ms": 0.01},))
    batch = make_plan(curves, times).batches[0]
    assert (batch.verdict, batch.choice.size, batch.choice.slots) == ("prune", 128, 16)
    return batch


def test_a_pruned_vocabulary_in_every_form(pruned: BatchPlan, toy_files: ToyFiles, tmp_path: Path) -> None:
    ranking = TokenRanking.load(toy_files.ranking)
    found = hand_over(pruned, tmp_path, toy_files.target, toy_files.draft, ranking, Path(toy_files.ranking))
    vocab = DraftVocab.load(found.files["draft vocabulary"])
    assert vocab == DraftVocab.from_ranking(ranking, size=128, target_vocab_size=320)
    content = read_map(found.files["token map"], Known(320)).content
    assert isinstance(content, TokenMap)
    assert content.vocab.target_ids.tolist() == vocab.target_ids.tolist()
    assert {"hothead", "vLLM with hothead's plugin", "SGLang"} == found.commands.keys()
    assert "--size 128 --slots 16 --policy on_miss" in found.commands["vLLM with hothead's plugin"]
    assert str(found.files["draft vocabulary"]) in found.commands["hothead"]
    assert "16 slots exist in hothead's engine" in found.notes[0]


def test_a_draft_with_its_own_head_is_pruned(pruned: BatchPlan, toy_files: ToyFiles, tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "eagle3")
    ranking = TokenRanking.load(toy_files.ranking)
    found = hand_over(pruned, tmp_path / "out", toy_files.target, str(draft), ranking, Path(toy_files.ranking))
    content = read_map(found.files["pruned draft"], Known(320)).content
    assert isinstance(content, TokenMap)
    assert len(content.vocab) == 128
    assert {"vllm", "sglang"} <= found.commands.keys()


def test_other_verdicts_write_no_vocabulary(pruned: BatchPlan, toy_files: ToyFiles, tmp_path: Path) -> None:
    ranking = TokenRanking.load(toy_files.ranking)
    for verdict, has_draft in (("keep the full vocabulary", True), ("do not speculate", False)):
        plan = pruned.model_copy(update={"verdict": verdict, "choice": pruned.full})
        found = hand_over(plan, tmp_path, toy_files.target, toy_files.draft, ranking, Path(toy_files.ranking))
        assert found.files.keys() == {"launch commands"}
        assert all(("--draft" in command) is has_draft for command in found.commands.values())
        assert not (tmp_path / "vocab.safetensors").exists()


def test_every_second_prompt_of_a_group_is_held_out() -> None:
    prompts = tuple(Prompt(str(i), group, ("?",)) for i, group in enumerate("aabbbc"))
    ranked, measured = held_out(prompts)
    assert [prompt.id for prompt in ranked] == ["1", "3"]
    assert [prompt.id for prompt in measured] == ["0", "2", "4", "5"]
    with pytest.raises(InputError, match="no group has two prompts"):
        held_out(prompts[-1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--num-steps", "17"], "between 1 and 16; found 17"),
        (["--num-steps", "few"], "whole numbers joined by commas"),
        (["--slots", "few"], "whole numbers joined by commas"),
        (["--repeats", "0"], "--repeats and --verify-prompts must be at least 1"),
        (["--temperature", "-1"], "temperature must be 0"),
        (["--dtype", "int8"], "--dtype must be one of"),
        (["--prompts", "missing.jsonl"], "no such file"),
        (["--ranking", "missing.safetensors"], "no such file"),
        (["--out", "/dev/null"], "cannot write into"),
    ],
)
def test_bad_options_are_refused_unloaded(
    optimize: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    from hothead.models import loading

    monkeypatch.setattr(loading, "load_target", lambda *_: pytest.fail("loaded a model for nothing"))
    outcome = optimize(*options)
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_what_is_missing_is_named(run_cli: Run) -> None:
    outcome = run_cli("optimize", "--target", "t", "--draft", "d", "--prompts", "p")
    assert (outcome.status, "give --out" in outcome.err) == (2, True)
