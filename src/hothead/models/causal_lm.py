"""Standalone drafts: any causal LM that speaks the target's tokenizer, with its own head."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from hothead.head import LMHead
from hothead.models.target import CausalLM, Target
from hothead.models.window import GrowingTree
from hothead.vocab import DraftVocab


class CausalLMDraft:
    """A small causal LM as a draft. Whether its tokenizer is the target's is the loader's check."""

    name = "causal_lm"
    vocab: DraftVocab | None = None  # its head has every row
    taps: tuple[int, ...] = ()

    def __init__(self, model: PreTrainedModel, target: Target) -> None:
        self._model = CausalLM(model, fuse=target.is_fused, compiled=target.is_compiled)
        self.lm_head = fit_rows(self._model.lm_head, target.vocab_size)
        self.reset(512)

    def reset(self, capacity: int) -> None:
        self._cache = self._model.new_cache(capacity)
        self._committed = 0
        self._drafted: list[tuple[int, int]] = []  # (id, parent) of what the cache holds past the committed tokens

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        # Accepted drafts are in the cache already: keep the path that was confirmed, feed the rest. The last token is
        # fed in any case, as its hidden state is what was asked for.
        path = self._confirmed(target_ids.tolist()[:-1])
        self._cache.keep(self._committed, path)
        hidden = self._model.features(target_ids[len(path) :], self._cache)
        self._committed = self._cache.length
        self._drafted.clear()
        self._tree = GrowingTree(self._committed, target_ids.device)
        return hidden[-1:]

    def step(self, target_ids: Tensor, hidden: Tensor, parents: Tensor | None = None) -> Tensor:
        if parents is None:
            self._drafted.append((int(target_ids), len(self._drafted) - 1))
            return self._model.features(target_ids, self._cache)
        self._drafted.extend(zip(target_ids.tolist(), parents.tolist(), strict=True))
        return self._model.features(target_ids, self._cache, self._tree.grow(parents))

    def rollback(self) -> None:
        """Nothing yet: :meth:`extend` forgets what turned out wrong, and keeps what turned out right."""

    def chains(self, target_ids: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
        """See :class:`hothead.models.draft.Unrolls`; here the states do not depend on where a chain began."""
        self.reset(len(target_ids))
        hidden = self._model.features(target_ids, self._cache)
        self._committed = self._cache.length
        begins = torch.arange(len(target_ids) - starts, len(target_ids), device=hidden.device)
        steps = torch.arange(depth, device=hidden.device)
        return hidden[(begins[:, None] + steps).clamp(max=len(target_ids) - 1)]

    def _confirmed(self, target_ids: list[int]) -> list[int]:
        """The drafted tokens, as indices, that spell the longest beginning of ``target_ids``."""
        path: list[int] = []
        for target_id in target_ids:
            parent = path[-1] if path else -1
            found = next((i for i, drafted in enumerate(self._drafted) if drafted == (target_id, parent)), None)
            if found is None:
                break
            path.append(found)
        return path


def fit_rows(lm_head: LMHead, rows: int) -> LMHead:
    """The head with exactly ``rows`` rows: models of one family pad the same tokenizer to different sizes.

    Rows past the target's are dropped; missing ones get logit -inf, so that they are never drafted.
    """
    have = lm_head.vocab_size
    if have == rows:
        return lm_head
    if have > rows:
        bias = None if lm_head.bias is None else lm_head.bias[:rows]
        return replace(lm_head, weight=lm_head.weight[:rows], bias=bias)
    bias = lm_head.bias if lm_head.bias is not None else lm_head.weight.new_zeros(have)
    return replace(
        lm_head,
        weight=functional.pad(lm_head.weight, (0, 0, 0, rows - have)),
        bias=functional.pad(bias, (0, rows - have), value=-torch.inf),
    )
