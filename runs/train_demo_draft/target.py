"""The target model, read from its GGUF file and run fast on a CPU in bfloat16.

Transformers loads the weights once; after that every linear layer is a packed oneDNN matrix product and the
key/value cache is static, because generating the training text is most of the cost of training a draft.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class TargetConfig:
    """Sizes of a Llama-shaped target."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float


_GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _rotate_half_rows(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of the two rotary halves; weight [heads * D, H]."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def convert_gguf(gguf: Path, out: Path) -> None:
    """Dequantise a Llama GGUF file to bfloat16 safetensors, with its tokenizer, under `out`; skip if done."""
    if (out / "model.safetensors").exists():
        return
    from gguf import GGUFReader, dequantize
    from transformers import AutoConfig, AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(out)
    config.save_pretrained(out)
    tensors = {}
    for t in GGUFReader(str(gguf)).tensors:
        value = torch.from_numpy(dequantize(t.data, t.tensor_type).copy())
        if t.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif t.name == "output_norm.weight":
            name = "model.norm.weight"
        elif t.name.startswith("blk."):
            _, layer, kind, _ = t.name.split(".")
            name = f"model.layers.{layer}.{_GGUF_NAMES[kind]}.weight"
            if kind == "attn_q":
                value = _rotate_half_rows(value, config.num_attention_heads)
            elif kind == "attn_k":
                value = _rotate_half_rows(value, config.num_key_value_heads)
        else:
            raise ValueError(f"{gguf.name}: unexpected tensor {t.name!r}; only tied Llama models are read")
        tensors[name] = value.bfloat16().contiguous()
    save_file(tensors, out / "model.safetensors.tmp")
    (out / "model.safetensors.tmp").rename(out / "model.safetensors")


def read_config(path: Path) -> TargetConfig:
    """Read `config.json` of a converted target."""
    raw = json.loads((path / "config.json").read_text())
    rope = raw.get("rope_parameters") or {}
    return TargetConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        vocab_size=raw["vocab_size"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or raw["rope_theta"]),
    )


def load_embedding(path: Path) -> Tensor:
    """Return the tied embedding / LM head, bfloat16 [V, H]."""
    return load_file(path / "model.safetensors")["model.embed_tokens.weight"]


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [length, head_dim], in the rotate-half layout."""
    inv = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(length).float()[:, None] * inv[None]
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding; x [..., D], cos and sin broadcastable to it."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).bfloat16() * weight


class _Packed:
    """A bias-free linear layer whose bfloat16 weight is kept in oneDNN's blocked layout."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


@dataclass
class KVCache:
    """Static cache: keys and values [layers][B, KV, L, D], each row's left padding [B], `length` filled."""

    keys: list[Tensor]
    values: list[Tensor]
    pad: Tensor
    length: int = 0

    def select(self, rows: Tensor) -> None:
        """Keep only `rows` (int64 [b]) of the batch."""
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]
        self.pad = self.pad[rows]


class FastTarget:
    """Llama forward passes over padded batches; they return what the LM head reads (after the final norm)."""

    def __init__(self, path: Path, max_length: int = 2048) -> None:
        self.config = c = read_config(path)
        w = load_file(path / "model.safetensors")
        self.embedding = w["model.embed_tokens.weight"]
        self.head = _Packed(self.embedding)
        self.norm = w["model.norm.weight"]
        self.layers = []
        for i in range(c.num_layers):
            p = f"model.layers.{i}."
            qkv = torch.cat([w[f"{p}self_attn.{n}_proj.weight"] for n in "qkv"])
            gate_up = torch.cat([w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up")])
            self.layers.append(
                (
                    w[f"{p}input_layernorm.weight"],
                    _Packed(qkv),
                    _Packed(w[f"{p}self_attn.o_proj.weight"]),
                    w[f"{p}post_attention_layernorm.weight"],
                    _Packed(gate_up),
                    _Packed(w[f"{p}mlp.down_proj.weight"]),
                )
            )
        cos, sin = rope_tables(max_length, c.head_dim, c.rope_theta)
        self.cos, self.sin = cos.bfloat16(), sin.bfloat16()

    def new_cache(self, pad: Tensor, length: int) -> KVCache:
        """Allocate a cache of `length` positions for rows left-padded by `pad` (int64 [B])."""
        c = self.config
        shape = (len(pad), c.num_kv_heads, length, c.head_dim)
        empty = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2 * c.num_layers)]
        return KVCache(empty[: c.num_layers], empty[c.num_layers :], pad)

    @torch.inference_mode()
    def forward_causal(self, ids: Tensor, taps: tuple[int, ...] = ()) -> Tensor:
        """Run right-padded ids [B, T] with no cache; return features bfloat16 [B, T, H].

        With `taps`, layers in ascending order, return what goes into each of them, side by side, bfloat16
        [B, T, taps * H]; the layers from the last one on are not run.
        """
        c = self.config
        b, t = ids.shape
        cos, sin = self.cos[:t, None], self.sin[:t, None]  # [T, 1, D]
        group = c.num_heads // c.num_kv_heads
        x = F.embedding(ids, self.embedding)
        tapped: list[Tensor] = []
        for i, (norm1, qkv_proj, o_proj, norm2, gate_up_proj, down_proj) in enumerate(self.layers):
            if i in taps:
                tapped.append(x)
                if len(tapped) == len(taps):
                    return torch.cat(tapped, -1)
            qkv = qkv_proj(_rms(x, norm1, c.rms_norm_eps)).view(b, t, -1, c.head_dim)
            qk, v = qkv.split([c.num_heads + c.num_kv_heads, c.num_kv_heads], 2)
            q, k = rotate(qk, cos, sin).transpose(1, 2).split([c.num_heads, c.num_kv_heads], 1)
            k, v = k.repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1)
            attn = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + o_proj(attn.transpose(1, 2).reshape(b, t, -1))
            gate, up = gate_up_proj(_rms(x, norm2, c.rms_norm_eps)).chunk(2, -1)
            x = x + down_proj(F.silu(gate) * up)
        return _rms(x, self.norm, c.rms_norm_eps)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Run ids [B, T] after what `cache` holds and extend it; return features bfloat16 [B, T, H]."""
        c = self.config
        b, t = ids.shape
        start, end = cache.length, cache.length + t
        index = torch.arange(start, end)
        position = (index[None] - cache.pad[:, None]).clamp_min(0)  # [B, T]
        cos, sin = self.cos[position][:, :, None], self.sin[position][:, :, None]  # [B, T, 1, D]
        key_index = torch.arange(end)
        mask = (key_index[None, None] <= index[None, :, None]) & (key_index[None, None] >= cache.pad[:, None, None])
        mask |= index[None, :, None] == key_index[None, None]  # a pad position sees itself: no NaN rows
        group = c.num_heads // c.num_kv_heads
        mask = mask[:, None]  # [B, 1, T, L]; when T is 1 a key head's query heads take the place of T
        bias = torch.zeros(mask.shape, dtype=torch.bfloat16).masked_fill_(~mask, float("-inf"))
        x = F.embedding(ids, self.embedding)
        for i, (norm1, qkv_proj, o_proj, norm2, gate_up_proj, down_proj) in enumerate(self.layers):
            qkv = qkv_proj(_rms(x, norm1, c.rms_norm_eps)).view(b, t, -1, c.head_dim)
            qk, v = qkv.split([c.num_heads + c.num_kv_heads, c.num_kv_heads], 2)
            qk = rotate(qk, cos, sin)
            q, k = qk.split([c.num_heads, c.num_kv_heads], 2)
            cache.keys[i][:, :, start:end] = k.transpose(1, 2)
            cache.values[i][:, :, start:end] = v.transpose(1, 2)
            keys, values = cache.keys[i][:, :, :end], cache.values[i][:, :, :end]
            if t == 1:
                q = q.view(b, c.num_kv_heads, group, c.head_dim)
                attn = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
                attn = attn.reshape(b, 1, -1)
            else:
                keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
                attn = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=bias)
                attn = attn.transpose(1, 2).reshape(b, t, -1)
            x = x + o_proj(attn)
            gate, up = gate_up_proj(_rms(x, norm2, c.rms_norm_eps)).chunk(2, -1)
            x = x + down_proj(F.silu(gate) * up)
        cache.length = end
        return _rms(x, self.norm, c.rms_norm_eps)
