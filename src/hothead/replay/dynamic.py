"""Dynamic vocabularies: slots and policies replayed on the same paths, with the engine's own slot table.

The set of hot ids is whatever ``hothead.dynamic`` makes of what it is offered, and the logits are its head's: nothing
of either is written again here. What remains is when it is offered what:

- Greedy: rounds follow from the path, so they are played out one by one and the set is updated after each, as in the
  engine. Exact.
- Sampled: which rounds occurred is random, so every token of the path is offered on its own, and each start sees the
  set after all tokens before it. For ``on_miss`` and ``prompt`` that is exact, because the slots hold the ids that were
  offered last, however the offers were grouped. With ``target_topk`` beside another policy the order of offers within
  a round is approximated; ``full_refresh`` is exact. Misses are approximated: a new token that one round emits twice
  counts once. So is the copying of rows, where a round offers more new ids than there are slots.

In both cases what an engine's last round emits past the end of an answer is not offered here, as it is not on the path
(at most k tokens an answer). The set lasts from answer to answer, as in a server.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hothead.dynamic import DynamicConfig, make_hot_vocabulary
from hothead.engine.sampling import SamplingParams
from hothead.errors import InputError
from hothead.head import LMHead
from hothead.replay.law import Renewal, Replayed, acceptance
from hothead.replay.teacher import TOP_TARGET_IDS, TeacherForced
from hothead.vocab import DraftVocab


class DynamicReplay:
    """Replays answers, in the order they are given, under one vocabulary that follows them.

    Args:
        lm_head: the draft's, with V rows.
        vocab: the static rows.
        config: slots and policy.
        num_steps: k.
        params: temperature and way of drafting; the answers were sampled with the same.

    Raises:
        InputError: a policy that offers more of the target's likeliest ids than answers keep.
    """

    def __init__(
        self, lm_head: LMHead, vocab: DraftVocab, config: DynamicConfig, num_steps: int, params: SamplingParams
    ) -> None:
        self._hot = make_hot_vocabulary(lm_head, vocab, config)
        self._vocab_size = lm_head.vocab_size
        self._num_steps, self._params = num_steps, params
        self._offers_top = _check_top(config.policy)

    @torch.inference_mode()
    def replay(self, answer: TeacherForced) -> Replayed:
        """What the vocabulary does on this answer (S = 1)."""
        n = len(answer.path)
        renewal = Renewal(n, self._num_steps, 1)
        missed, copied_before = 0, self._hot.rows_copied
        self._hot.after_prompt(answer.prompt_target_ids)
        for start, emitted, reaches in self._rounds(answer) if self._params.is_greedy else self._starts(answer):
            for at in range(start, start + emitted):  # greedy: no round starts at the others
                renewal.start(reaches if at == start else np.zeros_like(reaches))
            ids = answer.path[start : start + emitted]
            missed += int((self._hot.head.row_of[ids] < 0).sum())
            self._hot.after_round(ids, self._target_logits(answer.top_target_ids[start : start + emitted]))
        return renewal.result(np.array([missed]), self._hot.rows_copied - copied_before)

    def _rounds(self, answer: TeacherForced) -> Iterator[tuple[int, int, np.ndarray]]:
        """Each round of a greedy answer: where it starts, how many tokens it emits, and [k, 1] what it accepts."""
        start = 0
        while start < len(answer.path):
            reaches = np.cumprod(self._drafts_path(answer, start), axis=0)[:, None]
            emitted = min(int(reaches.sum()) + 1, len(answer.path) - start)
            yield start, emitted, reaches
            start += emitted

    def _starts(self, answer: TeacherForced) -> Iterator[tuple[int, int, np.ndarray]]:
        """Every place of a sampled answer, as a round that emits one token."""
        is_sampled = self._params.draft_sampling == "probabilistic"
        for start in range(len(answer.path)):
            accepts = self._acceptance(answer, start) if is_sampled else self._drafts_path(answer, start)
            yield start, 1, np.cumprod(accepts, axis=0)[:, None]

    def _drafts_path(self, answer: TeacherForced, start: int) -> np.ndarray:
        """float64 [<= k], 1 where the draft's likeliest hot token is the path's."""
        path = answer.path[start : start + self._num_steps]
        drafted = self._hot.head.argmax(answer.hidden[start, : len(path)])
        return (drafted == path).double().cpu().numpy()

    def _acceptance(self, answer: TeacherForced, start: int) -> np.ndarray:
        """float64 [<= k], min(1, q(x) / p(x))."""
        path = answer.path[start : start + self._num_steps]
        log_q = self._hot.head.log_probs(answer.hidden[start, : len(path)], self._params.temperature)
        rows = self._hot.head.row_of[path]
        of_path = log_q.gather(1, rows.clamp(min=0)[:, None])[:, 0].masked_fill(rows < 0, -torch.inf)
        log_p = answer.log_probs[start : start + len(path)].double().numpy()
        return acceptance(of_path.double().cpu().numpy(), log_p)

    def _target_logits(self, top_target_ids: Tensor) -> Tensor:
        """Logits [n, V] whose likeliest ids are those of the target: all that a policy may ask of them."""
        if not self._offers_top:
            return torch.empty(len(top_target_ids), 0, device=top_target_ids.device)
        n, width = top_target_ids.shape
        falling = -torch.arange(width, dtype=torch.float32, device=top_target_ids.device).expand(n, width)
        logits = falling.new_full((n, self._vocab_size), -torch.inf)
        return logits.scatter_(1, top_target_ids, falling)


def _check_top(policy: str) -> bool:
    """Whether ``policy`` looks at the target's likeliest ids."""
    tops = [part.strip().partition(":")[2] for part in policy.split("+") if part.strip().startswith("target_topk")]
    most = max((int(count) for count in tops if count), default=0)
    if most > TOP_TARGET_IDS:
        raise InputError(
            f"policy {policy}: a replay keeps the target's {TOP_TARGET_IDS} likeliest ids a position; "
            f"found target_topk:{most}"
        )
    return bool(tops)
