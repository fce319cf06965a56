"""Standalone drafts: any causal LM that speaks the target's tokenizer, with its own head."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from hothead.head import LMHead
from hothead.models.target import CausalLM, Target


class CausalLMDraft:
    """A small causal LM as a draft. Whether its tokenizer is the target's is the loader's check."""

    name = "causal_lm"

    def __init__(self, model: PreTrainedModel, target: Target) -> None:
        self._model = CausalLM(model)
        self.lm_head = fit_rows(self._model.lm_head, target.vocab_size)
        self.reset(512)

    def reset(self, capacity: int) -> None:
        self._cache = self._model.new_cache(capacity)
        self._cached_ids: list[int] = []  # what the cache holds, drafted tokens included
        self._committed = 0

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        # Accepted drafts are in the cache already: keep the longest prefix that was confirmed, feed the rest. The
        # last token is fed in any case, as its hidden state is what was asked for.
        new_ids = target_ids.tolist()
        drafted = self._cached_ids[self._committed :]
        kept = 0
        while kept < min(len(drafted), len(new_ids) - 1) and drafted[kept] == new_ids[kept]:
            kept += 1
        self._forget_past(self._committed + kept)
        hidden = self._feed(target_ids[kept:])
        self._committed = self._cache.length
        return hidden[-1:]

    def step(self, target_id: Tensor, hidden: Tensor) -> Tensor:
        return self._feed(target_id)

    def rollback(self) -> None:
        """Nothing yet: :meth:`extend` forgets what turned out wrong, and keeps what turned out right."""

    def chains(self, target_ids: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
        """See :class:`hothead.models.draft.Unrolls`; here the states do not depend on where a chain began."""
        self.reset(len(target_ids))
        hidden = self._feed(target_ids)
        self._committed = self._cache.length
        begins = torch.arange(len(target_ids) - starts, len(target_ids), device=hidden.device)
        steps = torch.arange(depth, device=hidden.device)
        return hidden[(begins[:, None] + steps).clamp(max=len(target_ids) - 1)]

    def _feed(self, target_ids: Tensor) -> Tensor:
        self._cached_ids.extend(target_ids.tolist())
        return self._model.features(target_ids, self._cache)

    def _forget_past(self, length: int) -> None:
        self._cache.truncate(length)
        del self._cached_ids[length:]


def fit_rows(lm_head: LMHead, rows: int) -> LMHead:
    """The head with exactly ``rows`` rows: models of one family pad the same tokenizer to different sizes.

    Rows past the target's are dropped; missing ones get logit -inf, so that they are never drafted.
    """
    have = lm_head.vocab_size
    if have == rows:
        return lm_head
    if have > rows:
        bias = None if lm_head.bias is None else lm_head.bias[:rows]
        return LMHead(lm_head.weight[:rows], bias, lm_head.scale, lm_head.soft_cap)
    bias = lm_head.bias if lm_head.bias is not None else lm_head.weight.new_zeros(have)
    return LMHead(
        functional.pad(lm_head.weight, (0, 0, 0, rows - have)),
        functional.pad(bias, (0, rows - have), value=-torch.inf),
        lm_head.scale,
        lm_head.soft_cap,
    )
