"""The teacher-forced pass against the engine's own calls, one chain and one token at a time."""

import pytest
import torch

from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams, probabilities
from hothead.models import eagle
from hothead.models.draft import Draft, Unrolls
from hothead.models.target import Target
from hothead.models.toy import toy_eagle, toy_standalone, toy_target
from hothead.replay.teacher import chains_by_steps, read_answer

PROMPT = [5, 9, 200, 31, 7]


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


@pytest.mark.parametrize("make_draft", [toy_eagle, toy_standalone])
@pytest.mark.parametrize("starts", [1, 7])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_unrolled_chains_are_the_engines(
    monkeypatch: pytest.MonkeyPatch, target: Target, make_draft: type[Draft], starts: int, depth: int
) -> None:
    monkeypatch.setattr(eagle, "CHAIN_BLOCK", 3)  # several blocks
    draft = make_draft(target)
    ids = torch.randint(0, 320, (12,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = target.features(ids, target.new_cache())[:-1]
        expected = chains_by_steps(draft, ids, features, starts, depth)
        assert isinstance(draft, Unrolls)
        found = draft.chains(ids, features, starts, depth)
    assert found.shape == (starts, depth, 32)
    for start in range(starts):
        real = min(depth, starts - start)  # deeper ones would read past the end
        # Predicted features grow along a chain, and rounding with them.
        torch.testing.assert_close(found[start, :real], expected[start, :real], atol=1e-3, rtol=1e-4)


def test_chains_differ_between_their_starts(target: Target) -> None:
    """An EAGLE chain reads its own predictions: the same position at another depth is another state."""
    ids = torch.arange(12)
    with torch.inference_mode():
        features = target.features(ids, target.new_cache())[:-1]
        chains = toy_eagle(target).chains(ids, features, 6, 3)
    assert not torch.allclose(chains[1, 0], chains[0, 1], atol=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_pass_reads_what_the_target_said(target: Target, temperature: float) -> None:
    params = SamplingParams(temperature, seed=3, max_new_tokens=20, ignore_eos=True)
    emitted = SpeculativeDecoder(target).generate(PROMPT, params).target_ids
    answer = read_answer(target, toy_eagle(target), torch.tensor(PROMPT), torch.tensor(emitted), params, 3)
    assert answer.path.tolist() == emitted[1:]
    with torch.inference_mode():
        logits = target.forward(torch.tensor(PROMPT + emitted), target.new_cache()).logits[len(PROMPT) : -1]
    assert torch.equal(answer.top_target_ids[:, 0], logits.argmax(-1))
    if temperature:
        p = probabilities(logits, params).gather(1, answer.path[:, None])[:, 0]
        torch.testing.assert_close(answer.log_probs.exp(), p, atol=1e-5, rtol=1e-4)
    else:
        assert torch.equal(answer.path, logits.argmax(-1))


def test_an_answer_of_one_token_has_no_path(target: Target) -> None:
    answer = read_answer(target, toy_eagle(target), torch.tensor(PROMPT), torch.tensor([1]), SamplingParams(), 3)
    assert answer.hidden.shape == (0, 3, 32)
    assert len(answer.path) == len(answer.log_probs) == len(answer.top_target_ids) == 0


def test_a_draft_that_cannot_unroll_is_read_step_by_step(target: Target) -> None:
    class Plain:
        """The engine's calls alone."""

        def __init__(self, draft: Draft) -> None:
            self.name, self.lm_head, self.vocab, self.taps = draft.name, draft.lm_head, draft.vocab, draft.taps
            self.reset, self.extend, self.step, self.rollback = draft.reset, draft.extend, draft.step, draft.rollback

    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    emitted = torch.tensor(SpeculativeDecoder(target).generate(PROMPT, params).target_ids)
    draft = toy_eagle(target)
    plain: Draft = Plain(draft)
    assert not isinstance(plain, Unrolls)
    by_steps = read_answer(target, plain, torch.tensor(PROMPT), emitted, params, 1)
    unrolled = read_answer(target, draft, torch.tensor(PROMPT), emitted, params, 1)
    torch.testing.assert_close(by_steps.hidden, unrolled.hidden, atol=1e-3, rtol=1e-4)
