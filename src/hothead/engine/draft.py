"""Drafting: a chain or a tree of tokens from a draft model and its hot head."""

import torch
from torch import Tensor

from hothead.engine.sampling import SamplingParams, sample
from hothead.engine.stopwatch import Stopwatch
from hothead.engine.tree import DraftShape, Level, best, likeliest_children, sampled_children
from hothead.engine.verify import Proposal
from hothead.head import HotHead
from hothead.models.draft import Draft


def propose(
    draft: Draft,
    head: HotHead,
    new_target_ids: Tensor,
    features: Tensor,
    shape: DraftShape,
    num_steps: int,
    params: SamplingParams,
    generator: torch.Generator,
    watch: Stopwatch,
) -> Proposal:
    """Bring the draft up to date and let it propose tokens.

    Args:
        new_target_ids: int64 [n], committed since the last call.
        features: [m, H], as :meth:`Draft.extend` takes them.
        num_steps: levels to draft, at most ``shape.num_steps``.
    """
    with watch.section("draft_extend"):
        hidden = draft.extend(new_target_ids, features)
    if num_steps == 0:
        proposal = Proposal(new_target_ids[:0])
    elif shape.topk == 1:
        proposal = _chain(draft, head, hidden, shape, num_steps, params, generator, watch)
    else:
        proposal = _tree(draft, head, hidden, shape, num_steps, params, generator, watch)
    draft.rollback()
    return proposal


def _chain(
    draft: Draft,
    head: HotHead,
    hidden: Tensor,
    shape: DraftShape,
    num_steps: int,
    params: SamplingParams,
    generator: torch.Generator,
    watch: Stopwatch,
) -> Proposal:
    drafted: list[Tensor] = []
    distributions: list[Tensor] = []
    is_choosy = shape.p_min > 0 or shape.verify_p_min > 0
    path_probability = 1.0
    for step in range(num_steps):
        with watch.section("draft_head"):
            if params.drafts_by_sampling:
                q = head.log_probs(hidden, params.temperature).exp()  # [1, R]
                row = sample(q, generator)
                distributions.append(q)
                drafted.append(head.target_ids[row])
                probability = q[:, row]
            elif is_choosy:
                target_id, log_prob = head.likeliest(hidden)
                drafted.append(target_id)
                probability = log_prob.exp()
            else:
                drafted.append(head.argmax(hidden))
            if is_choosy:  # only who asks for it waits for the device here
                path_probability *= float(probability)
        if step and not distributions and path_probability < shape.verify_p_min:
            drafted.pop()
            break
        if step + 1 == num_steps or path_probability < shape.p_min:
            break
        with watch.section("draft_steps"):
            hidden = draft.step(drafted[-1], hidden)
    if not distributions:
        return Proposal(torch.cat(drafted))
    rows = torch.arange(len(drafted), device=hidden.device)
    return Proposal(torch.cat(drafted), None, torch.cat(distributions), rows, _row_ids(head))


def _tree(
    draft: Draft,
    head: HotHead,
    hidden: Tensor,
    shape: DraftShape,
    num_steps: int,
    params: SamplingParams,
    generator: torch.Generator,
    watch: Stopwatch,
) -> Proposal:
    is_sampled = params.drafts_by_sampling
    levels: list[Level] = []
    parents: list[Tensor] = []  # of each level's candidates, as indices into all candidates
    log_qs: list[Tensor] = []  # of each frontier; the first is the last committed token alone
    q_rows: list[Tensor] = []  # of each level's candidates, as rows of all of these
    path_log_probs = scores = hidden.new_zeros(1, dtype=torch.float32)
    frontier = torch.full((1,), -1, device=hidden.device)  # indices into all candidates
    for step in range(num_steps):
        with watch.section("draft_head"):
            log_q = head.log_probs(hidden, params.temperature if is_sampled else 1.0)
            if is_sampled:
                level = sampled_children(log_q, path_log_probs, scores, head.target_ids, shape.topk, generator)
            else:
                level = likeliest_children(log_q, path_log_probs, head.target_ids, shape.topk)
            q_rows.append(level.parents + sum(map(len, log_qs)))
            log_qs.append(log_q)
            parents.append(frontier[level.parents])
            before = sum(len(other.scores) for other in levels)
            levels.append(level)
            kept = level.best(shape.topk)
            if shape.p_min:
                kept = kept[level.path_log_probs[kept].exp() >= shape.p_min]
            frontier, path_log_probs, scores = before + kept, level.path_log_probs[kept], level.scores[kept]
        if step + 1 == num_steps or len(kept) == 0:
            break
        with watch.section("draft_steps"):
            # The draft was given every frontier but the first, so its count of tokens is one behind these rows.
            hidden = draft.step(level.target_ids[kept], hidden[level.parents[kept]], q_rows[-1][kept] - 1)
    with watch.section("draft_head"):
        all_scores = torch.cat([level.scores for level in levels])
        if shape.verify_p_min and not is_sampled:  # a greedy score is a path's log-probability
            likely = all_scores.exp() >= all_scores.max().exp().clamp(max=shape.verify_p_min)
            all_scores = torch.where(likely, all_scores, -torch.inf)
        chosen = best(all_scores, shape.width - 1)
        all_parents = torch.cat(parents)
        new_index = torch.full((len(all_parents) + 1,), -1, device=hidden.device)  # the last entry is the root's, -1
        new_index[chosen] = torch.arange(len(chosen), device=hidden.device)
        target_ids = torch.cat([level.target_ids for level in levels])[chosen]
        new_parents = new_index[all_parents[chosen]]
        if not is_sampled:
            return Proposal(target_ids, new_parents)
        return Proposal(target_ids, new_parents, torch.cat(log_qs).exp(), torch.cat(q_rows)[chosen], _row_ids(head))


def _row_ids(head: HotHead) -> Tensor:
    """What the head's rows are now; a copy, as slots are overwritten."""
    return head.target_ids.clone() if head.num_slots else head.target_ids
