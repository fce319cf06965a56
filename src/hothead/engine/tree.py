"""Draft trees as EAGLE-2 builds them (2406.16858): pure functions over scores, ids and parents.

Every level keeps the ``topk`` best tokens and gives each ``topk`` children; in the end the ``num_draft_tokens - 1``
best tokens of all levels go to the target. Greedy drafting scores a token by the probability of its whole path.
Sampled drafting perturbs that score by Gumbel noise so that siblings are drawn without replacement and the tree is a
stochastic beam (Kool et al. 1903.06059, Jeon et al. 2402.14160): whether a token is kept then says nothing about
which token it is, which is what makes the verification of ``verify.py`` exact. So is drafting on only from likely
paths: that looks at tokens that are kept either way, never at those that would follow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.errors import InputError


@dataclass(frozen=True)
class DraftShape:
    """How much is drafted in a round; names and meanings are SGLang's.

    Attributes:
        num_steps: levels of the tree; the draft's passes per round.
        topk: tokens kept per level, and children per kept token; 1 drafts a chain.
        num_draft_tokens: tokens verified per round, the last committed one included; None: ``num_steps + 1`` for a
            chain, otherwise as many as a chain of twice the steps has, or all there are.
        p_min: draft on after a token only while the draft gives its whole path at least this probability, 0: always.
            A round is then as long as the draft is sure. The first level is always drafted.
        verify_p_min: verify a token only if the draft gives its whole path at least this probability; the likeliest one
            always. Drawn tokens are verified whatever it is: to leave unlikely ones out would favour the others.

    Raises:
        InputError: a value out of range, or a chain of another length than its steps.
    """

    num_steps: int = 4
    topk: int = 1
    num_draft_tokens: int | None = None
    p_min: float = 0.0
    verify_p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise InputError(f"num_steps must be at least 1; found {self.num_steps}")
        if self.topk < 1:
            raise InputError(f"topk must be at least 1; found {self.topk}")
        for name, value in (("p_min", self.p_min), ("verify_p_min", self.verify_p_min)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} is a probability, from 0 to 1; found {value}")
        if self.topk == 1 and self.width != self.num_steps + 1:
            raise InputError(
                f"a chain (topk 1) of {self.num_steps} steps verifies {self.num_steps + 1} tokens, the last committed "
                f"one included; found num_draft_tokens {self.num_draft_tokens}"
            )
        if not 2 <= self.width <= self.most_tokens:
            raise InputError(
                f"num_draft_tokens must be between 2 and {self.most_tokens} for num_steps {self.num_steps} and topk "
                f"{self.topk}; found {self.num_draft_tokens}"
            )

    @property
    def width(self) -> int:
        """Tokens of a verify pass, at most."""
        if self.num_draft_tokens is not None:
            return self.num_draft_tokens
        return min((self.num_steps if self.topk == 1 else 2 * self.num_steps) + 1, self.most_tokens)

    @property
    def most_tokens(self) -> int:
        """All tokens the levels have, and the last committed one."""
        return 1 + self.topk + (self.num_steps - 1) * self.topk**2


@dataclass(frozen=True)
class Level:
    """Candidates of one level, in the order of their parents and, below one parent, by falling score.

    Attributes:
        target_ids: int64 [n].
        parents: int64 [n], rows of the level before's frontier.
        path_log_probs: float32 [n], log-probability of the whole path under the draft.
        scores: float32 [n], what candidates compete by; -inf for one that does not exist.
    """

    target_ids: Tensor
    parents: Tensor
    path_log_probs: Tensor
    scores: Tensor

    def best(self, count: int) -> Tensor:
        """int64 [m], the ``count`` best candidates, or as many as exist, in their own order."""
        return best(self.scores, count)


def likeliest_children(log_probs: Tensor, path_log_probs: Tensor, row_target_ids: Tensor, topk: int) -> Level:
    """The ``topk`` likeliest tokens after each frontier token.

    Args:
        log_probs: float32 [w, R], the draft's, per frontier token.
        path_log_probs: float32 [w], of the frontier tokens.
        row_target_ids: int64 [R].
    """
    top = log_probs.topk(min(topk, log_probs.shape[1]), dim=-1)
    totals = (path_log_probs[:, None] + top.values).flatten()
    return Level(row_target_ids[top.indices].flatten(), _rows(top.indices), totals, totals)


def sampled_children(
    log_probs: Tensor,
    path_log_probs: Tensor,
    scores: Tensor,
    row_target_ids: Tensor,
    topk: int,
    generator: torch.Generator,
) -> Level:
    """``topk`` tokens after each frontier token, drawn without replacement in the order of their scores.

    A child's score is its path's log-probability plus Gumbel noise, conditioned on the best child having its parent's
    score (Kool et al., section 4.1).

    Args:
        scores: float32 [w], of the frontier tokens.
    """
    noise = -torch.empty_like(log_probs).exponential_(generator=generator).log()
    perturbed = path_log_probs[:, None] + log_probs + noise
    best_child = perturbed.max(dim=-1, keepdim=True).values
    # -log(exp(-parent) - exp(-best) + exp(-child)), in the stable form of the paper's appendix.
    v = scores[:, None] - perturbed + torch.log1p(-torch.exp(perturbed - best_child))
    conditioned = scores[:, None] - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
    # Rounding must not lift a child above its parent: see best().
    conditioned = torch.where(perturbed == -torch.inf, -torch.inf, conditioned).minimum(scores[:, None])
    top = conditioned.topk(min(topk, log_probs.shape[1]), dim=-1)
    totals = path_log_probs[:, None] + log_probs.gather(-1, top.indices)
    return Level(row_target_ids[top.indices].flatten(), _rows(top.indices), totals.flatten(), top.values.flatten())


def _rows(indices: Tensor) -> Tensor:
    return torch.arange(indices.shape[0], device=indices.device)[:, None].expand_as(indices).flatten()


def best(scores: Tensor, count: int) -> Tensor:
    """int64 [m], indices of the ``count`` highest finite scores, ascending; of equal ones the first.

    A token's score is never above its parent's, which comes before it, so what is kept is closed under ancestors.
    """
    order = scores.sort(descending=True, stable=True).indices[:count]
    return order[scores[order] > -torch.inf].sort().values
