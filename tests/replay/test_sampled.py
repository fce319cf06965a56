"""Expected rounds of sampled answers, against the rounds that the engine's own random draws took.

Given its path, an answer's rounds have a known distribution: that of a walk over the path which accepts each draft with
its probability. The tests draw that walk many times and ask whether the engine's total lies within it (see ``walks``).
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from walks import WALKS, acceptances, is_likely, walks

from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.models.toy import toy_standalone, toy_target
from hothead.ranking.ranking import TokenRanking
from hothead.replay.dynamic import DynamicReplay
from hothead.replay.static import StaticReplay
from hothead.replay.teacher import TeacherForced, read_answer
from hothead.vocab import DraftVocab, SelectionOrder

V, K = 32, 3
SIZES = np.array([12, 32])


@dataclass(frozen=True)
class Run:
    rounds: int
    answer: TeacherForced


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(V, V, num_hidden_layers=1)


@pytest.fixture(scope="module")
def ranking(target: Target) -> TokenRanking:
    counts = np.random.default_rng(1).integers(1, 9, V)
    return TokenRanking(counts, target.tokenizer_fingerprint)


def sampled_runs(
    target: Target,
    draft: Draft,
    vocab: DraftVocab,
    params: SamplingParams,
    dynamic: DynamicConfig | None = None,
    count: int = 60,
) -> list[Run]:
    runs = []
    for seed in range(count):
        prompt = [seed % V, 3, 7]
        of_seed = SamplingParams(
            params.temperature, seed=seed, max_new_tokens=14, ignore_eos=True, draft_sampling=params.draft_sampling
        )
        result = SpeculativeDecoder(target, draft, vocab, dynamic, shape=DraftShape(K)).generate(prompt, of_seed)
        answer = read_answer(target, draft, torch.tensor(prompt), torch.tensor(result.target_ids), params, K)
        runs.append(Run(result.stats.rounds, answer))
    return runs


@pytest.mark.parametrize("draft_sampling", ["probabilistic", "greedy"])
def test_static_rounds_are_the_engines(target: Target, ranking: TokenRanking, draft_sampling: str) -> None:
    draft = toy_standalone(target)
    params = SamplingParams(1.3, draft_sampling=draft_sampling)
    vocab = DraftVocab.from_ranking(ranking, size=int(SIZES[0]), multiple_of=1)
    order = SelectionOrder.of(ranking, V)
    replay = StaticReplay(draft.lm_head, [order], SIZES, (K,), params)
    generator = np.random.default_rng(0)
    total, expected, expected_full, totals = 0, 0.0, 0.0, np.zeros(WALKS)
    for run in sampled_runs(target, draft, vocab, params):
        found = replay.replay(run.answer)[0][0]
        drawn = walks(acceptances(draft, run.answer, vocab, params, K), WALKS, generator)
        # The mean of the walks is the replay's expectation, but for their own noise.
        assert found.rounds[0] == pytest.approx(drawn.mean(), abs=6 * drawn.std() / np.sqrt(WALKS) + 1e-3)
        total, totals = total + run.rounds, totals + drawn
        expected, expected_full = expected + found.rounds[0], expected_full + found.rounds[1]
    assert is_likely(total, totals)
    # It would show if another size's acceptance were taken: the test has the power it needs.
    assert not is_likely(round(expected_full), totals)
    assert expected == pytest.approx(totals.mean(), rel=1e-3)


def test_dynamic_rounds_are_the_engines(target: Target, ranking: TokenRanking) -> None:
    draft = toy_standalone(target)
    params = SamplingParams(1.3)
    vocab = DraftVocab.from_ranking(ranking, size=8, multiple_of=1)
    config = DynamicConfig(6, "on_miss+prompt")
    total, expected, without_slots, variance = 0, 0.0, 0.0, 0.0
    for run in sampled_runs(target, draft, vocab, params, config):
        found = DynamicReplay(draft.lm_head, vocab, config, K, params).replay(run.answer)
        static = DynamicReplay(draft.lm_head, vocab, DynamicConfig(0), K, params).replay(run.answer)
        total, expected = total + run.rounds, expected + found.rounds[0]
        without_slots += static.rounds[0]
        variance += (run.rounds - found.rounds[0]) ** 2
    # 60 answers: near enough to normal, 4.4 standard deviations are beyond ALPHA even with Student's tails.
    assert abs(total - expected) < 4.4 * np.sqrt(variance)
    assert abs(total - without_slots) > 4.4 * np.sqrt(variance), "slots that change nothing prove nothing"
