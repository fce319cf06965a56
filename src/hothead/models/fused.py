"""Llama-like layers with as few operations as eager PyTorch allows.

A pass over five tokens of a small model is a thousand operations of microseconds each; transformers' own layers issue
three times as many as are needed. Here QKV and gate/up are one product each, residuals are added by the product that
precedes them, and keys go straight into the cache. The weights are the model's own, the result is checked against
its logits when a target is loaded, and what is not known to fit stays with transformers.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model

from hothead.models.attention import attend
from hothead.models.cache import KVCache
from hothead.models.window import Window
from hothead.native import COMPILED_ROWS, NativeGate, NativeLinear, native_classes
from hothead.packed import PackedLinear
from hothead.spans import ATTENTION, span

Kind = TypeVar("Kind", bound=PackedLinear)
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
        self._compiled = CompiledLayers(self._layers, self._norm) if compiled else None
        body.layers = nn.ModuleList()

    def __call__(
        self, target_ids: Tensor, cache: KVCache, window: Window | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Append int64 [n] tokens to ``cache``.

        Returns:
            Their last hidden states, [n, H], and what went into the layers in ``taps``, side by side, [n, taps * H].
        """
        x = self._embedding(target_ids)
        rotation = self._rotary.at(cache.length, len(target_ids), window, x.device)
        unseen = None if window is None else window.unseen
        if self._compiled is not None and len(x) <= COMPILED_ROWS:
            last, features = self._compiled(x, rotation, cache, unseen, taps)
            return last, features if taps else last
        tapped: dict[int, Tensor] = {}
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
        compiled: keep the weights as ``layer.cpp`` reads them; see :class:`CompiledLayers`.

    Raises:
        InputError: it cannot be compiled (see ``hothead.native``).
    """

    def __init__(self, layer: Any, *, compiled: bool = False) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._head_dim: int = attention.head_dim
        self._scale: float = attention.scaling
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._key_heads: int = attention.k_proj.out_features // self._head_dim
        is_identity = isinstance(layer.input_layernorm, nn.Identity)
        self._input_norm = None if is_identity else RMSNorm(layer.input_layernorm)
        kind = NativeLinear if compiled else PackedLinear
        self._qkv = _side_by_side(kind, attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _side_by_side(kind, attention.o_proj)
        self._mlp_norm = RMSNorm(layer.post_attention_layernorm)
        self._gate = _native_gate(mlp) if compiled else Gate(mlp)
        self._down = _side_by_side(kind, mlp.down_proj)

    @property
    def kv_shape(self) -> tuple[int, int]:
        """Key heads and their size."""
        return self._key_heads, self._head_dim

    def native(self) -> Any:
        """This layer in C++, on the same weights (``layer.cpp``)."""
        return native_classes().Layer(
            None if self._input_norm is None else self._input_norm.weight,
            self._mlp_norm.weight,
            self._mlp_norm.eps,
            *(linear.blocks for linear in (self._qkv, self._out, self._gate.gate, self._gate.up, self._down)),
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
        return self._down.add_to(x, self._gate(self._mlp_norm(x)))


class CompiledLayers:
    """Layers and the norm behind them as one call of ``layer.cpp``, for up to ``COMPILED_ROWS`` tokens.

    Args:
        layers: made with ``compiled=True``; their weights are read where they are.
        norm: None for none.

    Raises:
        InputError: it cannot be compiled (see ``hothead.native``).
    """

    def __init__(self, layers: Sequence[FusedLayer], norm: "RMSNorm | None" = None) -> None:
        self._kv_shape = layers[0].kv_shape
        self._native = native_classes().Layers(None if norm is None else norm.weight, norm.eps if norm else 0.0)
        for layer in layers:
            self._native.add(layer.native())

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        unseen: Tensor | None,
        taps: tuple[int, ...] = (),
        attention_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[n, H] -> what comes out, [n, H], and what went into the layers in ``taps``, [n, taps * H].

        Args:
            attention_input: what the first layer's attention reads in place of its normed ``x``.
        """
        keys, values, past = cache.reserve(x.shape[0], *self._kv_shape)
        out, tapped = self._native.forward(x, attention_input, *rotation, keys, values, past, unseen, taps)
        return out, tapped.flatten(1)


class LoneLayer:
    """A draft's only layer, compiled or not; arguments and result as of :class:`FusedLayer`."""

    def __init__(self, layer: Any, *, compiled: bool) -> None:
        self._layer = FusedLayer(layer, compiled=compiled)
        self._compiled = CompiledLayers([self._layer]) if compiled else None

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        unseen: Tensor | None,
        attention_input: Tensor | None = None,
    ) -> Tensor:
        if self._compiled is not None and len(x) <= COMPILED_ROWS:
            return self._compiled(x, rotation, cache, unseen, attention_input=attention_input)[0]
        return self._layer(x, rotation, cache, 0, unseen, attention_input)


class Gate:
    """``silu(gate(x)) * up(x)``, [n, H] -> [n, intermediate], of an MLP with these two projections."""

    def __init__(self, mlp: Any) -> None:
        self._width: int = mlp.gate_proj.out_features
        self._gate_up = _side_by_side(PackedLinear, mlp.gate_proj, mlp.up_proj)

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self._gate_up(x)
        return functional.silu(gate_up[:, : self._width]) * gate_up[:, self._width :]


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


def _native_gate(mlp: Any) -> NativeGate:
    return NativeGate(_side_by_side(NativeLinear, mlp.gate_proj), _side_by_side(NativeLinear, mlp.up_proj))


def _side_by_side(kind: type[Kind], *linears: nn.Linear) -> Kind:
    """One product for several that read the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return kind(weight)
    biases = [weight.new_zeros(x.out_features) if x.bias is None else x.bias.detach() for x in linears]
    return kind(weight, torch.cat(biases))
