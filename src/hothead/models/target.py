"""The target: any causal LM of transformers, read through its hidden states and its LM head."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hothead.errors import InputError
from hothead.head import LMHead
from hothead.models.attention import seen_mask, use_cpu_attention
from hothead.models.cache import AnyCache, KVCache, cache_argument
from hothead.models.fused import FusedBody, can_fuse
from hothead.models.window import Window
from hothead.native import NativeLinear
from hothead.packed import pack_linears
from hothead.spans import HEAD, LAYERS, span
from hothead.tokenizer import fingerprint


@dataclass(frozen=True)
class ForwardOutput:
    """What a pass over n tokens gives.

    Attributes:
        features: [n, H], the last hidden states, as the LM head reads them, or what a draft asked for instead.
        logits: [m, V], of the last m positions asked for.
    """

    features: Tensor
    logits: Tensor


class CausalLM:
    """A transformers causal LM split at its LM head, with packed linears on CPU. Batch size 1.

    The body gives hidden states, the head is applied here. Llama and Qwen2 bodies run fused (``fused.py``); for every
    other architecture its own class stays the model code.

    Args:
        model: loaded; its linears are packed in place.
        fuse: False keeps transformers' own layers in any case.
        compiled: run fused layers through ``layer.cpp`` (see ``hothead.native``); other layers stay as they are.

    Attributes:
        is_fused, is_compiled: how the body runs.
        lm_head: the full head, row-major (rows can be gathered from it).
        max_positions: the context length.

    Raises:
        InputError: the split does not reproduce the model's own logits, or the model keeps more than keys and
            values from step to step (recurrent and hybrid models), which cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, *, fuse: bool = True, compiled: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        _refuse_unsupported(model)
        self.lm_head = read_lm_head(model)
        self.hidden_size: int = self.config.hidden_size
        self.max_positions: int = getattr(self.config, "max_position_embeddings", None) or 1 << 30
        expected = self._own_logits()
        cache_dtype = torch.float32 if use_cpu_attention(self.config, self.device) else None
        self.is_fused = fuse and can_fuse(model)
        self.is_compiled = compiled and self.is_fused and cache_dtype is torch.float32
        if self.is_compiled:
            self.lm_head = replace(self.lm_head, linear=NativeLinear)
        self._head_linear = self.lm_head.linear(self.lm_head.weight, self.lm_head.bias)
        self._body: FusedBody | TransformersBody = (
            FusedBody(model, compiled=self.is_compiled) if self.is_fused else TransformersBody(model, cache_dtype)
        )
        self._check_split(expected)

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    @property
    def embedding(self) -> nn.Module:
        """Input embedding: int64 [n] -> [n, H]."""
        return self.model.get_input_embeddings()

    def new_cache(self, capacity: int = 512) -> AnyCache:
        """An empty cache for this model."""
        return self._body.new_cache(capacity)

    def read(
        self, target_ids: Tensor, cache: AnyCache, window: Window | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Append int64 [n] tokens to ``cache``, one after the other or as ``window`` says.

        Args:
            taps: layers.

        Returns:
            The last hidden states, [n, H], and a draft's features: what went into the layers in ``taps``, side by
            side, [n, taps * H], or the last hidden states where there are none.
        """
        with span(LAYERS):
            return self._body(target_ids, cache, window, taps)

    def features(self, target_ids: Tensor, cache: AnyCache, window: Window | None = None) -> Tensor:
        """As :meth:`read`, the last hidden states alone, [n, H]."""
        return self.read(target_ids, cache, window)[0]

    def logits(self, features: Tensor) -> Tensor:
        """[n, H] -> [n, V]."""
        with span(HEAD):
            return self.lm_head.finish(self._head_linear(features))

    def forward(
        self,
        target_ids: Tensor,
        cache: AnyCache,
        last: int | None = None,
        window: Window | None = None,
        taps: tuple[int, ...] = (),
    ) -> ForwardOutput:
        """Append int64 [n] tokens to ``cache``; logits for the last ``last`` positions (None: all)."""
        hidden, features = self.read(target_ids, cache, window, taps)
        return ForwardOutput(features, self.logits(hidden if last is None else hidden[-last:]))

    def _own_logits(self) -> Tensor:
        """The untouched model's logits, float32 [3, V], of the ids in ``_probe``."""
        return self.model(input_ids=self._probe[None]).logits[0].float()

    @property
    def _probe(self) -> Tensor:
        # Not the first ids: of special tokens out of place, one rounding more or less can move every logit.
        return torch.arange(1, 4, device=self.device) * self.lm_head.vocab_size // 5

    def _check_split(self, expected: Tensor) -> None:
        """Ours must be the model's own logits: a scale or cap that ``read_lm_head`` does not know would differ."""
        found = self.forward(self._probe, self.new_cache()).logits.float()
        # Layers add up rounding; a scale or cap that was overlooked moves the logits by far more than this.
        tolerance = max(1e-3, 16 * torch.finfo(self.dtype).eps) * float(expected.abs().max())
        difference = float((found - expected).abs().max())
        if not difference <= tolerance:
            raise InputError(
                f"{type(self.model).__name__}: its LM head does more than a product, scale and soft cap "
                f"(logits differ by {difference:.3g}); this architecture is not supported yet"
            )


class TransformersBody:
    """A model's own body, with packed linears.

    Args:
        cache_dtype: what its attention reads; None: the model's.
    """

    def __init__(self, model: PreTrainedModel, cache_dtype: torch.dtype | None) -> None:
        self._body = model.base_model
        self._cache_dtype = cache_dtype
        self._num_layers: int = model.config.get_text_config().num_hidden_layers
        self._cache_argument = cache_argument(self._body)
        head_name = next(name for name, child in model.named_children() if child is model.get_output_embeddings())
        pack_linears(model, skip=frozenset({head_name}))

    def new_cache(self, capacity: int) -> KVCache:
        """As :meth:`FusedBody.new_cache`."""
        return KVCache(self._num_layers, capacity, self._cache_dtype)

    def __call__(
        self, target_ids: Tensor, cache: AnyCache, window: Window | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`FusedBody.__call__`."""
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if taps:
            arguments["output_hidden_states"] = True
        if window is not None:
            mask = seen_mask(window.unseen, cache.length + len(target_ids))
            arguments |= {"attention_mask": mask[None, None], "position_ids": window.positions[None]}
        output = self._body(input_ids=target_ids[None], **arguments)
        last = output.last_hidden_state[0]
        return last, torch.cat([output.hidden_states[tap][0] for tap in taps], dim=-1) if taps else last


class Target(CausalLM):
    """The model whose text is wanted, with its tokenizer."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, fuse: bool = True, compiled: bool = False
    ) -> None:
        super().__init__(model, fuse=fuse, compiled=compiled)
        self.tokenizer = tokenizer
        self.tokenizer_fingerprint = fingerprint(tokenizer)
        if len(tokenizer) > self.vocab_size:
            raise InputError(
                f"the tokenizer has {len(tokenizer)} tokens and the model's head only {self.vocab_size} rows: "
                "they do not belong together"
            )

    @property
    def vocab_size(self) -> int:
        """V, rows of the LM head (padding included)."""
        return self.lm_head.vocab_size

    @property
    def end_target_ids(self) -> frozenset[int]:
        """Ids that end an answer: the generation config's and the tokenizer's."""
        ids: set[int] = set()
        for found in (self.model.generation_config.eos_token_id, self.tokenizer.eos_token_id):
            if found is not None:
                ids.update(found if isinstance(found, list) else [found])
        return frozenset(ids)


def read_lm_head(model: PreTrainedModel) -> LMHead:
    """The output projection of ``model`` with the scale and soft cap that its config names.

    Raises:
        InputError: no linear output projection.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise InputError(f"{type(model).__name__} has no linear LM head (found {type(head).__name__})")
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    soft_cap = getattr(config, "final_logit_softcapping", None)
    bias = None if head.bias is None else head.bias.detach()
    return LMHead(head.weight.detach(), bias, scale, None if soft_cap is None else float(soft_cap))


def _refuse_unsupported(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    unsupported = kinds - {"full_attention", "sliding_attention", "chunked_attention"}
    if getattr(model, "_is_stateful", False):  # transformers' own word for it
        unsupported.add("recurrent state")
    if getattr(config, "is_encoder_decoder", False):
        unsupported.add("an encoder")
    if len(getattr(model.base_model, "layers", [None])) == 0:
        raise InputError(f"{type(model).__name__} has no layers left: another CausalLM took them; load the model anew")
    if unsupported:
        found = ", ".join(sorted(unsupported))
        raise InputError(f"{type(model).__name__} has {found}; only decoders with attention layers can be rolled back")
