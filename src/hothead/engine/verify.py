"""Which drafted tokens stand, and what the target says after them. Pure functions.

Greedy: a drafted token stands if it is the target's argmax after its parent. Sampling: speculative sampling (Leviathan
et al. 2211.17192, Chen et al. 2302.01318) made recursive over siblings drawn without replacement (SpecInfer
2305.09781, Jeon et al. 2402.14160): drafted x stands with probability min(1, p(x) / q(x)); if it does not, p becomes
max(p - q, 0), normalised, q loses x, and the next sibling is tried; after the last one the token is drawn from p. The
output follows p exactly for any q, in particular for one that is zero outside the draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.engine.sampling import sample
from hothead.native import argmax


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens: a chain, or a tree whose siblings are in the order in which they are to be tried.

    Attributes:
        target_ids: int64 [n].
        parents: int64 [n], each token's parent, which comes before it; -1: the last committed token. None: a chain.
        q: float32 [e, R], the distributions the tokens were drawn from, over rows of the draft's head; None if each
            was a certain choice (the likeliest ones).
        q_rows: int64 [n], which of these each token was drawn from.
        row_target_ids: int64 [R], the target id of each row of the head, -1 for an empty one.
    """

    target_ids: Tensor
    parents: Tensor | None = None
    q: Tensor | None = None
    q_rows: Tensor | None = None
    row_target_ids: Tensor | None = None

    def __len__(self) -> int:
        return self.target_ids.shape[0]

    def children(self) -> dict[int, list[int]]:
        """The tokens that follow each token, -1 the last committed one, in order."""
        found: dict[int, list[int]] = {}
        parents = range(-1, len(self) - 1) if self.parents is None else self.parents.tolist()
        for index, parent in enumerate(parents):
            found.setdefault(parent, []).append(index)
        return found

    def q_of(self, token: int, vocab_size: int) -> Tensor | None:
        """What a token was drawn from, over target ids, float32 [V], zero outside the draft vocabulary."""
        if self.q is None or self.q_rows is None or self.row_target_ids is None:
            return None
        full = self.q.new_zeros(vocab_size + 1)  # the last entry takes what empty rows have: nothing
        ids = torch.where(self.row_target_ids >= 0, self.row_target_ids, vocab_size)
        return full.index_add_(0, ids, self.q[self.q_rows[token]])[:-1]


@dataclass(frozen=True)
class Verdict:
    """What a round emits.

    Attributes:
        target_ids: the accepted tokens and the target's own next one.
        path: the accepted tokens, as indices into the proposal.
    """

    target_ids: list[int]
    path: list[int]


def verify_greedy(proposal: Proposal, target_logits: Tensor) -> Verdict:
    """The longest path of drafted tokens that are the target's argmax, and its argmax after them.

    Args:
        target_logits: [n + 1, V], after the last committed token and after each drafted one.
    """
    choices = argmax(target_logits).tolist()
    drafted, children = proposal.target_ids.tolist(), proposal.children()
    path: list[int] = []
    node = -1
    while True:
        stands = [child for child in children.get(node, ()) if drafted[child] == choices[node + 1]]
        if not stands:
            return Verdict([*(drafted[token] for token in path), choices[node + 1]], path)
        node = stands[0]
        path.append(node)


def verify_sampled(proposal: Proposal, target_probs: Tensor, generator: torch.Generator) -> Verdict:
    """Tokens distributed as if drawn from ``target_probs`` one by one.

    Args:
        target_probs: float32 [n + 1, V], after the last committed token and after each drafted one.
    """
    drafted, children = proposal.target_ids.tolist(), proposal.children()
    path: list[int] = []
    node = -1
    while True:
        p = target_probs[node + 1]
        accepted, p = _try_siblings(proposal, children.get(node, []), drafted, p, generator)
        if accepted is None:
            return Verdict([*(drafted[token] for token in path), int(sample(p[None], generator))], path)
        node = accepted
        path.append(node)


def _try_siblings(
    proposal: Proposal, siblings: list[int], drafted: list[int], p: Tensor, generator: torch.Generator
) -> tuple[int | None, Tensor]:
    """The sibling that stands, or None and the distribution, [V], unnormalised, of the token in their place."""
    q = proposal.q_of(siblings[0], len(p)) if siblings else None
    for sibling in siblings:
        target_id = drafted[sibling]
        u = torch.rand((), generator=generator, device=p.device)
        certain = torch.zeros_like(p) if q is None else q
        if q is None:
            certain[target_id] = 1.0
        # u < p / q, without dividing: q of a drafted token is above 0, and u * q < p says the same.
        if bool(u * certain[target_id] < p[target_id]):
            return sibling, p
        residual = (p - certain).clamp_(min=0)
        total = residual.sum()
        # p = q up to rounding leaves nothing; then a rejection had probability 0 up to rounding, and p itself is right.
        p = residual / total if bool(total > 0) else p
        if q is not None:
            q[target_id] = 0.0
            q = q / q.sum().clamp(min=torch.finfo(q.dtype).tiny)
    return None, p
