"""Which drafted tokens stand, and what the target says after them. Pure functions.

Greedy: a drafted token stands if it is the target's argmax. Sampling: speculative sampling (Leviathan et al.
2211.17192, Chen et al. 2302.01318): drafted x stands with probability min(1, p(x) / q(x)); the first that does not
is replaced by a draw from max(p - q, 0), normalised. The output follows p exactly for any q, in particular for one
that is zero outside the draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.engine.sampling import sample


@dataclass(frozen=True)
class Proposal:
    """A chain of drafted tokens.

    Attributes:
        target_ids: int64 [k].
        q: float32 [k, R], the distribution each was drawn from, over rows of the draft's head; None if each was
            the certain choice (argmax).
        row_target_ids: int64 [R], the target id of each row, -1 for an empty one.
    """

    target_ids: Tensor
    q: Tensor | None = None
    row_target_ids: Tensor | None = None

    def __len__(self) -> int:
        return self.target_ids.shape[0]

    def q_of_target_ids(self, step: int, vocab_size: int) -> Tensor:
        """The distribution of one step over target ids, float32 [V], zero outside the draft vocabulary."""
        if self.q is None or self.row_target_ids is None:
            one_hot = torch.zeros(vocab_size, device=self.target_ids.device)
            return one_hot.index_fill_(0, self.target_ids[step], 1.0)
        full = self.q.new_zeros(vocab_size + 1)  # the last entry takes what empty rows have: nothing
        full.index_add_(0, torch.where(self.row_target_ids >= 0, self.row_target_ids, vocab_size), self.q[step])
        return full[:-1]


def verify_greedy(proposal: Proposal, target_logits: Tensor) -> list[int]:
    """Target ids to emit: the drafted tokens that match the target's argmax, then the target's own next token.

    Args:
        target_logits: [k + 1, V], after the last committed token and after each drafted one.
    """
    choices = target_logits.argmax(dim=-1).tolist()
    drafted = proposal.target_ids.tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == choices[accepted]:
        accepted += 1
    return choices[: accepted + 1]


def verify_sampled(proposal: Proposal, target_probs: Tensor, generator: torch.Generator) -> list[int]:
    """Target ids to emit, distributed as if drawn from ``target_probs`` one by one.

    Args:
        target_probs: float32 [k + 1, V], after the last committed token and after each drafted one.
    """
    k = len(proposal)
    drafted = proposal.target_ids
    steps = torch.arange(k, device=drafted.device)
    p = target_probs[steps, drafted]
    q = _q_of_drafted(proposal, steps)
    # u < p / q, without dividing: q of a drafted token is above 0, and u * q < p says the same.
    stands = torch.rand(k, generator=generator, device=drafted.device) * q < p
    accepted = int(stands.cumprod(0).sum())
    emitted = drafted[:accepted].tolist()
    if accepted == k:
        last = target_probs[k]
    else:
        residual = (target_probs[accepted] - proposal.q_of_target_ids(accepted, target_probs.shape[-1])).clamp_(min=0)
        # p = q up to rounding leaves nothing; then a rejection had probability 0 up to rounding, and p itself is right.
        last = torch.where(residual.sum() > 0, residual, target_probs[accepted])
    return [*emitted, int(sample(last[None], generator))]


def _q_of_drafted(proposal: Proposal, steps: Tensor) -> Tensor:
    if proposal.q is None or proposal.row_target_ids is None:
        return torch.ones(len(proposal), device=proposal.target_ids.device)
    is_drafted = proposal.row_target_ids[None] == proposal.target_ids[:, None]
    return (proposal.q * is_drafted).sum(dim=-1)
