"""Dynamic vocabularies replayed on a path, against engines that follow the same traffic."""

import itertools

import numpy as np
import pytest
import torch

from hothead.dynamic import DynamicConfig, make_hot_vocabulary
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import InputError
from hothead.models.target import Target
from hothead.models.toy import toy_standalone, toy_target
from hothead.ranking.ranking import TokenRanking
from hothead.replay.dynamic import DynamicReplay
from hothead.replay.static import StaticReplay
from hothead.replay.teacher import read_answer
from hothead.vocab import DraftVocab, SelectionOrder

V = 48
PROMPT = [5, 9, 20, 31, 7]
COUNTS = np.random.default_rng(0).integers(0, 9, V)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(V, V)


@pytest.fixture(scope="module")
def ranking(target: Target) -> TokenRanking:
    return TokenRanking(COUNTS, target.tokenizer_fingerprint)


@pytest.mark.parametrize(
    "policy", ["none", "on_miss", "prompt", "on_miss+prompt", "target_topk:3", "on_miss+target_topk:2", "full_refresh"]
)
def test_greedy_rounds_are_the_engines(target: Target, ranking: TokenRanking, policy: str) -> None:
    """The engine's set is the replay's set after every round, or their rounds, misses or copies would differ.

    A fresh decoder a prompt: what an engine's last round emits past an answer's end is not replayed.
    """
    draft = toy_standalone(target)
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    vocab = DraftVocab.from_ranking(ranking, size=12, multiple_of=1)
    config = DynamicConfig(0 if policy == "full_refresh" else 5, policy, COUNTS)
    seen = set()
    for first in range(6):
        prompt = [first, *PROMPT]
        result = SpeculativeDecoder(target, draft, vocab, config, shape=DraftShape(3)).generate(prompt, params)
        answer = read_answer(target, draft, torch.tensor(prompt), torch.tensor(result.target_ids), params, 3)
        found = DynamicReplay(draft.lm_head, vocab, config, 3, params).replay(answer)
        assert found.rounds[0] == result.stats.rounds
        assert found.accepted.sum() + found.rounds[0] >= len(answer.path)
        # The last round may emit, miss and copy past the end.
        assert 0 <= result.stats.misses - found.missed[0] <= 3
        seen.add(result.stats.rounds)
    assert len(seen) > 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_sampling", ["probabilistic", "greedy"])
def test_without_slots_it_is_the_static_replay(
    target: Target, ranking: TokenRanking, temperature: float, draft_sampling: str
) -> None:
    draft = toy_standalone(target)
    params = SamplingParams(temperature, seed=1, max_new_tokens=24, ignore_eos=True, draft_sampling=draft_sampling)
    emitted = SpeculativeDecoder(target).generate(PROMPT, params).target_ids
    answer = read_answer(target, draft, torch.tensor(PROMPT), torch.tensor(emitted), params, 3)
    order = SelectionOrder.of(ranking, V)
    sizes = np.array([8, 16, 24, 48])
    static = StaticReplay(draft.lm_head, [order], sizes, (3,), params).replay(answer)[0][0]
    for column, size in enumerate(sizes):
        vocab = DraftVocab.from_ranking(ranking, size=int(size), multiple_of=1)
        found = DynamicReplay(draft.lm_head, vocab, DynamicConfig(0, "on_miss"), 3, params).replay(answer)
        assert found.rounds[0] == pytest.approx(static.rounds[column], rel=1e-4)
        np.testing.assert_allclose(found.accepted[:, 0], static.accepted[:, column], rtol=1e-3, atol=1e-5)
        assert found.missed[0] == static.missed[column]


@pytest.mark.parametrize("policy", ["on_miss", "prompt", "on_miss+prompt", "full_refresh"])
def test_how_offers_are_grouped_does_not_matter(target: Target, ranking: TokenRanking, policy: str) -> None:
    """What makes a sampled replay exact: after the same tokens the same ids are hot, by ones or in rounds."""
    vocab = DraftVocab.from_ranking(ranking, size=12, multiple_of=1)
    config = DynamicConfig(0 if policy == "full_refresh" else 5, policy, COUNTS)
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        tokens = torch.randint(0, V, (40,), generator=generator)
        hot = []
        for most in (1, 2, 5):
            cuts = np.random.default_rng(seed).integers(1, most + 1, 40).cumsum()
            cuts = [0, *cuts[cuts < 40], 40]
            vocabulary = make_hot_vocabulary(target.lm_head, vocab, config)
            vocabulary.after_prompt(tokens[:7])
            for start, end in itertools.pairwise(cuts):
                vocabulary.after_round(tokens[start:end], torch.empty(end - start, V))
            hot.append(set(vocabulary.head.target_ids.tolist()))
        assert hot[0] == hot[1] == hot[2]


def test_the_vocabulary_lasts_from_answer_to_answer(target: Target, ranking: TokenRanking) -> None:
    draft = toy_standalone(target)
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    vocab = DraftVocab.from_ranking(ranking, size=8, multiple_of=1)
    emitted = SpeculativeDecoder(target).generate(PROMPT, params).target_ids
    answer = read_answer(target, draft, torch.tensor(PROMPT), torch.tensor(emitted), params, 3)
    replay = DynamicReplay(draft.lm_head, vocab, DynamicConfig(30, "on_miss"), 3, params)
    first, second = replay.replay(answer), replay.replay(answer)
    assert first.missed[0] > 0
    assert second.missed[0] == 0
    assert second.rounds[0] < first.rounds[0]
    assert second.rows_copied == 0 < first.rows_copied


def test_a_policy_that_asks_for_more_than_is_kept_is_refused(target: Target, ranking: TokenRanking) -> None:
    vocab = DraftVocab.from_ranking(ranking, size=8, multiple_of=1)
    with pytest.raises(InputError, match="keeps the target's 16 likeliest ids a position; found target_topk:17"):
        DynamicReplay(target.lm_head, vocab, DynamicConfig(4, "on_miss+target_topk:17"), 2, SamplingParams())
