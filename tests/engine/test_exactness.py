"""Sampled text follows the target's distribution exactly, whatever the draft proposes.

Counts of emitted sequences are compared with probabilities enumerated from the target alone, by a chi-square test.
Seeds are fixed, so a test always gives the same verdict; ALPHA is how often a correct engine would be failed by a
fresh seed. Each test also shows that its draws would expose the usual mistakes (see ``test_mistakes_show``).
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from hothead.dynamic import DynamicConfig
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams, probabilities
from hothead.engine.verify import Proposal, verify_greedy, verify_sampled
from hothead.models.target import Target
from hothead.models.toy import toy_eagle, toy_standalone, toy_target
from hothead.vocab import DraftVocab

ALPHA = 1e-6  # false-failure probability of each test


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square goodness of fit; cells with fewer than 5 expected are merged into one."""
    large = expected >= 5
    assert counts[expected == 0].sum() == 0, "an impossible sequence was emitted"
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    keep = wanted > 0
    return float(stats.chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue)


# The verifier alone: k drafted tokens of V ids, of which only some are hot.

V, HOT, K = 5, [0, 2, 3], 2


def random_probs(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(1.5).softmax(-1)


def emitted_counts(draws: int, is_drafted_greedily: bool = False, wrong_q: bool = False) -> np.ndarray:
    """How often each pair of first two emitted ids came, [V, V]; rows of p do not depend on the path here."""
    p = random_probs(0, K + 1, V)
    q = random_probs(1, K, len(HOT))
    rows = torch.tensor([*HOT, -1])
    q_rows = torch.cat([q, torch.zeros(K, 1)], dim=1)
    generator = torch.Generator().manual_seed(2)
    counts = np.zeros((V, V))
    for _ in range(draws):
        if is_drafted_greedily:
            proposal = Proposal(torch.tensor(HOT)[q.argmax(-1)])
        else:
            ids = torch.tensor(HOT)[torch.multinomial(q, 1, generator=generator).squeeze(-1)]
            proposal = Proposal(ids, q_rows.flip(0) if wrong_q else q_rows, rows)
        first, *rest = verify_sampled(proposal, p, generator)
        # A round that ends early goes on with a fresh draw, as the next round would.
        second = rest[0] if rest else int(torch.multinomial(p[1], 1, generator=generator))
        counts[first, second] += 1
    return counts


@pytest.mark.parametrize("is_drafted_greedily", [False, True])
def test_the_verifier_is_exact(is_drafted_greedily: bool) -> None:
    draws = 12_000
    p = random_probs(0, K + 1, V).numpy()
    counts = emitted_counts(draws, is_drafted_greedily)
    assert p_value(counts.ravel(), draws * np.outer(p[0], p[1]).ravel()) > ALPHA


def test_mistakes_show() -> None:
    """With a q other than the one drafted from, the same test rejects: it has the power it needs."""
    draws = 12_000
    p = random_probs(0, K + 1, V).numpy()
    counts = emitted_counts(draws, wrong_q=True)
    assert p_value(counts.ravel(), draws * np.outer(p[0], p[1]).ravel()) < ALPHA


def test_greedy_verification() -> None:
    logits = torch.eye(6)[[1, 2, 3]]
    assert verify_greedy(Proposal(torch.tensor([1, 2])), logits) == [1, 2, 3]
    assert verify_greedy(Proposal(torch.tensor([1, 4])), logits) == [1, 2]
    assert verify_greedy(Proposal(torch.tensor([0, 2])), logits) == [1]
    assert verify_greedy(Proposal(torch.empty(0, dtype=torch.int64)), logits[:1]) == [1]


def test_top_k_and_top_p_keep_what_they_should() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    assert probabilities(logits, SamplingParams(1.0, top_k=1)).tolist() == [[1, 0, 0, 0]]
    kept = probabilities(logits, SamplingParams(1.0, top_p=0.6))[0]
    assert kept.tolist() == pytest.approx([0.5 / 0.7, 0.2 / 0.7, 0, 0]) or kept.tolist() == pytest.approx(
        [0.5 / 0.7, 0, 0.2 / 0.7, 0]
    )
    cold = probabilities(logits, SamplingParams(0.5))[0]
    assert cold.tolist() == pytest.approx((torch.tensor([0.25, 0.04, 0.04, 0.01]) / 0.34).tolist())


# The whole engine: three emitted tokens of a toy target with 8 ids.

WORDS, LENGTH, DRAWS = 8, 3, 1500
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(vocab_size=WORDS, words=WORDS, sharpness=1.0)


@torch.inference_mode()
def enumerated(target: Target, params: SamplingParams) -> np.ndarray:
    """The probability of every sequence of LENGTH ids after PROMPT, [WORDS ** LENGTH], by the target alone."""
    sequences = list(itertools.product(range(WORDS), repeat=LENGTH))
    result = np.ones(len(sequences))
    known: dict[tuple[int, ...], np.ndarray] = {}
    for number, sequence in enumerate(sequences):
        for position, target_id in enumerate(sequence):
            prefix = sequence[:position]
            if prefix not in known:
                output = target.forward(torch.tensor([*PROMPT, *prefix]), target.new_cache(), last=1)
                known[prefix] = probabilities(output.logits, params)[0].double().numpy()
            result[number] *= known[prefix][target_id]
    return result


@pytest.mark.parametrize(
    ("draft_name", "method", "sampling"),
    [
        ("standalone", "full", {}),
        ("standalone", "static", {}),
        ("standalone", "dynamic", {}),
        ("standalone", "dynamic", {"top_p": 0.8, "top_k": 6}),
        ("standalone", "static", {"draft_sampling": "greedy"}),
        ("eagle", "static", {}),
        ("eagle", "dynamic", {}),
    ],
)
def test_the_engine_is_exact(target: Target, draft_name: str, method: str, sampling: dict) -> None:
    draft = toy_standalone(target, noise=0.3) if draft_name == "standalone" else toy_eagle(target)
    vocab = None if method == "full" else DraftVocab(np.array([0, 3, 5]), WORDS)
    decoder = SpeculativeDecoder(target, draft, vocab, DynamicConfig(2) if method == "dynamic" else None, num_steps=2)
    params = SamplingParams(temperature=0.9, max_new_tokens=LENGTH, ignore_eos=True, **sampling)
    counts = np.zeros(WORDS**LENGTH)
    for seed in range(DRAWS):
        ids = decoder.generate(PROMPT, SamplingParams(**{**params.__dict__, "seed": seed})).target_ids
        counts[ids[0] * WORDS**2 + ids[1] * WORDS + ids[2]] += 1
    assert p_value(counts, DRAWS * enumerated(target, params)) > ALPHA
