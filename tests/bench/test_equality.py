"""The equality check: equal answers, ties that rounding decides, and answers that are simply wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hothead.bench.equality import (
    TIE_ROUNDING_STEPS,
    Answered,
    Pass,
    common_length,
    is_tied,
    judge,
    logits_at,
    tie_tolerance,
)
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.models.target import ForwardOutput, Target
from hothead.models.toy import toy_causal_lm, toy_eagle, toy_standalone, toy_target, toy_tokenizer

PROMPT = [5, 9, 200, 31, 77]
PARAMS = SamplingParams(max_new_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


def answered(decoder: SpeculativeDecoder) -> Answered:
    stream = decoder.stream(PROMPT, PARAMS)
    passes = tuple(Pass(len(chunk.target_ids), 1 + chunk.drafted) for chunk in stream)
    return Answered(tuple(stream.result.target_ids), passes)


@pytest.fixture(scope="module")
def plain(target: Target) -> Answered:
    return answered(SpeculativeDecoder(target))


def changed(plain: Answered, position: int, target_id: int) -> Answered:
    ids = list(plain.target_ids)
    ids[position] = target_id
    return Answered.plainly(ids)


def test_equal_answers_are_equal(target: Target, plain: Answered) -> None:
    other = answered(SpeculativeDecoder(target, toy_standalone(target)))
    assert max(each.emitted for each in other.passes) > 1  # it did speculate
    verdict = judge(target, PROMPT, plain, other)
    assert (verdict.equality, verdict.difference) == ("equal", None)


@pytest.mark.parametrize("position", [0, 1, 7, 29])
def test_a_wrong_token_is_found_and_is_no_tie(target: Target, plain: Answered, position: int) -> None:
    wrong = (plain.target_ids[position] + 1) % 320
    verdict = judge(target, PROMPT, plain, changed(plain, position, wrong))
    assert verdict.equality == "different"
    assert verdict.difference is not None
    assert verdict.difference.position == position
    assert (verdict.difference.plain_target_id, verdict.difference.target_id) == (plain.target_ids[position], wrong)
    assert verdict.difference.plain_gap is not None and verdict.difference.plain_gap > 0
    assert verdict.difference.gap is not None and verdict.difference.gap < 0


def test_an_answer_that_ends_early_is_different(target: Target, plain: Answered) -> None:
    verdict = judge(target, PROMPT, plain, Answered.plainly(plain.target_ids[:9]))
    assert verdict.equality == "different"
    assert verdict.difference is not None
    assert (verdict.difference.position, verdict.difference.target_id) == (9, None)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_the_replayed_passes_chose_every_token(target: Target, num_steps: int) -> None:
    """Replaying a method's own passes must give logits whose argmax is what it emitted, wherever passes were cut."""
    for draft in (toy_eagle(target), toy_standalone(target)):
        answer = answered(SpeculativeDecoder(target, draft, shape=DraftShape(num_steps)))
        assert sum(each.emitted for each in answer.passes) == len(answer.target_ids) == 30
        for position, target_id in enumerate(answer.target_ids):
            assert int(logits_at(target, PROMPT, answer, position).argmax()) == target_id


def test_the_replayed_passes_have_the_shape_of_the_real_ones(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []
    forward = Target.forward

    def watched(self: Target, target_ids: Tensor, *arguments: Any, **keywords: Any) -> ForwardOutput:
        shapes.append(len(target_ids))
        return forward(self, target_ids, *arguments, **keywords)

    monkeypatch.setattr(Target, "forward", watched)
    for decoder in (
        SpeculativeDecoder(target),
        SpeculativeDecoder(target, toy_standalone(target), shape=DraftShape(4)),
        SpeculativeDecoder(target, toy_standalone(target), shape=DraftShape(4, p_min=0.3)),
        SpeculativeDecoder(target, toy_standalone(target), shape=DraftShape(4, 2, 7, verify_p_min=0.05)),
    ):
        shapes.clear()
        answer = answered(decoder)
        real = list(shapes)
        shapes.clear()
        logits_at(target, PROMPT, answer, 29)
        assert shapes == real
        assert real[1:] == [width for _, width in answer.passes[1:]]


def test_a_position_past_the_passes_is_an_error(target: Target, plain: Answered) -> None:
    with pytest.raises(ValueError, match="past them"):
        logits_at(target, PROMPT, plain, 30)


@pytest.fixture(scope="module")
def tied_target() -> Iterator[Target]:
    """A bfloat16 target with two ids that always have one logit."""
    model = toy_causal_lm(eos_token_id=257)
    model.lm_head.weight.data[100] = model.lm_head.weight.data[99] = 3 * model.lm_head.weight.data[98]
    yield Target(model.to(torch.bfloat16), toy_tokenizer())


def test_equal_top_logits_are_a_tie_in_bfloat16_only(tied_target: Target) -> None:
    plain = answered(SpeculativeDecoder(tied_target))
    position = plain.target_ids.index(99)
    verdict = judge(tied_target, PROMPT, plain, changed(plain, position, 100))
    assert verdict.equality == "tied"
    assert verdict.difference is not None
    assert verdict.difference.plain_gap == verdict.difference.gap == 0
    assert judge(tied_target, PROMPT, plain, changed(plain, position, 101)).equality == "different"


def test_two_low_logits_are_no_tie_of_the_top() -> None:
    logits = torch.tensor([10.0, 9.9, 3.0, 3.0])
    assert is_tied(logits, 0, 1, tolerance=0.2)
    assert not is_tied(logits, 2, 3, tolerance=0.2)
    assert not is_tied(logits, 0, 2, tolerance=0.2)


def test_the_tolerance_follows_dtype_and_scale() -> None:
    low = torch.tensor([0.1, -40.0])
    assert tie_tolerance(torch.float32, low) == 0
    assert tie_tolerance(torch.bfloat16, low) == TIE_ROUNDING_STEPS * 2**-7 * 40
    assert tie_tolerance(torch.float16, low) == TIE_ROUNDING_STEPS * 2**-10 * 40


def test_common_length() -> None:
    assert [common_length([1, 2], [1, 2]), common_length([1, 2], [1, 3]), common_length([1], [1, 3])] == [2, 1, 1]
    assert common_length([], [1]) == 0
