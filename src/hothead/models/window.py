"""Where new tokens stand and which recent ones they see, when they are not simply the next ones in order.

A tree of drafted tokens is one pass: siblings share a position and do not see each other. Everything before the tree
is seen by all, so a mask over the tree's own columns says it all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """Positions and mask of n new tokens.

    Attributes:
        positions: int64 [n], for the rotary embedding.
        unseen: bool [n, m], m >= n: True where a new token must not see one of the last m cached positions, its own
            n included; earlier ones are seen by all.
    """

    positions: Tensor
    unseen: Tensor


def ancestors(parents: Tensor) -> Tensor:
    """bool [n, n], True where column j is token i or one of its ancestors.

    Args:
        parents: int64 [n], each token's parent among the tokens before it; -1: none of these.
    """
    seen = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
    for _ in range(len(parents)):
        # One level per turn: whoever sees a token sees its parent.
        wider = seen | _seen_by_parents(seen, parents)
        if bool((wider == seen).all()):
            break
        seen = wider
    return seen


def _seen_by_parents(seen: Tensor, parents: Tensor) -> Tensor:
    """What each token's parent sees, bool [n, m]; nothing for a token without one."""
    return torch.where(parents[:, None] >= 0, seen[parents.clamp(min=0)], False)


def tree_window(parents: Tensor, past: int) -> Window:
    """The window of a whole tree put after ``past`` tokens; ``parents`` as in :func:`ancestors`."""
    seen = ancestors(parents)
    return Window(past + seen.sum(dim=-1) - 1, ~seen)


class GrowingTree:
    """A draft's view of its tree, level by level.

    Args:
        past: tokens before the tree.
        device: of the masks.
    """

    def __init__(self, past: int, device: torch.device) -> None:
        self._past = past
        self._seen = torch.zeros(0, 0, dtype=torch.bool, device=device)

    def grow(self, parents: Tensor) -> Window:
        """The window of new tokens whose ``parents``, int64 [n], index the tokens of earlier calls; -1: none."""
        n, before = len(parents), len(self._seen)
        inherited = self._seen.new_zeros(n, before) if not before else _seen_by_parents(self._seen, parents)
        rows = torch.cat([inherited, torch.eye(n, dtype=torch.bool, device=parents.device)], dim=1)
        self._seen = torch.cat([torch.nn.functional.pad(self._seen, (0, n)), rows])
        return Window(self._past + rows.sum(dim=-1) - 1, ~rows)
