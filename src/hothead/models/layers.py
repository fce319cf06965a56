"""Llama-like layers with as few operations as eager PyTorch allows.

A pass over five tokens of a small model is a thousand operations of microseconds each; transformers' own layers issue
three times as many as are needed. Here QKV and gate/up are one product each, residuals are added by the product that
precedes them, and keys go straight into the cache. The weights are the model's own, the result is checked against
its logits when a target is loaded, and what is not known to fit stays with transformers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hothead.models.attention import attend
from hothead.models.cache import KVCache
from hothead.models.window import Window
from hothead.packed import PackedLinear
from hothead.spans import ATTENTION, span


class FusedLayers:
    """Decoder layers and the norm behind them.

    Args:
        layers: transformers' own, Llama's or Qwen2's; an ``Identity`` input norm is left out.
        norm: None for none.
    """

    def __init__(self, layers: Sequence[Any], norm: nn.Module | None = None) -> None:
        self._layers = [FusedLayer(layer) for layer in layers]
        self._norm = None if norm is None else RMSNorm(norm)
        is_on_cpu = layers[0].mlp.down_proj.weight.device.type == "cpu"
        self._cache_dtype = torch.float32 if is_on_cpu else None

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for these layers."""
        return KVCache(len(self._layers), capacity, self._cache_dtype)

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        unseen: Tensor | None,
        taps: tuple[int, ...] = (),
        attention_input: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Go through all layers, and put n more positions into ``cache``.

        Args:
            x: [n, H].
            rotation: of :meth:`Rotary.at`.
            unseen: of :class:`Window`.
            taps: layers.
            attention_input: what the first layer's attention reads in place of the normed ``x``.
            last: positions at the end whose result is wanted; of the others the last layer computes keys and values
                only. None: all. Not together with ``unseen``.

        Returns:
            What comes out, [last, H], and what went into the layers in ``taps``, side by side, [n, taps * H].
        """
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in taps:
                tapped[index] = x
            rows = last if layer is self._layers[-1] else None
            x = layer(x, rotation, cache, index, unseen, None if index else attention_input, rows)
        features = torch.cat([tapped[tap] for tap in taps], dim=-1) if taps else x[:, :0]
        return x if self._norm is None else self._norm(x), features


class FusedLayer:
    """One pre-norm decoder layer.

    Args:
        layer: transformers' own, Llama's or Qwen2's; an ``Identity`` input norm is left out.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._head_dim: int = attention.head_dim
        self._scale: float = attention.scaling
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._key_heads: int = attention.k_proj.out_features // self._head_dim
        is_identity = isinstance(layer.input_layernorm, nn.Identity)
        self._input_norm = None if is_identity else RMSNorm(layer.input_layernorm)
        self._width: int = mlp.gate_proj.out_features
        self._qkv = PackedLinear(*side_by_side(attention.q_proj, attention.k_proj, attention.v_proj))
        self._out = PackedLinear(*side_by_side(attention.o_proj))
        self._mlp_norm = RMSNorm(layer.post_attention_layernorm)
        self._gate_up = PackedLinear(*side_by_side(mlp.gate_proj, mlp.up_proj))
        self._down = PackedLinear(*side_by_side(mlp.down_proj))

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        index: int,
        unseen: Tensor | None,
        attention_input: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """[n, H] -> [last, H]; keys and values of all n go into layer ``index`` of ``cache``.

        Args:
            attention_input: what the attention reads in place of the normed ``x``.
            last: as :meth:`FusedLayers.__call__` takes it.
        """
        n, heads, key_heads, d = x.shape[0], self._heads, self._key_heads, self._head_dim
        normed = attention_input
        if normed is None:
            normed = x if self._input_norm is None else self._input_norm(x)
        qkv = self._qkv(normed).view(n, heads + 2 * key_heads, d)
        # Rotated in the cache's dtype, which is where queries and keys are needed.
        query_key = rotate(qkv[:, : heads + key_heads].to(cache.dtype or x.dtype), *rotation).transpose(0, 1)
        keys, values = cache.append(index, query_key[heads:], qkv[:, heads + key_heads :].transpose(0, 1))
        if last is not None:
            x, n = x[-last:], last
        with span(ATTENTION):
            attended = attend(query_key[:heads, -n:], keys, values, unseen, self._scale)
        x = self._out.add_to(x, attended.transpose(0, 1).to(x.dtype).reshape(n, heads * d))
        gate_up = self._gate_up(self._mlp_norm(x))
        return self._down.add_to(x, functional.silu(gate_up[:, : self._width]) * gate_up[:, self._width :])


class RMSNorm:
    """Root mean square norm with transformers' rounding: normalised in float32, scaled in the weight's dtype."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight.detach()
        self.eps: float = norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """[n, H] -> [n, H]."""
        return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Rotary:
    """Rotary position embedding, as a model's own module computes it.

    Args:
        module: transformers', any rope type; read in float32.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # Frequencies that change with the length of the text cannot be kept in a table.
        self._is_fixed = getattr(module, "rope_type", "") not in ("dynamic", "longrope")
        self._table: tuple[Tensor, Tensor] | None = None

    def at(self, past: int, n: int, window: Window | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, float32 [n, 1, d], for :func:`rotate`."""
        if not self._is_fixed:
            return self._compute(torch.arange(past, past + n, device=device) if window is None else window.positions)
        # A token of a tree stands at one of the next n positions too.
        if self._table is None or len(self._table[0]) < past + n:
            self._table = self._compute(torch.arange(2 * (past + n), device=device))
        cos, sin = self._table
        if window is None:
            return cos[past : past + n], sin[past : past + n]
        return cos[window.positions], sin[window.positions]

    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._module(torch.empty(0, dtype=torch.float32, device=positions.device), positions[None])
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos[0][:, None], sin[0][:, None]


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate halves: [n, heads, d] -> [n, heads, d]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin).to(x.dtype)


def side_by_side(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight [out, in] and bias [out] or None of one product for several that read the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    biases = [weight.new_zeros(x.out_features) if x.bias is None else x.bias.detach() for x in linears]
    return weight, torch.cat(biases)
