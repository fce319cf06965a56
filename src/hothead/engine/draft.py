"""Drafting: a chain of tokens from a draft model and its hot head."""

import torch
from torch import Tensor

from hothead.engine.sampling import SamplingParams, sample
from hothead.engine.stopwatch import Stopwatch
from hothead.engine.verify import Proposal
from hothead.head import HotHead
from hothead.models.draft import Draft


def propose_chain(
    draft: Draft,
    head: HotHead,
    new_target_ids: Tensor,
    features: Tensor,
    num_steps: int,
    params: SamplingParams,
    generator: torch.Generator,
    watch: Stopwatch,
) -> Proposal:
    """Bring the draft up to date and let it propose ``num_steps`` tokens.

    Args:
        new_target_ids: int64 [n], committed since the last call.
        features: [m, H], as :meth:`Draft.extend` takes them.
    """
    with watch.section("draft_extend"):
        hidden = draft.extend(new_target_ids, features)
    drafted: list[Tensor] = []
    distributions: list[Tensor] = []
    is_sampled = not params.is_greedy and params.draft_sampling == "probabilistic"
    for step in range(num_steps):
        with watch.section("draft_head"):
            if is_sampled:
                q = head.log_probs(hidden, params.temperature).exp()  # [1, R]
                distributions.append(q)
                drafted.append(head.target_ids[sample(q, generator)])
            else:
                drafted.append(head.argmax(hidden))
        if step + 1 < num_steps:
            with watch.section("draft_steps"):
                hidden = draft.step(drafted[-1], hidden)
    draft.rollback()
    return Proposal(
        torch.cat(drafted) if drafted else new_target_ids[:0],
        torch.cat(distributions) if distributions else None,
        head.target_ids.clone() if distributions and head.num_slots else head.target_ids,
    )
