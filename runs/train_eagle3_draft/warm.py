"""Start an EAGLE-3 draft from a trained EAGLE-1 draft of the same target, so that it drafts about as well at once.

EAGLE-1's layer goes on from x = We e + Wf f, embedding and feature mixed by its `fc`; EAGLE-3's goes on from g alone
and sees the embedding only through its attention. So the new draft has two kinds of heads: EAGLE-1's own, which read
[We | Wf] instead of x, and as many values again that hand We e + (Wf - 1) g on from each position to itself. Those look
at their own position because their queries and keys are one constant vector, turned by RoPE's fastest frequencies.
`fc` maps the taps to the feature f that EAGLE-1 reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from draft import DraftConfig
from torch import Tensor

OWN_PAIRS = 3  # RoPE's fastest pairs of dimensions: together they tell position 0 from every other within a context
OWN_MARGIN = 10.0  # by how much, at least, the own position's score is above every other's


def warm_config(like: DraftConfig) -> DraftConfig:
    """Sizes with room for both kinds of heads; every head has keys of its own."""
    return replace(like, num_heads=2 * like.num_heads, num_kv_heads=2 * like.num_heads)


def constant_direction(read: Tensor) -> Tensor:
    """The vector [F] whose product with each of `read` [n, F] is nearest to 1."""
    gram = read.T @ read / len(read)
    gram += 1e-4 * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram, read.mean(0))


def own_position_rows(direction: Tensor, heads: int, head_dim: int, theta: float) -> Tensor:
    """Query (and key) rows [heads * D, F] of heads that attend to their own position."""
    half = head_dim // 2
    frequency = theta ** (-torch.arange(OWN_PAIRS) / half)
    distances = torch.arange(1, 2048)[:, None] * frequency
    least = float((1 - distances.cos()).sum(-1).min())
    rows = torch.zeros(heads, head_dim, len(direction))
    rows[:, :OWN_PAIRS] = direction * (OWN_MARGIN * head_dim**0.5 / least) ** 0.5
    return rows.flatten(0, 1)


def warm_state(
    eagle: dict[str, Tensor], like: DraftConfig, taps: Tensor, features: Tensor, embeds: Tensor
) -> dict[str, Tensor]:
    """Parameters of `Eagle3(warm_config(like), ...)`, float32, but for the tap scale.

    eagle holds EAGLE-1's tensors under the public names; taps [n, 3 * H] (scaled), features [n, H] and embeds [n, H],
    those of the next token, are a sample at the same positions.
    """
    h, d, group = like.hidden_size, like.head_dim, like.num_heads // like.num_kv_heads
    old = {name.removeprefix("layers.0."): value.float() for name, value in eagle.items()}
    embed_rms, feature_rms = (x.pow(2).mean(-1).sqrt() for x in (embeds, features))
    read = torch.cat((embeds / embed_rms[:, None], features / feature_rms[:, None]), -1)
    we, wf = old["fc.weight"][:, :h] * embed_rms.mean(), old["fc.weight"][:, h:] * feature_rms.mean()
    mix = torch.cat((we, wf), -1)

    def repeated(weight: Tensor) -> Tensor:
        return weight.view(like.num_kv_heads, 1, d, -1).expand(-1, group, -1, -1).reshape(h, -1)

    own = own_position_rows(constant_direction(read), like.num_heads, d, like.rope_theta)
    handed_on = torch.cat((we, wf - feature_rms.mean() * torch.eye(h)), -1)
    gram = taps.T @ taps + 0.01 * len(taps) * torch.eye(taps.shape[1])
    attention = {name: old[f"self_attn.{name}_proj.weight"] for name in "qkvo"}
    return {
        "fc.weight": torch.linalg.solve(gram, taps.T @ features).T,
        "embedding_norm": torch.ones(h),
        "state_norm": torch.ones(h),
        "head_norm": torch.full((h,), float(feature_rms.mean())),
        "norm": old["post_attention_layernorm.weight"],
        "q_proj.weight": torch.cat((attention["q"] @ mix, own)),
        "k_proj.weight": torch.cat((repeated(attention["k"]) @ mix, own)),
        "v_proj.weight": torch.cat((repeated(attention["v"]) @ mix, handed_on)),
        "o_proj.weight": torch.cat((attention["o"], torch.eye(h)), -1),
        **{f"{n}_proj.weight": old[f"mlp.{n}_proj.weight"] for n in ("gate", "up", "down")},
    }
