"""EAGLE-3 drafts in the layouts of the public checkpoints (2503.01840): EAGLE's, SpecForge's and speculators'.

``fc`` fuses the target's hidden states before three of its layers into one feature g_t. One decoder layer reads the
normed embedding of x_{t+1} and the normed g_t side by side; its output is the next g, and, normed, what the draft's
own head reads. That head has rows for some target ids only, those that ``d2t`` names; a draft that brings no head reads
the target's, as vLLM has it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from hothead.errors import DraftMismatch
from hothead.export.checks import ids_of_offsets
from hothead.head import LMHead
from hothead.models.eagle import check_tensors, config_of, plain_rows
from hothead.models.fused import layers_class, norm_class
from hothead.models.layers import Rotary
from hothead.models.target import CausalLM
from hothead.models.window import GrowingTree, Window
from hothead.vocab import DraftVocab

FUSED_LAYERS = 3


class _Layer(nn.Module):
    """The parameters of the decoder layer, under the checkpoint's names: attention twice as wide at its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        layer, width = LlamaDecoderLayer(config, 0), config.hidden_size
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)


class Eagle3Draft:
    """An EAGLE-3 draft bound to its target.

    Args:
        config: the checkpoint's config.json.
        tensors: the checkpoint, by name; every name must be expected and every expected one present.
        target: whose hidden states it reads.

    Attributes:
        vocab: the target ids that its head has rows for.
        lm_head: its head with one row per target id; the logit of an id that it has no row for is -inf.

    Raises:
        DraftMismatch: another architecture or size, or a missing, extra or misshapen tensor, each by name.
        InputError: a damaged d2t.
    """

    name = "eagle3"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], target: CausalLM) -> None:
        inner = config.get("transformer_layer_config") or config
        if inner.get("model_type", "llama") != "llama":
            raise DraftMismatch(f"EAGLE-3 drafts with {inner['model_type']!r} layers are not supported; expected llama")
        layer_config: LlamaConfig = config_of(LlamaConfig, {k: v for k, v in inner.items() if k != "model_type"})
        if layer_config.num_hidden_layers != 1:
            raise DraftMismatch(f"an EAGLE-3 draft has 1 layer; found {layer_config.num_hidden_layers}")
        layer = _Layer(layer_config)
        tensors = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
        self._check(tensors, layer, layer_config, target)
        self.vocab: DraftVocab | None = self._read_vocab(tensors, target)
        self.taps = fused_layer_ids(config, target)

        dtype, device = target.dtype, target.device
        tensors = {n: t.to(device, dtype) for n, t in tensors.items() if n not in ("d2t", "t2d")}
        layer.load_state_dict({n.removeprefix("layers.0."): t for n, t in tensors.items() if n.startswith("layers.0.")})
        layer = layer.to(device, dtype)
        self._norm_before_residual = bool(config.get("norm_before_residual", False))
        norm_of = norm_class(target.is_compiled)
        self._embedding_norm, self._feature_norm = norm_of(layer.input_layernorm), norm_of(layer.hidden_norm)
        self._layers = layers_class(target.is_compiled)([layer])
        self._rotary = Rotary(LlamaRotaryEmbedding(layer_config).to(device))
        self._fc = target.lm_head.linear(tensors["fc.weight"], tensors.get("fc.bias"))
        norm = LlamaRMSNorm(layer_config.hidden_size, layer_config.rms_norm_eps)
        norm.weight = nn.Parameter(tensors["norm.weight"], requires_grad=False)
        self._norm = norm_of(norm)
        self._embedding = tensors["embed_tokens.weight"] if "embed_tokens.weight" in tensors else plain_rows(target)
        if "lm_head.weight" in tensors:
            self.lm_head = _spread(tensors["lm_head.weight"], self._row_ids, target.lm_head)
        else:
            self.lm_head = target.lm_head
        self.reset(512)

    def _check(self, tensors: dict[str, Tensor], layer: _Layer, config: LlamaConfig, target: CausalLM) -> None:
        width, total = config.hidden_size, target.lm_head.vocab_size
        has_head = "lm_head.weight" in tensors
        if not has_head and "d2t" in tensors:
            raise DraftMismatch("the draft's d2t names the rows of a head, but it brings no lm_head.weight")
        if not has_head and width != target.hidden_size:
            raise DraftMismatch(
                f"the draft's hidden size is {width} and the target's {target.hidden_size}: it must bring its own "
                "lm_head.weight"
            )
        rows = tensors["lm_head.weight"].shape[0] if has_head else total
        expected = {f"layers.0.{name}": tuple(value.shape) for name, value in layer.state_dict().items()}
        expected |= {"fc.weight": (width, FUSED_LAYERS * target.hidden_size), "norm.weight": (width,)}
        if has_head:
            expected["lm_head.weight"] = (rows, width)
        if rows != total:
            expected["d2t"] = (rows,)
        optional = {"fc.bias": (width,), "embed_tokens.weight": (total, width), "t2d": (total,), "d2t": (rows,)}
        check_tensors("EAGLE-3", tensors, expected, optional)
        if width != target.hidden_size and "embed_tokens.weight" not in tensors:
            raise DraftMismatch(
                f"the draft's hidden size is {width} and the target's {target.hidden_size}: it must bring its own "
                "embed_tokens.weight"
            )

    def _read_vocab(self, tensors: dict[str, Tensor], target: CausalLM) -> DraftVocab:
        total = target.lm_head.vocab_size
        if "d2t" not in tensors:
            self._row_ids = torch.arange(total)
            return DraftVocab.full(total)
        t2d = tensors["t2d"].numpy() if "t2d" in tensors else None
        ids, _, _ = ids_of_offsets(tensors["d2t"].numpy(), t2d, total)
        self._row_ids = torch.from_numpy(ids)
        return DraftVocab.from_target_ids(ids, total, source="the draft's own d2t")

    def reset(self, capacity: int) -> None:
        self._cache = self._layers.new_cache(capacity)
        self._committed = 0

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        state = self._run(target_ids[-features.shape[0] :], self._fc(features), last=1)
        self._committed = self._cache.length
        self._tree = GrowingTree(self._committed, features.device)
        # What steps go on from is not what the head reads: the last committed token's state, then each drafted one's.
        self._states = state
        return self._norm(state)

    def step(self, target_ids: Tensor, hidden: Tensor, parents: Tensor | None = None) -> Tensor:
        if parents is None:
            states = self._run(target_ids, self._states[-1:])
        else:
            states = self._run(target_ids, self._states[parents + 1], self._tree.grow(parents))
        self._states = torch.cat([self._states, states])
        return self._norm(states)

    def rollback(self) -> None:
        self._cache.truncate(self._committed)

    def _run(
        self, target_ids: Tensor, features: Tensor, window: Window | None = None, last: int | None = None
    ) -> Tensor:
        """Pairs (x_{t+1}, g_t), int64 [n] and [n, H] -> g_{t+1} of the last ``last`` (None: all)."""
        normed = self._feature_norm(features)
        embedded = self._embedding_norm(functional.embedding(target_ids, self._embedding))
        rotation = self._rotary.at(self._cache.length, len(target_ids), window, features.device)
        state, _ = self._layers(
            normed if self._norm_before_residual else features,
            rotation,
            self._cache,
            None if window is None else window.unseen,
            attention_input=torch.cat([embedded, normed], dim=-1),
            last=last,
        )
        return state


def fused_layer_ids(config: dict[str, Any], target: CausalLM) -> tuple[int, ...]:
    """The target's layers whose inputs the draft reads: as its config says, else EAGLE-3's low, middle and high.

    Raises:
        DraftMismatch: not three of them, or not the target's.
    """
    inner = config.get("eagle_config") or {}
    said = config.get("eagle_aux_hidden_state_layer_ids") or inner.get("eagle_aux_hidden_state_layer_ids")
    count = target.config.num_hidden_layers
    found = tuple(said) if said else (2, count // 2, count - 3)
    if len(found) != FUSED_LAYERS or not all(type(layer_id) is int for layer_id in found):
        raise DraftMismatch(f"an EAGLE-3 draft reads {FUSED_LAYERS} of the target's layers; found {list(found)}")
    if not all(0 <= layer_id < count for layer_id in found):
        raise DraftMismatch(f"the draft reads the target's layers {list(found)}; it has {count}")
    return found


def _spread(rows: Tensor, row_ids: Tensor, like: LMHead) -> LMHead:
    """A head of ``rows``, [Vd, H], as one of as many as ``like`` has; those that are missing can never be drawn."""
    total = like.vocab_size
    if len(rows) == total:
        weight = torch.empty_like(rows)
        weight[row_ids] = rows
        return LMHead(weight, linear=like.linear)
    weight, bias = rows.new_zeros(total, rows.shape[1]), rows.new_full((total,), -torch.inf)
    weight[row_ids], bias[row_ids] = rows, 0.0
    return LMHead(weight, bias, linear=like.linear)
