"""The teacher-forced pass: everything about one answer that does not depend on the draft's vocabulary.

A draft's hidden states along a path follow from the path's tokens and the target's features. Its vocabulary only
decides which logits of these states count, so one pass serves every size, ranking and policy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.engine.sampling import SamplingParams, probabilities
from hothead.models.draft import Draft, Unrolls
from hothead.models.target import Target

TOP_TARGET_IDS = 16  # of the target's likeliest ids kept a position, for policies that offer them
LOGIT_ROWS = 64  # positions whose full-vocabulary logits exist at one time


@dataclass(frozen=True)
class TeacherForced:
    """One answer, read by target and draft.

    Attributes:
        prompt_target_ids: int64 [P].
        target_ids: int64 [n + 1], the answer: the prefill's token and the path x_1 ... x_n.
        hidden: [n, K, H]; entry [t, i] is the draft's state that proposes x_{t+i+1} in a round that starts after t
            tokens of the path and has drafted the path so far. Meaningless where t + i + 1 > n.
        log_probs: float32 [n], of the path's tokens under the target, as it samples; 0 at temperature 0.
        top_target_ids: int64 [n, 16] (fewer if V is less), the target's likeliest ids for each token of the path.
    """

    prompt_target_ids: Tensor
    target_ids: Tensor
    hidden: Tensor
    log_probs: Tensor
    top_target_ids: Tensor

    @property
    def path(self) -> Tensor:
        """int64 [n], what rounds emitted."""
        return self.target_ids[1:]

    def to_depth(self, depth: int) -> "TeacherForced":
        """The same with the first ``depth`` drafts of each chain."""
        return TeacherForced(
            self.prompt_target_ids, self.target_ids, self.hidden[:, :depth], self.log_probs, self.top_target_ids
        )


@torch.inference_mode()
def read_answer(
    target: Target, draft: Draft, prompt_target_ids: Tensor, target_ids: Tensor, params: SamplingParams, depth: int
) -> TeacherForced:
    """Feed a prompt and its answer to target and draft, and start a chain of ``depth`` drafts at every position.

    Args:
        prompt_target_ids: int64 [P].
        target_ids: int64 [n + 1], emitted by the target under ``params``.
    """
    n = len(target_ids) - 1
    fed = torch.cat([prompt_target_ids, target_ids[:-1]])  # the last token is predicted, never read
    width = min(TOP_TARGET_IDS, target.vocab_size)
    if n == 0:
        nothing = torch.empty(0, depth, draft.lm_head.weight.shape[1], dtype=target.dtype, device=target.device)
        no_ids = target_ids.new_empty(0, width)
        return TeacherForced(prompt_target_ids, target_ids, nothing, torch.empty(0), no_ids)
    last, features = target.read(fed, target.new_cache(len(fed)), taps=draft.taps)
    log_probs, top = [], []
    for block, ids in zip(last[-n:].split(LOGIT_ROWS), target_ids[1:].split(LOGIT_ROWS), strict=True):
        logits = target.logits(block)
        top.append(logits.topk(width, dim=-1).indices)
        if params.is_greedy:
            log_probs.append(torch.zeros(len(ids)))
        else:
            log_probs.append(probabilities(logits, params).gather(1, ids[:, None])[:, 0].log().cpu())
    hidden = _chains(draft, fed, features[:-1], n, depth)
    return TeacherForced(prompt_target_ids, target_ids, hidden, torch.cat(log_probs), torch.cat(top))


def _chains(draft: Draft, fed: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
    if isinstance(draft, Unrolls):
        return draft.chains(fed, features, starts, depth)
    return chains_by_steps(draft, fed, features, starts, depth)


def chains_by_steps(draft: Draft, target_ids: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
    """What :class:`Unrolls` computes, by the engine's own calls, one chain and one token at a time.

    The plain reference of the drafts' unrolled versions, and the way for a draft that has none.
    """
    draft.reset(len(target_ids) + depth)
    committed = len(target_ids) - starts + 1
    skipped = len(target_ids) - features.shape[0]  # tokens without a feature before them
    chains = []
    for start in range(starts):
        known = committed + start
        if start == 0:
            hidden = draft.extend(target_ids[:known], features[: known - skipped])
        else:
            hidden = draft.extend(target_ids[known - 1 : known], features[known - skipped - 1 : known - skipped])
        chain = [hidden]
        for step in range(1, depth):
            at = min(known + step - 1, len(target_ids) - 1)
            chain.append(draft.step(target_ids[at : at + 1], chain[-1]))
        draft.rollback()
        chains.append(torch.cat(chain))
    return torch.stack(chains)
