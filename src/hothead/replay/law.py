"""The law of speculative rounds on a given path, for many draft vocabularies at once. Numbers only.

Let x_1 ... x_n be what the target emitted after the prefill's token, and let a round start after t of them.
Speculative sampling (Leviathan et al. 2211.17192, Chen et al. 2302.01318) emits x with probability p(x), and accepts
the draft *and* emits x with probability min(p(x), q(x)). Given that x is what was emitted, the draft was accepted with
probability

    min(1, q(x) / p(x));   greedy: 1 if x is the argmax of q, else 0.

The i-th draft of the round matters only if those before it were accepted, that is, if they were x_{t+1} ...
x_{t+i-1}: so q is known from the path alone. With A_i the product of the first i of these probabilities, the round
emits exactly j tokens with probability A_{j-1} - A_j for j <= k, and k + 1 tokens (the last one is the target's own)
with A_k. Where rounds start is a renewal process:

    b[0] = 1;   b[t] = sum over s < t of b[s] * P(the round from s emits t - s tokens)
    E[rounds] = sum of b[t] over t < n;   acceptance length = n / E[rounds]

The end of an answer cuts the last round, which changes nothing: only starts before n are counted. The acceptance length
is the engine's own (``Stats.acceptance_length``): bonus tokens are in it, the prefill's token is not.
"""

from dataclasses import dataclass

import numpy as np


def acceptance(log_q: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    """min(1, q / p) of tokens that were emitted; where rounding made p zero, 1 if they can be drafted at all."""
    with np.errstate(invalid="ignore"):
        ratio = np.exp(np.minimum(log_q - log_p, 0.0))
    return np.where(np.isneginf(log_q), 0.0, ratio)


class Renewal:
    """Expected rounds of one answer, for S vocabularies side by side; fed with the starts in their order.

    Args:
        path_tokens: n, emitted tokens without the prefill's.
        num_steps: k, tokens drafted per round.
        vocabularies: S.

    Attributes:
        rounds: float64 [S], expected verify passes.
        accepted: float64 [k, S], expected rounds whose i-th draft was accepted and belongs to the answer.
    """

    def __init__(self, path_tokens: int, num_steps: int, vocabularies: int) -> None:
        self._left = path_tokens
        self._begins = np.zeros((num_steps + 1, vocabularies))  # row j: P(a round starts j tokens from here)
        if path_tokens:
            self._begins[0] = 1.0
        self.num_steps = num_steps
        self.rounds = np.zeros(vocabularies)
        self.accepted = np.zeros((num_steps, vocabularies))

    def start(self, reaches: np.ndarray) -> None:
        """Account for the next start.

        Args:
            reaches: float [d, S], d >= min(k, tokens left): row i is A_{i+1}, the probability that the first i + 1
                drafts of a round from here are accepted.
        """
        k = min(self.num_steps, self._left)
        begins = self._begins[0].copy()
        self._begins[:-1] = self._begins[1:]
        self._begins[-1] = 0.0
        reached = np.empty((k + 2, len(begins)))  # row i: a round starts here and i drafts are accepted
        reached[0], reached[-1] = begins, 0.0
        np.multiply(begins, reaches[:k], out=reached[1:-1])
        self.rounds += begins
        self.accepted[:k] += reached[1:-1]
        self._begins[: k + 1] += reached[:-1] - reached[1:]  # i accepted drafts and one token of the target's
        self._left -= 1

    def result(self, missed: np.ndarray, rows_copied: int = 0) -> "Replayed":
        """What was counted, once every start was fed; ``missed``: [S], path tokens outside each vocabulary."""
        return Replayed(self.rounds, self.accepted, missed, rows_copied)


@dataclass(frozen=True)
class Replayed:
    """One answer under S vocabularies.

    Attributes:
        rounds: float64 [S], expected verify passes.
        accepted: float64 [k, S], expected rounds whose i-th draft was accepted.
        missed: [S], path tokens that could not have been drafted.
        rows_copied: LM head rows copied to follow the traffic.
    """

    rounds: np.ndarray
    accepted: np.ndarray
    missed: np.ndarray
    rows_copied: int = 0
