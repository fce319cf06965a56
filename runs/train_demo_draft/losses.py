"""Losses of draft training: distillation over a sample of the LM head's columns, and a feature loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 512  # rows of logits at a time: they stay in the cache


class _SoftHead(torch.autograd.Function):
    """Cross entropy of `pred @ head.T` with given probabilities; its gradient is made going forward."""

    @staticmethod
    def forward(ctx, pred: Tensor, head: Tensor, labels: Tensor, weight: Tensor) -> Tensor:  # type: ignore
        grad = torch.empty_like(pred)
        total = torch.zeros(())
        for a in range(0, len(pred), _ROWS):
            b = a + _ROWS
            logits = (pred[a:b] @ head.T).float()
            lse = logits.logsumexp(-1, keepdim=True)
            q = labels[a:b].float()
            total += ((lse[:, 0] - (q * logits).sum(-1)) * weight[a:b]).sum()
            error = logits.sub_(lse).exp_().sub_(q).mul_(weight[a:b, None])
            grad[a:b] = error.to(pred.dtype) @ head
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx, scale: Tensor):  # type: ignore
        return ctx.saved_tensors[0] * scale, None, None, None


@torch.no_grad()
def soft_labels(features: Tensor, head: Tensor, hard: float) -> Tensor:
    """The target's own probabilities over the sampled columns, mixed with its argmax by `hard`.

    features bfloat16 [N, H] and head bfloat16 [C, H]; returns bfloat16 [N, C].
    """
    out = torch.empty(len(features), len(head), dtype=torch.bfloat16)
    for a in range(0, len(features), _ROWS):
        logits = (features[a : a + _ROWS] @ head.T).float()
        p = torch.softmax(logits, -1).mul_(1 - hard)
        if hard:
            p.scatter_add_(1, logits.argmax(-1, keepdim=True), torch.full((len(p), 1), hard))
        out[a : a + _ROWS] = p
    return out


def draft_loss(
    pred: Tensor, features: Tensor, head: Tensor, labels: Tensor, weight: Tensor, feature_weight: float
) -> tuple[Tensor, float, float]:
    """Return (loss, cross entropy, feature loss), each a mean weighted by `weight` [N].

    pred and features [N, H]; head [C, H] the sampled columns; labels [N, C].
    """
    norm = weight.sum().clamp_min(1.0)
    ce = _SoftHead.apply(pred.bfloat16(), head, labels, weight / norm)
    per_token = F.smooth_l1_loss(pred.float(), features.float(), reduction="none").mean(-1)
    distance = (per_token * weight).sum() / norm
    return ce + feature_weight * distance, float(ce.detach()), float(distance.detach())


class ColumnSampler:
    """Chooses head columns for a batch: the most frequent ids, the batch's own, and random others."""

    def __init__(self, counts: Tensor, frequent: int, others: int, seed: int) -> None:
        self.frequent = counts.argsort(descending=True)[:frequent]
        self.others, self.vocab = others, len(counts)
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, batch_ids: Tensor) -> Tensor:
        """Unique target ids, int64 [C], for a batch whose ids are `batch_ids`."""
        extra = torch.randint(self.vocab, (self.others,), generator=self.generator)
        return torch.unique(torch.cat((self.frequent, batch_ids.flatten(), extra)))
