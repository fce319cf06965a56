"""Attention of a few new positions to a long cache.

Decoding attends with 1 to 32 queries to everything before. In bf16 torch's CPU kernel converts the whole cache block by
block for each of the query heads, grouped or not; with a float32 cache and one product per key head the same
attention takes a third of the time at 300 positions and less beyond. So on CPU the cache holds float32, which is
also the more precise choice. Long prefills go through torch's kernel.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import sdpa_mask

from hothead.spans import ATTENTION, span

NAME = "hothead_cpu"
FEW = 32  # queries up to which one product per key head beats torch's kernel


def attend(query: Tensor, key: Tensor, value: Tensor, unseen: Tensor | None, scale: float) -> Tensor:
    """Grouped attention of one sequence.

    Args:
        query: [Hq, n, d], in the keys' dtype.
        key, value: [Hk, L, d]; each key head serves Hq / Hk query heads.
        unseen: bool [n, m], which of the last m keys a query must not see; None: those after its own.

    Returns:
        [Hq, n, d].
    """
    query_heads, n, d = query.shape
    heads, length = key.shape[0], key.shape[1]
    if n > FEW:
        return _attend_many(query, key, value, unseen, scale)
    group = query_heads // heads
    scores = torch.bmm((query * scale).reshape(heads, group * n, d), key.transpose(1, 2))  # [Hk, group * n, L]
    if n > 1 or unseen is not None:
        hidden = causal_unseen(n, query.device) if unseen is None else unseen
        scores.view(heads, group, n, length)[..., length - hidden.shape[1] :].masked_fill_(hidden, -torch.inf)
    return torch.bmm(scores.softmax(dim=-1), value).view(query_heads, n, d)


def _attend_many(query: Tensor, key: Tensor, value: Tensor, unseen: Tensor | None, scale: float) -> Tensor:
    n, length = query.shape[1], key.shape[1]
    mask = None
    if unseen is not None or length > n:
        mask = seen_mask(causal_unseen(n, query.device) if unseen is None else unseen, length)
    return functional.scaled_dot_product_attention(
        query[None], key[None], value[None], mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )[0]


def seen_mask(unseen: Tensor, length: int) -> Tensor:
    """bool [n, L], True where a query sees a key, of ``unseen``, bool [n, m], over the last m keys."""
    mask = unseen.new_ones(unseen.shape[0], length)
    mask[:, length - unseen.shape[1] :] = ~unseen
    return mask


@lru_cache(maxsize=64)
def causal_unseen(n: int, device: torch.device) -> Tensor:
    """bool [n, n], True where a column comes after its row. Do not write to it: it is kept."""
    return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)


def use_cpu_attention(config: PreTrainedConfig, device: torch.device) -> bool:
    """Switch ``config`` from torch's kernel to ours where that is faster; whether the cache must be float32."""
    if device.type != "cpu" or config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, _transformers_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    config._attn_implementation = NAME
    return True


def _transformers_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer.

    Args:
        query: [1, Hq, n, d], the model's dtype.
        key, value: float32 [1, Hk, L, d].
        attention_mask: bool [1, 1, n, L], True where a query sees a key; None: causal.

    Returns:
        [1, n, Hq, d] in the query's dtype, and None for the weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    unseen = None if attention_mask is None else ~attention_mask[0, 0]
    with span(ATTENTION):
        attended = attend(query[0].to(key.dtype), key[0], value[0], unseen, scale)
    return attended.transpose(0, 1)[None].to(query.dtype), None
