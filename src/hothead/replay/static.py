"""Static vocabularies: the acceptance of every size of every ranking, from one set of logits.

A vocabulary of m rows holds the first m ids of a ``SelectionOrder``; write rank(y) for an id's place in it. Then

- greedy drafts: x is drafted for exactly the sizes from rank(x) + 1 to the least rank of an id that beats x. Beating
  means a larger logit, or an equal one and a smaller id, as the engine's argmax has it. Two numbers describe all sizes.
- sampled drafts: q_m(x) = exp(l_x - logsumexp of the first m logits), l = logits over temperature: a running logsumexp.

Logits are those of the engine's own head, in its dtype. A pass over many rows may round otherwise than the engine's
over one, so in bf16 a near-tie of two logits can fall the other way; in float32 that is as rare as a tie.
"""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hothead.engine.sampling import SamplingParams
from hothead.head import HotHead, LMHead
from hothead.replay.law import Renewal, Replayed, acceptance
from hothead.replay.teacher import LOGIT_ROWS, TeacherForced
from hothead.vocab import DraftVocab, SelectionOrder


class StaticReplay:
    """Replays answers under every size of every ranking.

    Args:
        lm_head: the draft's, with V rows.
        orders: one a ranking, of V ids.
        sizes: int64 [S], ascending, numbers of rows.
        num_steps: every k wanted; none may exceed the depth of the answers' chains.
        params: temperature and way of drafting; the answers were sampled with the same.

    Attributes:
        head_s: seconds spent on full-vocabulary logits.
        sizes_s: seconds spent on everything else, all of it because of the sizes.
    """

    def __init__(
        self,
        lm_head: LMHead,
        orders: Sequence[SelectionOrder],
        sizes: np.ndarray,
        num_steps: Sequence[int],
        params: SamplingParams,
    ) -> None:
        device = lm_head.weight.device
        self._head = HotHead(lm_head, DraftVocab.full(lm_head.vocab_size))
        self._orders = [torch.as_tensor(order.target_ids.copy(), device=device) for order in orders]
        self._rank_of = [torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=device))
                         for order in self._orders]  # fmt: skip
        self._sizes, self._num_steps, self._params = sizes, tuple(num_steps), params
        # Sizes are multiples of this (V aside), so logits need summing up only in such pieces.
        self._piece = int(np.gcd.reduce(sizes[:-1])) if len(sizes) > 1 else int(sizes[0])
        self.head_s = self.sizes_s = 0.0

    @torch.inference_mode()
    def replay(self, answer: TeacherForced) -> list[list[Replayed]]:
        """For each ranking and each k, what the sizes [S] do on this answer."""
        start, head_before = time.perf_counter(), self.head_s
        n = len(answer.path)
        renewals = [[Renewal(n, k, len(self._sizes)) for k in self._num_steps] for _ in self._orders]
        is_sampled = not self._params.is_greedy and self._params.draft_sampling == "probabilistic"
        for reaches in self._sampled(answer) if is_sampled else self._greedy(answer):
            for of_ranking, reached in zip(renewals, reaches, strict=True):
                for renewal in of_ranking:
                    renewal.start(reached)
        found = []
        for of_ranking, rank_of in zip(renewals, self._rank_of, strict=True):
            ranks = np.sort(rank_of[answer.path].cpu().numpy())
            missed = n - np.searchsorted(ranks, self._sizes)
            found.append([renewal.result(missed) for renewal in of_ranking])
        self.sizes_s += time.perf_counter() - start - (self.head_s - head_before)
        return found

    def _logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V], by target id."""
        start = time.perf_counter()
        logits = self._head.logits(hidden)
        self.head_s += time.perf_counter() - start
        return logits

    # Greedy drafts

    def _greedy(self, answer: TeacherForced) -> Iterator[list[np.ndarray]]:
        """For each start, for each ranking: bool [K, S], whether the first i + 1 drafts are the path's tokens."""
        lows, highs = self._intervals(answer)
        for start in range(len(answer.path)):
            yield [
                (low[start, :, None] <= self._sizes) & (self._sizes <= high[start, :, None])
                for low, high in zip(lows, highs, strict=True)
            ]

    def _intervals(self, answer: TeacherForced) -> tuple[np.ndarray, np.ndarray]:
        """Int64 [rankings, n, K] twice: least and greatest size at which the first i + 1 drafts are the path's tokens.

        Chains that no size keeps alive are not followed, which is what makes deep chains cheap.
        """
        n, depth = answer.hidden.shape[:2]
        lows = np.full((len(self._orders), n, depth), self._sizes[-1] + 1)
        highs = np.zeros_like(lows)
        alive = np.arange(n)
        for step in range(depth):
            alive = alive[alive + step < n]
            if step:
                least = np.maximum(lows[:, alive, :step].max(axis=2), self._sizes[0])
                alive = alive[(least <= highs[:, alive, :step].min(axis=2)).any(axis=0)]
            for at in range(0, len(alive), LOGIT_ROWS):
                starts = alive[at : at + LOGIT_ROWS]
                rows = torch.as_tensor(starts, device=answer.path.device)
                for number, (low, high) in enumerate(self._row_intervals(answer, rows, step)):
                    lows[number, starts, step], highs[number, starts, step] = low, high
        lows, highs = np.maximum.accumulate(lows, axis=2), np.minimum.accumulate(highs, axis=2)
        return lows, highs

    def _row_intervals(
        self, answer: TeacherForced, starts: Tensor, step: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each ranking: least and greatest size at which this draft alone is the path's token, [R] and [R]."""
        logits = self._logits(answer.hidden[starts, step])
        ids = answer.path[starts + step]
        own = logits.gather(1, ids[:, None])[:, 0]
        rows, rivals = (logits >= own[:, None]).nonzero(as_tuple=True)
        beats = (logits[rows, rivals] > own[rows]) | (rivals < ids[rows])
        rows, rivals = rows[beats], rivals[beats]
        for rank_of in self._rank_of:
            high = torch.full_like(ids, len(rank_of)).scatter_reduce_(0, rows, rank_of[rivals], "amin")
            yield (rank_of[ids] + 1).cpu().numpy(), high.cpu().numpy()

    # Sampled drafts

    def _sampled(self, answer: TeacherForced) -> Iterator[list[np.ndarray]]:
        """For each start and ranking: float64 [K, S], the probability that the first i + 1 drafts are accepted."""
        n, depth = answer.hidden.shape[:2]
        steps = torch.arange(depth, device=answer.path.device)
        block = max(1, LOGIT_ROWS // depth)
        for at in range(0, n, block):
            starts = torch.arange(at, min(at + block, n), device=answer.path.device)
            places = (starts[:, None] + steps).clamp(max=n - 1).flatten()  # past the end: anything, it is not used
            logits = self._logits(answer.hidden[starts].flatten(0, 1)).float() / self._params.temperature
            ids, log_p = answer.path[places], answer.log_probs[places.cpu()].double()
            accepts = [
                self._acceptance(logits, ids, log_p, order, rank_of).reshape(len(starts), depth, -1)
                for order, rank_of in zip(self._orders, self._rank_of, strict=True)
            ]
            for row in range(len(starts)):
                yield [np.cumprod(accept[row], axis=0) for accept in accepts]

    def _acceptance(self, logits: Tensor, ids: Tensor, log_p: Tensor, order: Tensor, rank_of: Tensor) -> np.ndarray:
        """min(1, q_m(x) / p(x)) for R rows and all sizes, float64 [R, S]."""
        ranked = logits.index_select(1, order)
        pieces = math.ceil(ranked.shape[1] / self._piece)
        if missing := pieces * self._piece - ranked.shape[1]:
            ranked = functional.pad(ranked, (0, missing), value=-torch.inf)
        sums = ranked.view(len(ids), pieces, self._piece).logsumexp(dim=-1)
        running = sums.double().logcumsumexp(dim=-1).cpu()
        sizes = torch.as_tensor(self._sizes)
        log_q = logits.gather(1, ids[:, None]).double().cpu() - running[:, (sizes - 1) // self._piece]
        log_q[rank_of[ids].cpu()[:, None] >= sizes] = -torch.inf
        return acceptance(log_q.numpy(), log_p[:, None].numpy())
