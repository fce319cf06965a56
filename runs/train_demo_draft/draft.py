"""The one-layer EAGLE-1 draft and its unrolled forward pass.

At position t the draft reads (embedding of x[t+1], feature f[t]) and predicts f[t+1], which the target's own
LM head turns into x[t+2]. At step j of a chain the last j-1 features are the draft's own predictions:
training and evaluation both unroll that for all positions at once (HASS, arXiv 2408.15766; "training-time
test" in EAGLE-3).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from target import TargetConfig, rope_tables, rotate
from torch import Tensor, nn


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of the draft; all but the MLP's are the target's."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_length: int = 2048

    @classmethod
    def like(cls, target: TargetConfig, intermediate_size: int) -> DraftConfig:
        """A draft for `target`."""
        return cls(
            target.hidden_size, intermediate_size, target.num_heads, target.num_kv_heads, target.head_dim,
            target.rms_norm_eps, target.rope_theta,
        )  # fmt: skip


def _shift(x: Tensor, by: int) -> Tensor:
    """Move x [B, heads, S, D] `by` positions later; the first `by` become zero."""
    return F.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]] if by else x


class ChainLayer(nn.Module):
    """One Llama layer, unrolled on its own outputs. A draft says what it reads and what its outputs are.

    Args:
        width: of what the attention reads.
    """

    embed_scale = 1.0  # embeddings come in divided by it
    head_ids: Tensor | None = None  # target ids that the head has rows for, int64 [Vd]; None is all of them

    def __init__(self, config: DraftConfig, width: int) -> None:
        super().__init__()
        self.config = c = config
        h, kv = c.hidden_size, c.num_kv_heads * c.head_dim
        self.q_proj = nn.Linear(width, c.num_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(c.num_heads * c.head_dim, h, bias=False)
        self.norm = nn.Parameter(torch.ones(h))
        self.gate_proj = nn.Linear(h, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(h, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, h, bias=False)
        for p in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj, self.up_proj):
            nn.init.normal_(p.weight, std=0.02)
        for p in (self.o_proj, self.down_proj):
            nn.init.zeros_(p.weight)
        cos, sin = rope_tables(c.max_length, c.head_dim, c.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def first(self, features: Tensor) -> Tensor:
        """The states [B, T, H] that chains begin with, of what the target gives, [B, T, F]."""
        return features

    def mix(self, embeds: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(residual [B, S, H], what the attention reads [B, S, width]) of embeddings and states, each [B, S, H]."""
        raise NotImplementedError

    def head_input(self, states: Tensor) -> Tensor:
        """What the LM head reads of a state, [..., H]."""
        return states

    def layer_state(self, prefix: str) -> dict[str, Tensor]:
        """The layer's weights under the public names."""
        out = {f"{prefix}post_attention_layernorm.weight": self.norm.detach()}
        out |= {f"{prefix}self_attn.{n}_proj.weight": getattr(self, f"{n}_proj").weight.detach() for n in "qkvo"}
        mlp = ("gate", "up", "down")
        return out | {f"{prefix}mlp.{n}_proj.weight": getattr(self, f"{n}_proj").weight.detach() for n in mlp}

    def _heads(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        """[B, T, heads * D] -> [B, num_heads, T, D], rotated, key heads repeated for their query heads."""
        c = self.config
        x = x.view(*x.shape[:2], -1, c.head_dim).transpose(1, 2)
        if cos is not None and sin is not None:
            x = rotate(x, cos.to(x.dtype), sin.to(x.dtype))
        return x.repeat_interleave(c.num_heads // x.shape[1], 1)

    def unroll(self, embeds: Tensor, features: Tensor, pad: Tensor, span: int, steps: int) -> list[Tensor]:
        """Predict features at the last `span` positions, for chain steps 1..`steps`.

        embeds [B, T, H] are x[t+1]'s embeddings / embed_scale, features [B, T, F] are what the target gives at t,
        pad int64 [B] counts left padding. Earlier positions are only attended to. Returns `steps` tensors of states,
        [B, span, H];
        element j-1 at position t is the j-th draft of a chain that began at t-j+1 (its first j-1 positions
        mean nothing).
        """
        c = self.config
        b, total, _ = embeds.shape
        index = torch.arange(total)
        position = (index[None] - pad[:, None]).clamp_min(0)
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]  # [B, 1, T, D]
        states = self.first(features)
        x, read = self.mix(embeds, states)
        keys = [self._heads(self.k_proj(read), cos, sin)]
        values = [self._heads(self.v_proj(read), None, None)]
        cos, sin, embeds = cos[:, :, -span:], sin[:, :, -span:], embeds[:, -span:]
        x, read = x[:, -span:], read[:, -span:]
        real = index[None, None] >= pad[:, None, None]
        query_index, outputs = index[-span:], []
        previous = states[:, -span:]
        for j in range(1, steps + 1):
            if j > 1:
                previous = torch.cat((previous[:, :1], outputs[-1][:, :-1].to(previous.dtype)), 1)
                x, read = self.mix(embeds, previous)
                keys.append(self._heads(self.k_proj(read), cos, sin))
                values.append(self._heads(self.v_proj(read), None, None))
            q = self._heads(self.q_proj(read), cos, sin) / math.sqrt(c.head_dim)
            seen = real & (index[None, None] <= query_index[None, :, None] - (j - 1))  # [B, S, T]
            seen = seen | (index[None, None] == query_index[None, :, None] - (j - 1))  # never an empty row
            bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -1e4)[:, None]
            scores = torch.matmul(q, keys[0].transpose(-1, -2)) + bias
            if j == 1:
                attn = torch.matmul(torch.softmax(scores, -1), values[0])
            else:
                # own key of this step, then of the steps before it, one position earlier each
                near = [_shift(keys[j - 1 - m], m) for m in range(j - 1)]
                diagonal = [(q * k).sum(-1, keepdim=True).to(scores.dtype) for k in near]
                weights = torch.softmax(torch.cat((scores, *diagonal), -1), -1)
                attn = torch.matmul(weights[..., :total].to(q.dtype), values[0])
                for m in range(j - 1):
                    w = weights[..., total + m : total + m + 1].to(q.dtype)
                    attn = attn + w * _shift(values[j - 1 - m], m)
            x = x + self.o_proj(attn.transpose(1, 2).reshape(b, span, -1))
            n = F.rms_norm(x.float(), (c.hidden_size,), self.norm, c.rms_norm_eps).to(x.dtype)
            x = x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))
            outputs.append(x)
        return outputs


class Draft(ChainLayer):
    """`fc` and one Llama layer without input norm.

    Embeddings come in divided by `embed_scale`, so that both halves of `fc` see inputs of like size; saving
    folds the factor into `fc`.
    """

    def __init__(self, config: DraftConfig, embed_scale: float) -> None:
        super().__init__(config, config.hidden_size)
        self.embed_scale = embed_scale
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def mix(self, embeds: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ChainLayer`."""
        x = self.fc(torch.cat((embeds, states), -1))
        return x, x

    def public_state(self) -> dict[str, Tensor]:
        """Weights under the public EAGLE names, bfloat16, with `embed_scale` folded into `fc`."""
        fc = self.fc.weight.detach().float().clone()
        fc[:, : self.config.hidden_size] /= self.embed_scale
        out = {"fc.weight": fc, **self.layer_state("layers.0.")}
        return {k: v.bfloat16().contiguous() for k, v in out.items()}

    def load_public_state(self, state: dict[str, Tensor]) -> None:
        """Load weights under the public EAGLE names; the sizes must fit."""
        own = {
            "norm": state["layers.0.post_attention_layernorm.weight"],
            "fc.weight": state["fc.weight"].float(),
        }
        own["fc.weight"][:, : self.config.hidden_size] *= self.embed_scale
        own |= {f"{n}_proj.weight": state[f"layers.0.self_attn.{n}_proj.weight"] for n in "qkvo"}
        own |= {f"{n}_proj.weight": state[f"layers.0.mlp.{n}_proj.weight"] for n in ("gate", "up", "down")}
        self.load_state_dict({k: v.float() for k, v in own.items()})


def load_draft(folder: Path, target: TargetConfig, embed_scale: float) -> Draft:
    """Read a draft in the public layout from `folder`/model.safetensors."""
    state = load_file(folder / "model.safetensors")
    draft = Draft(DraftConfig.like(target, state["layers.0.mlp.gate_proj.weight"].shape[0]), embed_scale)
    draft.load_public_state(state)
    return draft


def save_draft(draft: Draft, folder: Path, target_folder: Path, metadata: dict[str, str]) -> None:
    """Write model.safetensors (atomically) and config.json in the public EAGLE-1 layout."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(draft.public_state(), folder / "model.safetensors.tmp", metadata={"format": "pt", **metadata})
    (folder / "model.safetensors.tmp").rename(folder / "model.safetensors")
    config = json.loads((target_folder / "config.json").read_text())
    for key in ("_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config |= {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
        "dtype": "bfloat16", "intermediate_size": draft.config.intermediate_size,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
