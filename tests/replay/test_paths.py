"""Answers and passes on disk: found again, made again when damaged, never taken for others."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hothead.bench.prompts import Prompt
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.models.target import Target
from hothead.models.toy import toy_eagle, toy_standalone, toy_target
from hothead.replay import paths as paths_module
from hothead.replay.paths import PathCache, Paths

PROMPTS = (Prompt("1", "a", ("Hello.", "And more?")), Prompt("2", "b", ("Who?",)))


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


def read(target: Target, folder: Path | None, depth: int = 2, prompts: Any = PROMPTS, **changes: Any) -> Paths:
    draft = toy_eagle(target)
    params = SamplingParams(**{"max_new_tokens": 6, "ignore_eos": True, **changes})
    return Paths(
        SpeculativeDecoder(target, draft), draft, prompts, params, depth, PathCache(folder, {"target": "toy"}), "eagle"
    )


def test_each_turn_follows_the_answers_before_it(target: Target) -> None:
    found = list(read(target, None))
    assert [(path.number, path.turn) for path in found] == [(0, 0), (0, 1), (1, 0)]
    first, second = found[0].answer, found[1].answer
    assert first is not None and second is not None
    asked, answered = first.prompt_target_ids.tolist(), first.target_ids.tolist()
    # The second prompt holds the first one's text and answer (special tokens of the answer aside).
    assert len(second.prompt_target_ids) > len(asked) + len(answered) - 6
    assert len(first.path) == 5


def test_the_second_time_nothing_is_computed(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(read(target, tmp_path))
    monkeypatch.setattr(SpeculativeDecoder, "generate", lambda *_: pytest.fail("answered again"))
    monkeypatch.setattr(paths_module, "read_answer", lambda *_: pytest.fail("read again"))
    again = read(target, tmp_path)
    for ours, theirs in zip(again, first, strict=True):
        assert ours.answer is not None and theirs.answer is not None
        for name in ("prompt_target_ids", "target_ids", "hidden", "log_probs", "top_target_ids"):
            assert torch.equal(getattr(ours.answer, name), getattr(theirs.answer, name)), name
    assert again.cached == 3 and again.generate_s == again.pass_s == 0


def test_shorter_chains_are_cut_from_longer_ones_and_longer_are_made(target: Target, tmp_path: Path) -> None:
    list(read(target, tmp_path, depth=3))
    shorter = read(target, tmp_path, depth=2)
    assert all(path.answer is not None and path.answer.hidden.shape[1] == 2 for path in shorter)
    assert shorter.cached == 3
    longer = read(target, tmp_path, depth=4)
    assert all(path.answer is not None and path.answer.hidden.shape[1] == 4 for path in longer)
    assert longer.cached == 0 and longer.generate_s == 0


def test_an_interrupted_run_goes_on(target: Target, tmp_path: Path) -> None:
    iterator = iter(read(target, tmp_path))
    next(iterator)
    rest = read(target, tmp_path)
    assert len(list(rest)) == 3
    assert rest.cached == 1


@pytest.mark.parametrize("changes", [{"max_new_tokens": 7}, {"temperature": 0.5}, {"temperature": 0.5, "seed": 1}])
def test_other_settings_are_other_answers(target: Target, tmp_path: Path, changes: dict[str, Any]) -> None:
    list(read(target, tmp_path))
    other = read(target, tmp_path, **changes)
    list(other)
    assert other.cached == 0 and other.generate_s > 0


def test_another_draft_reads_the_same_answers(target: Target, tmp_path: Path) -> None:
    list(read(target, tmp_path))
    draft = toy_standalone(target)
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    cache = PathCache(tmp_path, {"target": "toy"})
    other = Paths(SpeculativeDecoder(target), draft, PROMPTS, params, 2, cache, "standalone")
    list(other)
    assert other.generate_s == 0 and other.cached == 0 and other.pass_s > 0


def test_damaged_files_are_made_again(target: Target, tmp_path: Path) -> None:
    first = list(read(target, tmp_path))
    for number, file in enumerate(sorted(tmp_path.glob("*.safetensors"))):
        file.write_bytes(file.read_bytes()[: 40 * number])
    again = list(read(target, tmp_path))
    for ours, theirs in zip(again, first, strict=True):
        assert ours.answer is not None and theirs.answer is not None
        assert torch.equal(ours.answer.hidden, theirs.answer.hidden)


def test_a_prompt_that_does_not_fit_is_passed_over_with_its_later_turns(target: Target) -> None:
    long = Prompt("3", "a", ("x" * 400, "Still there?"))
    found = list(read(target, None, prompts=(long, PROMPTS[1])))
    assert [path.answer is None for path in found] == [True, True, False]
    assert "the target's context is 256" in found[0].skipped
    assert found[1].skipped == "turn 1 has no answer to go on from"
