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
from hothead.engine.tree import DraftShape, best, sampled_children
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


def emitted_counts(
    draws: int, is_drafted_greedily: bool = False, wrong_q: bool = False, drop_below: float = 0.0
) -> np.ndarray:
    """How often each pair of first two emitted ids came, [V, V]; rows of p do not depend on the path here.

    The mistakes: ``wrong_q`` swaps the distributions, ``drop_below`` takes back a drawn token that is less likely.
    """
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
            likely = q.gather(-1, torch.tensor([[HOT.index(i)] for i in ids.tolist()])).flatten() >= drop_below
            ids = ids[: int(likely.long().cumprod(0).sum())]
            proposal = Proposal(ids, None, q_rows.flip(0) if wrong_q else q_rows, torch.arange(K), rows)
        first, *rest = verify_sampled(proposal, p[: len(proposal) + 1], generator).target_ids
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
    """The same test rejects another q than the one drafted from, and taking unlikely tokens back: it has the power."""
    draws = 12_000
    p = random_probs(0, K + 1, V).numpy()
    for counts in (emitted_counts(draws, wrong_q=True), emitted_counts(draws, drop_below=0.3)):
        assert p_value(counts.ravel(), draws * np.outer(p[0], p[1]).ravel()) < ALPHA


def tree_counts(draws: int, topk: int, kept_tokens: int, keep_the_likeliest: bool = False) -> np.ndarray:
    """First two emitted ids, [V, V], of trees of two levels; p and q of a level do not depend on the path here."""
    p = torch.stack([random_probs(0, V), random_probs(3, V)])
    rows = torch.tensor([*HOT, -1])
    q = torch.stack([torch.cat([random_probs(seed, len(HOT)), torch.zeros(1)]) for seed in (1, 4)])
    generator = torch.Generator().manual_seed(2)
    counts = np.zeros((V, V))
    for _ in range(draws):
        first = sampled_children(q[:1].log(), torch.zeros(1), torch.zeros(1), rows, topk, generator)
        kept = first.best(topk)
        log_q = q[1:].log().expand(len(kept), -1)
        second = sampled_children(log_q, first.path_log_probs[kept], first.scores[kept], rows, topk, generator)
        by = [level.path_log_probs if keep_the_likeliest else level.scores for level in (first, second)]
        chosen = best(torch.cat(by), kept_tokens).tolist()
        parents = [-1] * len(first.scores) + kept[second.parents].tolist()
        is_second = [index >= len(first.scores) for index in chosen]
        proposal = Proposal(
            torch.cat([first.target_ids, second.target_ids])[chosen],
            torch.tensor([chosen.index(parents[index]) if parents[index] >= 0 else -1 for index in chosen]),
            q,
            torch.tensor(is_second).long(),
            rows,
        )
        emitted = verify_sampled(proposal, p[[0, *(1 - int(second) for second in is_second)]], generator).target_ids
        # A round that ends early goes on with a fresh draw, as the next round would.
        follow = emitted[1] if len(emitted) > 1 else int(torch.multinomial(p[1], 1, generator=generator))
        counts[emitted[0], follow] += 1
    return counts


@pytest.mark.parametrize(("topk", "kept_tokens"), [(2, 2), (2, 4), (3, 3), (3, 7)])
def test_the_verifier_is_exact_for_trees(topk: int, kept_tokens: int) -> None:
    draws = 8000
    expected = draws * np.outer(random_probs(0, V).double(), random_probs(3, V).double())
    assert p_value(tree_counts(draws, topk, kept_tokens).ravel(), expected.ravel()) > ALPHA


def test_keeping_the_likeliest_of_sampled_tokens_shows() -> None:
    """Re-ranking drawn tokens by probability makes likely ones likelier; the same test rejects it."""
    draws = 8000
    expected = draws * np.outer(random_probs(0, V).double(), random_probs(3, V).double())
    assert p_value(tree_counts(draws, 2, 2, keep_the_likeliest=True).ravel(), expected.ravel()) < ALPHA


def test_greedy_verification() -> None:
    logits = torch.eye(6)[[1, 2, 3]]
    assert verify_greedy(Proposal(torch.tensor([1, 2])), logits).target_ids == [1, 2, 3]
    assert verify_greedy(Proposal(torch.tensor([1, 4])), logits).target_ids == [1, 2]
    assert verify_greedy(Proposal(torch.tensor([0, 2])), logits).target_ids == [1]
    assert verify_greedy(Proposal(torch.empty(0, dtype=torch.int64)), logits[:1]).target_ids == [1]


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
        ("standalone", "full", {"topk": 2}),
        ("standalone", "static", {"topk": 3}),
        ("standalone", "dynamic", {"topk": 2, "top_p": 0.8}),
        ("standalone", "dynamic", {"topk": 3, "draft_sampling": "greedy"}),
        ("eagle", "dynamic", {"topk": 3}),
        ("standalone", "dynamic", {"p_min": 0.3}),
        ("standalone", "static", {"topk": 2, "p_min": 0.3}),
        ("standalone", "dynamic", {"topk": 3, "p_min": 0.15}),
    ],
)
def test_the_engine_is_exact(target: Target, draft_name: str, method: str, sampling: dict) -> None:
    shape = DraftShape(2, sampling.get("topk", 1), p_min=sampling.get("p_min", 0.0))
    draft = toy_standalone(target, noise=0.3) if draft_name == "standalone" else toy_eagle(target)
    vocab = None if method == "full" else DraftVocab(np.array([0, 3, 5]), WORDS)
    decoder = SpeculativeDecoder(target, draft, vocab, DynamicConfig(2) if method == "dynamic" else None, shape)
    others = {name: value for name, value in sampling.items() if name not in ("topk", "p_min")}
    params = SamplingParams(temperature=0.9, max_new_tokens=LENGTH, ignore_eos=True, **others)
    counts = np.zeros(WORDS**LENGTH)
    for seed in range(DRAWS):
        ids = decoder.generate(PROMPT, SamplingParams(**{**params.__dict__, "seed": seed})).target_ids
        counts[ids[0] * WORDS**2 + ids[1] * WORDS + ids[2]] += 1
    assert p_value(counts, DRAWS * enumerated(target, params)) > ALPHA
