"""Attention of a few new positions on a CPU, hooked into transformers under a name of its own.

Decoding attends with 1 to 16 queries to a long cache. In bf16 torch's CPU kernel converts the whole cache block by
block for each of the query heads, grouped or not; with a float32 cache and one product per key head the same
attention takes a third of the time at 300 positions and less beyond. So on CPU the cache holds float32, which is
also the more precise choice. Long prefills go through torch's kernel.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import sdpa_mask

NAME = "hothead_cpu"
FEW = 32  # queries up to which one product per key head beats torch's kernel


def use_cpu_attention(config: PreTrainedConfig, device: torch.device) -> bool:
    """Switch ``config`` from torch's kernel to ours where that is faster; whether the cache must be float32."""
    if device.type != "cpu" or config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    config._attn_implementation = NAME
    return True


def grouped_attention(
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
        key, value: float32 [1, Hk, L, d]; each key head serves Hq / Hk query heads.
        attention_mask: bool [1, 1, n, L], True where a query sees a key; None: causal.

    Returns:
        [1, n, Hq, d] in the query's dtype, and None for the weights.
    """
    batch, query_heads, n, d = query.shape
    heads, length = key.shape[1], key.shape[2]
    scale = d**-0.5 if scaling is None else scaling
    q = query.to(key.dtype)
    if n > FEW or batch > 1:
        is_causal = attention_mask is None and n > 1
        attended = functional.scaled_dot_product_attention(
            q, key, value, attention_mask, scale=scale, is_causal=is_causal, enable_gqa=True
        )
    else:
        group = query_heads // heads
        scores = torch.bmm(q.reshape(heads, group * n, d) * scale, key[0].transpose(1, 2))  # [Hk, group * n, L]
        if attention_mask is not None:
            scores.view(heads, group, n, length).masked_fill_(~attention_mask, -torch.inf)
        elif n > 1:
            scores.view(heads, group, n, length).masked_fill_(_unseen(n, length), -torch.inf)
        attended = torch.bmm(scores.softmax(dim=-1), value[0]).view(1, query_heads, n, d)
    return attended.transpose(1, 2).to(query.dtype), None


def _unseen(n: int, length: int) -> Tensor:
    """bool [n, L], True where a key comes after the query; the last query sees the last key."""
    return torch.ones(n, length, dtype=torch.bool).triu(length - n + 1)
