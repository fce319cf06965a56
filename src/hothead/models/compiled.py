"""Decoder layers and their cache in one call of ``native/layer.cpp``: what ``layers.py`` computes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hothead.models.cache import BlockCache
from hothead.models.layers import RMSNorm, side_by_side
from hothead.native import native_classes


class CompiledNorm(RMSNorm):
    """As :class:`RMSNorm`, on the CPU, in float32 or bfloat16; rounded once."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, H] -> [n, H]."""
        return torch.ops.hothead.rms_norm(x, self.weight, self.eps)


class CompiledLayers:
    """As :class:`FusedLayers`, for any number of tokens at a time.

    A token's result has the same bits whatever other tokens are in a pass.

    Raises:
        InputError: it cannot be compiled (see ``hothead.native``).
    """

    def __init__(self, layers: Sequence[Any], norm: nn.Module | None = None) -> None:
        last = None if norm is None else RMSNorm(norm)
        self._native = native_classes().Layers(None if last is None else last.weight, last.eps if last else 0.0)
        for layer in layers:
            self._native.add(_native_layer(layer))
        attention = layers[0].self_attn
        key_heads = attention.k_proj.out_features // attention.head_dim
        self._cache_like = (len(layers), key_heads, attention.head_dim, attention.k_proj.weight.dtype)

    def new_cache(self, capacity: int) -> BlockCache:
        """An empty cache for these layers."""
        return BlockCache(*self._cache_like, capacity)

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: BlockCache,
        unseen: Tensor | None,
        taps: tuple[int, ...] = (),
        attention_input: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`FusedLayers.__call__`."""
        past = cache.reserve(x.shape[0])
        last = x.shape[0] if last is None else last
        out, tapped = self._native.forward(
            x, attention_input, *rotation, cache.keys, cache.values, past, unseen, taps, last
        )
        return out, tapped.flatten(1)


def _native_layer(layer: Any) -> Any:
    """One of transformers' own layers in C++, on copies of its weights in blocks."""
    attention, mlp = layer.self_attn, layer.mlp
    products = (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj,),
        (mlp.up_proj,),
        (mlp.down_proj,),
    )
    norm = None if isinstance(layer.input_layernorm, nn.Identity) else RMSNorm(layer.input_layernorm)
    mlp_norm = RMSNorm(layer.post_attention_layernorm)
    return native_classes().Layer(
        None if norm is None else norm.weight,
        mlp_norm.weight,
        mlp_norm.eps,
        *(native_classes().Linear(*side_by_side(*linears)) for linears in products),
        attention.q_proj.out_features // attention.head_dim,
        attention.k_proj.out_features // attention.head_dim,
        attention.head_dim,
        attention.scaling,
    )
