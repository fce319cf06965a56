"""The same hot head for vLLM's model runner V2, the default on CUDA.

Its drafters sample inside captured CUDA graphs: hot rows are tensors whose addresses never change, and the slots are
written between replays, before a round's first draft. The round's tokens come as device tensors, not as a batch of
lists, so what was emitted is gathered from the tokens that were verified.
"""

import dataclasses
import inspect
from typing import Any

import torch
from torch import Tensor

from hothead.errors import InputError
from hothead.vllm_plugin import guard
from hothead.vllm_plugin.drafter import HotDrafter
from hothead.vllm_plugin.traffic import Reporter

SIGNATURES: dict[str, tuple[str, ...]] = {
    "load_model": ("self", "target_model"),
    "compute_draft_logits": ("self", "hidden_states", "spec_step_idx"),
    "sample_draft": (
        "self",
        "hidden_states",
        "sample_src_positions",
        "idx_mapping",
        "temperature",
        "seeds",
        "draft_step",
        "draft_logits",
        "spec_step_idx",
    ),
}
# The first parameters of `propose`; what follows is passed on as it is.
PROPOSE = (
    "self",
    "input_batch",
    "attn_metadata",
    "slot_mappings",
    "last_hidden_states",
    "aux_hidden_states",
    "num_sampled",
    "num_rejected",
    "last_sampled",
)
BATCH_FIELDS = ("num_reqs", "idx_mapping", "num_scheduled_tokens", "query_start_loc", "query_start_loc_np", "input_ids")


def emitted_tokens(
    input_ids: Tensor, query_start_loc: Tensor, num_sampled: Tensor, last_sampled: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """What a round emitted: the drafts it accepted, then the target's own token.

    Args:
        input_ids: [T], tokens that the target read; a request's are its last token and its drafts.
        query_start_loc: [B + 1], where each request's tokens begin.
        num_sampled: [B], tokens that the round emitted for each request, 0 while its prompt is being read.
        last_sampled: [B], the last of them.
        width: the most a round can emit, drafts and one.

    Returns:
        Target ids, int64 [B, width], and which of them are real, bool [B, width].
    """
    position = torch.arange(width, device=input_ids.device)
    index = (query_start_loc[:-1, None] + 1 + position).clamp(max=len(input_ids) - 1)
    last = position == num_sampled[:, None] - 1
    target_ids = torch.where(last, last_sampled[:, None].long(), input_ids[index].long())
    return target_ids, position < num_sampled[:, None]


def replace_methods(speculator: Any, hot: HotDrafter, reporter: Reporter | None) -> None:
    """Give this one speculator the hot functions; its class stays as it is."""
    propose, sample_draft = speculator.propose, speculator.sample_draft
    width = speculator.num_speculative_steps + 1

    def hot_sample(
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        draft_step: Tensor,
        draft_logits: Tensor | None,
        spec_step_idx: int = 0,
    ) -> Tensor:
        if draft_logits is None:
            return hot.greedy(hidden_states)
        return sample_draft(  # which asks compute_draft_logits
            hidden_states,
            sample_src_positions,
            idx_mapping,
            temperature,
            seeds,
            draft_step,
            draft_logits,
            spec_step_idx,
        )

    def hot_logits(hidden_states: Tensor, spec_step_idx: int) -> Tensor:
        return hot.full_width_logits(hidden_states)

    def hot_propose(
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Tensor,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        *arguments: Any,
        **keywords: Any,
    ) -> Tensor:
        if not keywords.get("dummy_run"):
            _observe(hot, input_batch, num_sampled, last_sampled, width)
            if reporter is not None:
                reporter.tick()
        return propose(
            input_batch,
            attn_metadata,
            slot_mappings,
            last_hidden_states,
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            *arguments,
            **keywords,
        )

    speculator.sample_draft = hot_sample
    speculator.compute_draft_logits = hot_logits
    speculator.propose = hot_propose


def _observe(hot: HotDrafter, batch: Any, num_sampled: Tensor, last_sampled: Tensor, width: int) -> None:
    count = batch.num_reqs
    target_ids, valid = emitted_tokens(
        batch.input_ids,
        batch.query_start_loc[: count + 1],
        num_sampled[:count],
        last_sampled.view(-1)[batch.idx_mapping[:count]],
        width,
    )
    starts = batch.query_start_loc_np
    # More tokens than a round verifies are a piece of a prompt.
    pieces = [
        batch.input_ids[int(starts[i]) : int(starts[i + 1])].long()
        for i in range(count)
        if batch.num_scheduled_tokens[i] > width
    ]
    hot.observe(target_ids, valid & (target_ids >= 0), pieces)


def check_contract(owner: type, batch: type, version: str) -> None:
    """Refuse a vLLM whose V2 drafters are not what this module takes them for.

    Raises:
        InputError: naming what differs.
    """
    guard.check_signatures(owner, SIGNATURES, version)
    found = tuple(inspect.signature(owner.propose).parameters)[: len(PROPOSE)]  # type: ignore[attr-defined]
    fields = {field.name for field in dataclasses.fields(batch)}
    if found != PROPOSE or not fields.issuperset(BATCH_FIELDS):
        raise InputError(
            f"hothead does not know model runner V2 of vLLM {version} ({owner.__name__}.propose or "
            f"{batch.__name__} differs); set VLLM_USE_V2_MODEL_RUNNER=0, or remove 'hothead' from --additional-config"
        )
