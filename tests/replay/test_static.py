"""Every size from one pass, against the engine at each size and against plain arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.head import LMHead
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.models.toy import toy_eagle, toy_standalone, toy_target
from hothead.ranking.ranking import TokenRanking
from hothead.replay.law import Renewal
from hothead.replay.static import StaticReplay
from hothead.replay.teacher import TeacherForced, read_answer
from hothead.vocab import DraftVocab, SelectionOrder

V, WORDS = 48, 40  # 8 rows past the tokenizer's ids
PROMPT = [5, 9, 20, 31, 7]
KS = (1, 2, 4)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(V, WORDS)


@pytest.fixture(scope="module")
def rankings(target: Target) -> list[TokenRanking]:
    """Two rankings of the target's tokenizer, with its special tokens, which are always in."""
    generator = np.random.default_rng(0)
    return [
        TokenRanking(generator.integers(0, 9, WORDS), target.tokenizer_fingerprint, np.array([37, 38, 39]))
        for _ in range(2)
    ]


def every_size(rankings: list[TokenRanking]) -> tuple[list[SelectionOrder], np.ndarray]:
    orders = [SelectionOrder.of(ranking, V) for ranking in rankings]
    return orders, orders[0].sizes(multiple_of=1)


def answer_of(target: Target, draft: Draft, params: SamplingParams, prompt: list[int] = PROMPT) -> TeacherForced:
    emitted = SpeculativeDecoder(target).generate(prompt, params).target_ids
    return read_answer(target, draft, torch.tensor(prompt), torch.tensor(emitted), params, max(KS))


@pytest.mark.parametrize("make_draft", [toy_eagle, toy_standalone])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 30])
def test_greedy_rounds_are_the_engines_at_every_size(
    target: Target, rankings: list[TokenRanking], make_draft: type[Draft], max_new_tokens: int
) -> None:
    """Rounds are whole numbers here and must be equal: every third size, each k in turn, two rankings."""
    draft = make_draft(target)
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    answer = answer_of(target, draft, params)
    orders, sizes = every_size(rankings)
    assert sizes[0] == 3 and sizes[-1] == V
    replayed = StaticReplay(draft.lm_head, orders, sizes, KS, params).replay(answer)
    lengths = set()
    for ranking, of_ranking in zip(rankings, replayed, strict=True):
        for number, column in enumerate(range(0, len(sizes), 3)):
            size, which = int(sizes[column]), number % len(KS)
            vocab = DraftVocab.from_ranking(ranking, size=size, target_vocab_size=V, multiple_of=1)
            stats = SpeculativeDecoder(target, draft, vocab, shape=DraftShape(KS[which])).generate(PROMPT, params).stats
            found = of_ranking[which]
            assert found.rounds[column] == stats.rounds, (KS[which], size)
            assert found.missed[column] == len(answer.path) - int(np.isin(answer.path, vocab.target_ids).sum())
            lengths.add(stats.acceptance_length)
    if max_new_tokens == 30 and make_draft is toy_standalone:
        assert len(lengths) > 6, "a draft that no size changes proves nothing"


def test_the_end_of_a_turn_cuts_the_last_round(target: Target) -> None:
    """Answers that end by an end-of-turn token inside a round."""
    draft = toy_standalone(target)
    params = SamplingParams(max_new_tokens=60)
    full = SelectionOrder(np.arange(V), 0)
    ended = 0
    for first in range(8):
        answer = answer_of(target, draft, params, [first, 3])
        found = StaticReplay(draft.lm_head, [full], np.array([V]), (4,), params).replay(answer)[0][0]
        result = SpeculativeDecoder(target, draft).generate([first, 3], params)
        ended += result.finish_reason == "stop"
        assert found.rounds[0] == result.stats.rounds
    assert ended, "no answer ended by itself"


def test_deep_chains_that_no_size_keeps_alive_are_left_out_without_a_trace(
    target: Target, rankings: list[TokenRanking]
) -> None:
    """k = 4 beside k = 2 gives what k = 2 gives alone."""
    draft = toy_standalone(target)
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    answer = answer_of(target, draft, params)
    orders, sizes = every_size(rankings)
    both = StaticReplay(draft.lm_head, orders, sizes, (2, 4), params).replay(answer)
    alone = StaticReplay(draft.lm_head, orders, sizes, (2,), params).replay(answer.to_depth(2))
    for ours, theirs in zip(both, alone, strict=True):
        np.testing.assert_array_equal(ours[0].rounds, theirs[0].rounds)
        np.testing.assert_array_equal(ours[0].accepted, theirs[0].accepted)


# Made-up states: the head alone, with ties and any ranking.


def made_up(seed: int, n: int, depth: int, ids: int, ties: bool) -> tuple[LMHead, TeacherForced]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(ids, 3, generator=generator)
    hidden = torch.randn(n, depth, 3, generator=generator)
    if ties:
        weight, hidden = weight.round(), hidden.round()
    path = torch.randint(0, ids, (n + 1,), generator=generator)
    log_probs = torch.rand(n, generator=generator).log()
    nothing = torch.zeros(n, 0, dtype=torch.int64)
    return LMHead(weight), TeacherForced(path[:0], path, hidden, log_probs, nothing)


def by_hand(lm_head: LMHead, answer: TeacherForced, order: np.ndarray, size: int, params: SamplingParams) -> Renewal:
    """One vocabulary, by the definition: restrict, normalise, compare."""
    hot = np.sort(order[:size])
    n, depth = answer.hidden.shape[:2]
    renewal = Renewal(n, depth, 1)
    for start in range(n):
        accepts = np.zeros(depth)
        for step in range(min(depth, n - start)):
            logits = (lm_head.weight @ answer.hidden[start, step]).double().numpy()[hot]
            x = int(answer.path[start + step])
            if params.is_greedy or params.draft_sampling == "greedy":
                accepts[step] = hot[logits.argmax()] == x
            elif x in hot:
                q = np.exp(logits / params.temperature)
                p = float(answer.log_probs[start + step].double().exp())
                accepts[step] = min(1.0, q[np.searchsorted(hot, x)] / q.sum() / p)
        renewal.start(np.cumprod(accepts)[:, None])
    return renewal


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 6),
    depth=st.integers(1, 4),
    multiple_of=st.sampled_from([1, 3, 8]),
    kind=st.sampled_from(["greedy", "greedy drafts", "probabilistic"]),
    ties=st.booleans(),
)
def test_all_sizes_are_what_each_gives_by_hand(
    seed: int, n: int, depth: int, multiple_of: int, kind: str, ties: bool
) -> None:
    ids = 19
    lm_head, answer = made_up(seed, n, depth, ids, ties)
    order = np.random.default_rng(seed).permutation(ids)
    selection = SelectionOrder(order, 2)
    sizes = selection.sizes(multiple_of)
    draft_sampling = "greedy" if kind == "greedy drafts" else "probabilistic"
    params = SamplingParams(0.0 if kind == "greedy" else 0.7, draft_sampling=draft_sampling)
    (found,) = StaticReplay(lm_head, [selection], sizes, (depth,), params).replay(answer)[0]
    for column, size in enumerate(sizes):
        expected = by_hand(lm_head, answer, order, int(size), params)
        assert found.rounds[column] == pytest.approx(expected.rounds[0], rel=1e-4)
        np.testing.assert_allclose(found.accepted[:, column], expected.accepted[:, 0], rtol=1e-3, atol=1e-5)
    assert np.all(np.diff(found.missed) <= 0) and found.missed[-1] == 0
    assert np.all(found.rounds >= n / (depth + 1) - 1e-9) and np.all(found.rounds <= n + 1e-9)
    assert np.all(np.diff(found.accepted, axis=0) <= 1e-9), "a deeper draft is accepted more often"


def test_cold_temperatures_do_not_underflow() -> None:
    """Logits far below the row's largest, summed alone: a small vocabulary without the likeliest ids."""
    weight = torch.tensor([[-300.0], [-301.0], [400.0]])
    answer = TeacherForced(
        torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]), torch.ones(1, 1, 1), torch.zeros(1), torch.zeros(1, 0)
    )
    selection = SelectionOrder(np.arange(3), 0)
    params = SamplingParams(0.5)
    replay = StaticReplay(LMHead(weight), [selection], np.arange(1, 4), (1,), params)
    accepted = replay.replay(answer)[0][0].accepted[0]
    np.testing.assert_allclose(accepted, [1.0, 1 / (1 + np.exp(-2)), 0.0], rtol=1e-6)
