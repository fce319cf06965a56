"""Llama-like layers with as few operations as eager PyTorch allows.

A pass over five tokens of a small model is a thousand operations of microseconds each; transformers' own layers issue
three times as many as are needed. Here QKV and gate/up are one product each, residuals are added by the product that
precedes them, and keys go straight into the cache. The weights are the model's own, the result is checked against
its logits when a target is loaded, and what is not known to fit stays with transformers.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model

from hothead.models.attention import attend
from hothead.models.cache import KVCache
from hothead.models.native import COMPILED_ROWS, NativeLinear, layer_class
from hothead.models.window import Window
from hothead.packed import PackedLinear
from hothead.spans import ATTENTION, span

LAYERS = (LlamaDecoderLayer, Qwen2DecoderLayer)
BODIES = (LlamaModel, Qwen2Model)


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether ``model`` is exactly what :class:`FusedBody` computes."""
    config = model.config.get_text_config()
    return (
        type(model.base_model) in BODIES
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and type(model.get_input_embeddings()) is nn.Embedding
    )


class FusedBody:
    """Everything of a model between its token ids and its LM head, batch size 1.

    The model's own layers are emptied: their weights live here, packed.

    Args:
        model: one that :func:`can_fuse` accepts.
        compiled: as of :class:`FusedLayer`.
    """

    def __init__(self, model: PreTrainedModel, *, compiled: bool = False) -> None:
        body: Any = model.base_model
        self._embedding = model.get_input_embeddings()
        self._rotary = Rotary(body.rotary_emb)
        self._norm = RMSNorm(body.norm)
        self._layers = [FusedLayer(layer, compiled=compiled) for layer in body.layers]
        body.layers = nn.ModuleList()

    def __call__(
        self, target_ids: Tensor, cache: KVCache, window: Window | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Append int64 [n] tokens to ``cache``.

        Returns:
            Their last hidden states, [n, H], and what went into the layers in ``taps``, side by side, [n, taps * H].
        """
        x = self._embedding(target_ids)
        tapped: dict[int, Tensor] = {}
        rotation = self._rotary.at(cache.length, len(target_ids), window, x.device)
        unseen = None if window is None else window.unseen
        for index, layer in enumerate(self._layers):
            if index in taps:
                tapped[index] = x
            x = layer(x, rotation, cache, index, unseen)
        last = self._norm(x)
        return last, torch.cat([tapped[tap] for tap in taps], dim=-1) if taps else last


class FusedLayer:
    """One pre-norm decoder layer.

    Args:
        layer: transformers' own, of a class in ``LAYERS``; an ``Identity`` input norm is left out.
        compiled: up to ``COMPILED_ROWS`` tokens at a time go through one call of ``layer.cpp``.

    Raises:
        InputError: it cannot be compiled (see ``native.py``).
    """

    def __init__(self, layer: Any, *, compiled: bool = False) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._head_dim: int = attention.head_dim
        self._scale: float = attention.scaling
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._key_heads: int = attention.k_proj.out_features // self._head_dim
        self._width: int = mlp.gate_proj.out_features
        is_identity = isinstance(layer.input_layernorm, nn.Identity)
        self._input_norm = None if is_identity else RMSNorm(layer.input_layernorm)
        kind = NativeLinear if compiled else PackedLinear
        self._qkv = _side_by_side(kind, attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _side_by_side(kind, attention.o_proj)
        self._mlp_norm = RMSNorm(layer.post_attention_layernorm)
        self._gate_up = _side_by_side(kind, mlp.gate_proj, mlp.up_proj)
        self._down = _side_by_side(kind, mlp.down_proj)
        self._compiled: Any = None
        if compiled:
            self._compiled = self._native()

    def _native(self) -> Any:
        """This layer in C++, on the same weights (``layer.cpp``)."""
        linears = (self._qkv, self._out, self._gate_up, self._down)
        return layer_class()(
            None if self._input_norm is None else self._input_norm.weight,
            self._mlp_norm.weight,
            self._mlp_norm.eps,
            [linear.weight for linear in linears],
            [linear.bias for linear in linears],
            self._heads,
            self._key_heads,
            self._head_dim,
            self._scale,
        )

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        index: int,
        unseen: Tensor | None,
        attention_input: Tensor | None = None,
    ) -> Tensor:
        """[n, H] -> [n, H]; keys and values go into layer ``index`` of ``cache``.

        Args:
            attention_input: what the attention reads in place of the normed ``x``.
        """
        n, heads, key_heads, d = x.shape[0], self._heads, self._key_heads, self._head_dim
        if self._compiled is not None and n <= COMPILED_ROWS:
            keys, values, past = cache.reserve(index, n, key_heads, d)
            return self._compiled.forward(x, attention_input, *rotation, keys, values, past, unseen)
        normed = attention_input
        if normed is None:
            normed = x if self._input_norm is None else self._input_norm(x)
        qkv = self._qkv(normed).view(n, heads + 2 * key_heads, d)
        # Rotated in the cache's dtype, which is where queries and keys are needed.
        query_key = rotate(qkv[:, : heads + key_heads].to(cache.dtype or x.dtype), *rotation).transpose(0, 1)
        keys, values = cache.append(index, query_key[heads:], qkv[:, heads + key_heads :].transpose(0, 1))
        with span(ATTENTION):
            attended = attend(query_key[:heads], keys, values, unseen, self._scale)
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

    def at(self, past: int, n: int, window: Window | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, float32 [n, 1, d], for :func:`rotate`."""
        positions = torch.arange(past, past + n, device=device) if window is None else window.positions
        cos, sin = self._module(torch.empty(0, dtype=torch.float32, device=device), positions[None])
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos[0][:, None], sin[0][:, None]


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate halves: [n, heads, d] -> [n, heads, d]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin).to(x.dtype)


def _side_by_side(kind: type[PackedLinear], *linears: nn.Linear) -> PackedLinear:
    """One product for several that read the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return kind(weight)
    biases = [weight.new_zeros(x.out_features) if x.bias is None else x.bias.detach() for x in linears]
    return kind(weight, torch.cat(biases))
