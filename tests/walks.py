"""The rounds of a sampled answer, given its path: a walk that accepts each draft with its probability, drawn often.

ALPHA is how often a correct replay would be failed by fresh seeds; seeds are fixed, so a verdict never changes.
"""

import numpy as np
import torch

from hothead.engine.sampling import SamplingParams
from hothead.head import HotHead
from hothead.models.draft import Draft
from hothead.replay.teacher import TeacherForced
from hothead.vocab import DraftVocab

ALPHA = 1e-4
WALKS = 40_000


def acceptances(draft: Draft, answer: TeacherForced, vocab: DraftVocab, params: SamplingParams, k: int) -> np.ndarray:
    """float64 [n, k], min(1, q / p) from the head of one vocabulary, by the definition."""
    head, n = HotHead(draft.lm_head, vocab), len(answer.path)
    found = np.zeros((n, k))
    with torch.inference_mode():
        for start in range(n):
            for step in range(min(k, n - start)):
                x = int(answer.path[start + step])
                if x in vocab:
                    q = head.log_probs(answer.hidden[start, step][None], params.temperature)[0].exp()
                    if params.draft_sampling == "greedy":
                        q = torch.nn.functional.one_hot(q.argmax(), len(q)).double()
                    p = float(answer.log_probs[start + step].double().exp())
                    found[start, step] = min(1.0, float(q[vocab.draft_id_of[x]]) / p)
    return found


def walks(accepts: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """int64 [count], rounds that random walks over one path take."""
    n, k = accepts.shape
    at, rounds = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    while (is_open := at < n).any():
        stands = generator.random((count, k)) < accepts[np.minimum(at, n - 1)]
        rounds += is_open
        at += stands.cumprod(axis=1).sum(axis=1) + 1
    return rounds


def is_likely(total: int, totals: np.ndarray) -> bool:
    """Whether ``total`` is within all but ALPHA of the walks' totals."""
    low, high = np.quantile(totals, [ALPHA / 2, 1 - ALPHA / 2])
    return bool(low <= total <= high)
