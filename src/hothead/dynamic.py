"""The dynamic vocabulary: a few rows that follow the traffic, least recently used out.

After each round the policies offer target ids. Those that are hot already are refreshed; each missing one takes
the slot that was not offered for the longest time, and only its row is copied. Hence the rule that tests check:
the slots hold the D ids outside the static rows that were offered last (before D were offered, the vocabulary's
runners-up fill the rest). The cost is rows missed, not vocabulary size.

``FullRefresh`` is the strategy of the first published dynamic vocabulary, which recounts, re-sorts and re-gathers
the whole head every round. It is here as the baseline to beat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hothead.errors import InputError
from hothead.head import HotHead, LMHead
from hothead.vocab import DraftVocab

_NEVER = torch.iinfo(torch.int64).min


class SlotTable:
    """Which slot goes next: the recency of each slot of a :class:`HotHead`, kept on its device.

    All operations have fixed shapes and none asks the device for a value, so that a round's update neither
    synchronises nor breaks a captured graph.

    Attributes:
        rows_copied: int64 [], rows written since the start.
    """

    def __init__(self, head: HotHead) -> None:
        self.head = head
        slots, device = head.num_slots, head.row_of.device
        # Runners-up fill the slots in rank order: the last of them goes first. Entry D is scratch.
        self._last_offer = torch.arange(-1, -slots - 2, -1, dtype=torch.int64, device=device)
        self._newest = torch.full((head.lm_head.vocab_size,), _NEVER, dtype=torch.int64, device=device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self.rows_copied = torch.zeros((), dtype=torch.int64, device=device)

    def offer(self, target_ids: Tensor) -> None:
        """Refresh the hot ones among ``target_ids`` (int64 [n], oldest first, repeats allowed), insert the rest."""
        head, slots, offered = self.head, self.head.num_slots, target_ids.numel()
        if not slots or not offered:
            return
        rows = head.row_of[target_ids]
        if rows.device.type == "cpu" and self._refresh_if_all_hot(rows.tolist()):
            return  # the common round; asking costs nothing on a CPU and would be a synchronisation elsewhere
        stamps = self._clock + torch.arange(1, offered + 1, device=target_ids.device)
        self._clock += offered
        slot = torch.where(rows >= head.num_static, rows - head.num_static, slots)
        self._last_offer.scatter_reduce_(0, slot, stamps, "amax")
        missing = rows < 0
        # An id offered twice counts once, at its later place.
        self._newest.scatter_reduce_(0, target_ids, stamps, "amax")
        wanted = missing & (self._newest[target_ids] == stamps)
        n = min(offered, slots)
        newcomer_stamps, order = torch.where(wanted, stamps, _NEVER).topk(n)  # newest newcomers first ...
        victim_stamps, victims = self._last_offer[:slots].topk(n, largest=False)  # ... meet the stalest slots
        enters = newcomer_stamps > victim_stamps
        into = torch.where(enters, victims, slots)
        head.write_slots(into, torch.where(enters, target_ids[order], head.lm_head.vocab_size))
        self._last_offer.index_copy_(0, into, newcomer_stamps)
        self.rows_copied += enters.sum()

    def _refresh_if_all_hot(self, rows: list[int]) -> bool:
        """Refresh the slots among ``rows`` if none is missing, and say whether it was so."""
        if min(rows) < 0:
            return False
        clock, first = int(self._clock), self.head.num_static
        for place, row in enumerate(rows, start=1):
            if row >= first:
                self._last_offer[row - first] = clock + place
        self._clock += len(rows)
        return True


class Policy(Protocol):
    """What to offer to the slots, and when."""

    def after_prompt(self, target_ids: Tensor) -> Tensor | None:
        """Ids to offer given the prompt, int64 [P] -> [n]; None for nothing."""

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> Tensor | None:
        """Ids to offer given a round's emitted ids, int64 [n], and the target's logits there, [n, V]."""


class OnMiss:
    """Offer what the target emitted: a token the draft could not propose will be hot the next time."""

    def after_prompt(self, target_ids: Tensor) -> Tensor | None:
        return None

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> Tensor | None:
        return emitted_target_ids


class Prompt:
    """Offer the prompt's own tokens: answers repeat names, numbers and code of their question."""

    def after_prompt(self, target_ids: Tensor) -> Tensor | None:
        return target_ids

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> Tensor | None:
        return None


class TargetTopK:
    """Offer the target's likeliest ids at each verified position: what it nearly said it may say next.

    Args:
        k: how many per position.
    """

    def __init__(self, k: int = 4) -> None:
        if k < 1:
            raise InputError(f"target_topk needs at least 1 id a position; found {k}")
        self.k = k

    def after_prompt(self, target_ids: Tensor) -> Tensor | None:
        return None

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> Tensor | None:
        # The likeliest of the last position is the most recent offer.
        return verified_logits.topk(self.k, dim=-1).indices.flip(-1).flatten()


POLICIES: dict[str, Callable[..., Policy]] = {"on_miss": OnMiss, "prompt": Prompt, "target_topk": TargetTopK}
FULL_REFRESH = "full_refresh"
NONE = "none"
POLICY_NAMES = (NONE, *POLICIES, FULL_REFRESH)


def make_policies(spec: str) -> tuple[Policy, ...]:
    """Read ``"on_miss+prompt"`` or ``"target_topk:8"``.

    Raises:
        InputError: a name that is not a policy.
    """
    policies = []
    for part in spec.split("+"):
        name, _, argument = part.strip().partition(":")
        if name not in POLICIES:
            raise InputError(f"no policy is called {name!r}; expected {', '.join(POLICY_NAMES)}, joined by '+'")
        if argument and (name != "target_topk" or not argument.isdigit()):
            raise InputError(f"policy {part!r}: only target_topk takes a number, as in target_topk:4")
        policies.append(POLICIES[name](int(argument)) if argument else POLICIES[name]())
    return tuple(policies)


@dataclass(frozen=True)
class DynamicConfig:
    """How the draft vocabulary follows the traffic.

    Attributes:
        slots: D, dynamic rows beside the static ones.
        policy: names of ``POLICIES`` joined by ``+``, ``none``, or ``full_refresh`` (the baseline; no slots).
        prior_counts: int64 [V'], V' <= V, counts that ``full_refresh`` starts from (a ranking's).
    """

    slots: int = 512
    policy: str = "on_miss+prompt"
    prior_counts: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.slots < 0:
            raise InputError(f"dynamic slots must be 0 or more; found {self.slots}")
        if self.policy == FULL_REFRESH:
            if self.prior_counts is None:
                raise InputError("full_refresh recounts from a ranking: give prior_counts=ranking.counts")
        elif self.policy != NONE:
            make_policies(self.policy)


class HotVocabulary(Protocol):
    """A head and whatever keeps it hot; the engine tells it what happened.

    Attributes:
        is_dynamic: whether anything is done after a round.
        head: the draft's head; may be another object after each call.
        rows_copied: rows written or gathered so far.
    """

    is_dynamic: bool
    head: HotHead

    def after_prompt(self, target_ids: Tensor) -> None:
        """The target read the prompt ``target_ids``, int64 [P]."""

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> None:
        """The target emitted ids, int64 [n], from its logits [n, V]."""

    @property
    def rows_copied(self) -> int:
        """Rows of the LM head copied since the start."""


class Slots:
    """A static head with D slots that policies fill; with no slots, the static map and nothing else."""

    def __init__(self, head: HotHead, policies: Sequence[Policy] = ()) -> None:
        self.head = head
        self._policies = tuple(policies) if head.num_slots else ()
        self.is_dynamic = bool(self._policies)
        self._table = SlotTable(head)

    def after_prompt(self, target_ids: Tensor) -> None:
        for policy in self._policies:
            self._offer(policy.after_prompt(target_ids))

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> None:
        for policy in self._policies:
            self._offer(policy.after_round(emitted_target_ids, verified_logits))

    def _offer(self, target_ids: Tensor | None) -> None:
        if target_ids is not None:
            self._table.offer(target_ids)

    @property
    def rows_copied(self) -> int:
        return int(self._table.rows_copied)


class FullRefresh:
    """Recount, re-sort and re-gather all Vd rows every round, as the first published dynamic vocabulary did."""

    is_dynamic = True

    def __init__(self, lm_head: LMHead, vocab: DraftVocab, prior_counts: np.ndarray) -> None:
        self.head = HotHead(lm_head, vocab)
        self._lm_head, self._vocab = lm_head, vocab
        device = lm_head.weight.device
        self._counts = torch.zeros(lm_head.vocab_size, dtype=torch.int64, device=device)
        self._counts[: len(prior_counts)] = torch.tensor(prior_counts, dtype=torch.int64, device=device)
        self.rows_copied = 0

    def after_prompt(self, target_ids: Tensor) -> None:
        self._refresh(target_ids)

    def after_round(self, emitted_target_ids: Tensor, verified_logits: Tensor) -> None:
        self._refresh(emitted_target_ids)

    def _refresh(self, target_ids: Tensor) -> None:
        self._counts.scatter_add_(0, target_ids, torch.ones_like(target_ids))
        hot = self._counts.argsort(descending=True, stable=True)[: len(self._vocab)].sort().values
        self.head.replace_static(hot)
        self.rows_copied += len(hot)


def make_hot_vocabulary(lm_head: LMHead, vocab: DraftVocab, dynamic: DynamicConfig | None) -> HotVocabulary:
    """The head for ``vocab`` and what keeps it hot, as ``dynamic`` says (None: the static map)."""
    if dynamic is None or dynamic.policy == NONE:
        return Slots(HotHead(lm_head, vocab, dynamic.slots if dynamic else 0))
    if dynamic.policy == FULL_REFRESH:
        assert dynamic.prior_counts is not None  # DynamicConfig sees to it
        return FullRefresh(lm_head, vocab, dynamic.prior_counts)
    return Slots(HotHead(lm_head, vocab, dynamic.slots), make_policies(dynamic.policy))
