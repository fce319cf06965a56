"""Batches for draft training: similar lengths together, prefix positions left-padded and only attended to."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from shards import Example
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs and targets. T = prefix + span; row r has `pad[r]` positions of left padding.

    next_ids int64 [B, T] is x[t+1]; features bfloat16 [B, T, F] is what the draft reads at t (f[t], or the taps of
    EAGLE-3); wanted bfloat16 [B, span, H] is f[t+1]; weight float32 [B, span] is zero on right padding.
    """

    next_ids: Tensor
    features: Tensor
    wanted: Tensor
    weight: Tensor
    pad: Tensor
    span: int


@dataclass(frozen=True)
class Extent:
    """Which positions of an example are trained: `prefix` positions before `span` positions."""

    example: Example
    prefix: int
    span: int


def extents(examples: list[Example], context: int, max_span: int) -> list[Extent]:
    """Train from `context` positions before the answer to its end, at most `max_span` positions."""
    out = []
    for e in examples:
        prefix = max(0, e.answer_start - 1 - context)
        span = min(len(e) - 1 - prefix, max_span)
        if span > 4:
            out.append(Extent(e, prefix, span))
    return out


def plan_epoch(items: list[Extent], span_tokens: int, rng: random.Random) -> list[list[Extent]]:
    """Shuffle into batches of about `span_tokens` trained positions, with little padding."""
    items = items[:]
    rng.shuffle(items)
    batches: list[list[Extent]] = []
    for at in range(0, len(items), 1024):
        chunk = sorted(items[at : at + 1024], key=lambda x: (x.prefix // 160, x.span))
        batch: list[Extent] = []
        for item in chunk:
            widest = max([item.span, *(x.span for x in batch)])
            far = batch and (item.prefix // 160 != batch[0].prefix // 160) and len(batch) * widest > span_tokens // 3
            if batch and (widest * (len(batch) + 1) > span_tokens or far):
                batches.append(batch)
                batch = []
            batch.append(item)
        if batch:
            batches.append(batch)
    rng.shuffle(batches)
    return batches


def collate(batch: list[Extent], context_weight: float) -> Batch:
    """Make tensors of one batch; positions before the answer get `context_weight`."""
    prefix, span = max(x.prefix for x in batch), max(x.span for x in batch)
    b, h = len(batch), batch[0].example.features.shape[1]
    next_ids = torch.zeros(b, prefix + span, dtype=torch.long)
    features = torch.zeros(b, prefix + span, batch[0].example.inputs.shape[1], dtype=torch.bfloat16)
    wanted = torch.zeros(b, span, h, dtype=torch.bfloat16)
    weight = torch.zeros(b, span)
    for r, x in enumerate(batch):
        a, n = prefix - x.prefix, x.prefix + x.span
        next_ids[r, a : a + n] = x.example.ids[1 : n + 1]
        features[r, a : a + n] = x.example.inputs[:n]
        wanted[r, : x.span] = x.example.features[x.prefix + 1 : n + 1]
        weight[r, : x.span] = 1.0
        weight[r, : max(0, x.example.answer_start - 1 - x.prefix)] = context_weight
    pad = torch.tensor([prefix - x.prefix for x in batch])
    return Batch(next_ids, features, wanted, weight, pad, span)
