"""EAGLE-1/2 drafts in the layout of the public checkpoints (2401.15077, 2406.16858).

One decoder layer without its input norm reads ``fc([embedding of x_{t+1}; feature f_t])`` and predicts the
feature f_{t+1}; the target's own LM head turns that into a token. The embedding is the target's unless the
checkpoint brings one.
"""

from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from hothead.errors import DraftMismatch
from hothead.models.fused import layers_class
from hothead.models.layers import Rotary
from hothead.models.target import CausalLM
from hothead.models.window import GrowingTree, Window
from hothead.vocab import DraftVocab

# Layer and rotary classes by the config's model_type. Another family is one line, if its layer takes these arguments.
FAMILIES: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "llama": (modeling_llama.LlamaDecoderLayer, modeling_llama.LlamaRotaryEmbedding),
    "qwen2": (modeling_qwen2.Qwen2DecoderLayer, modeling_qwen2.Qwen2RotaryEmbedding),
}

EAGLE3_HINT = " (d2t, t2d, norm and lm_head belong to EAGLE-3 drafts, which have a hidden_norm too)"
CHAIN_BLOCK = 128  # chains unrolled together; each attends over all their drafts, its own unmasked


class EagleDraft:
    """An EAGLE draft bound to its target's embedding and head.

    Args:
        config: of the draft's layer.
        tensors: the checkpoint, by name; every name must be expected and every expected one present.
        target: whose features it reads.

    Raises:
        DraftMismatch: unknown architecture, or a missing, extra or misshapen tensor, each by name.
    """

    name = "eagle"
    vocab: DraftVocab | None = None  # it drafts with the target's head, which has every row
    taps: tuple[int, ...] = ()

    def __init__(self, config: PreTrainedConfig, tensors: dict[str, Tensor], target: CausalLM) -> None:
        if config.model_type not in FAMILIES:
            raise DraftMismatch(
                f"EAGLE drafts with {config.model_type!r} layers are not supported; expected {' or '.join(FAMILIES)}"
            )
        _check_sizes(config, target)
        layer_class, rotary_class = FAMILIES[config.model_type]
        # As for the target: see attention.py.
        self.lm_head = target.lm_head
        layer = layer_class(config, 0)
        layer.input_layernorm = nn.Identity()
        expected = {f"layers.0.{name}": tuple(value.shape) for name, value in layer.state_dict().items()}
        hidden = config.hidden_size
        expected["fc.weight"] = (hidden, 2 * hidden)
        optional = {"fc.bias": (hidden,), "embed_tokens.weight": (target.lm_head.vocab_size, hidden)}
        check_tensors("EAGLE-1/2", tensors, expected, optional, hint=EAGLE3_HINT)

        dtype, device = target.dtype, target.device
        tensors = {name: value.to(device, dtype) for name, value in tensors.items()}
        layer.load_state_dict({n.removeprefix("layers.0."): t for n, t in tensors.items() if n.startswith("layers.0.")})
        self._layers = layers_class(target.is_compiled)([layer.to(device, dtype)])
        self._rotary = Rotary(rotary_class(config).to(device))
        self._fc = target.lm_head.linear(tensors["fc.weight"], tensors.get("fc.bias"))
        self._embedding = tensors["embed_tokens.weight"] if "embed_tokens.weight" in tensors else plain_rows(target)
        self.reset(512)

    def reset(self, capacity: int) -> None:
        self._cache = self._layers.new_cache(capacity)
        self._committed = 0

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        hidden = self._run(target_ids[-features.shape[0] :], features, last=1)
        self._committed = self._cache.length
        self._tree = GrowingTree(self._committed, features.device)
        return hidden

    def step(self, target_ids: Tensor, hidden: Tensor, parents: Tensor | None = None) -> Tensor:
        return self._run(target_ids, hidden, None if parents is None else self._tree.grow(parents))

    def rollback(self) -> None:
        self._cache.truncate(self._committed)

    def chains(self, target_ids: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
        """See :class:`hothead.models.draft.Unrolls`.

        The unrolling of HASS (arXiv 2408.15766) and EAGLE-3's training-time test, with this layer and its cache: at
        depth j a chain attends to the committed positions up to its start and to its own j - 1 drafts.
        """
        pairs = features.shape[0]
        ids = target_ids[-pairs:]
        self.reset(pairs + min(starts, CHAIN_BLOCK) * (depth - 1))
        first = self._run(ids, features)[-starts:]
        self._committed = pairs
        blocks = []
        for at in range(pairs - starts, pairs, CHAIN_BLOCK):
            begins = torch.arange(at, min(at + CHAIN_BLOCK, pairs), device=ids.device)  # pair index of each start
            hidden = [first[begins - (pairs - starts)]]
            committed = torch.arange(pairs, device=ids.device) <= begins[:, None]
            own = torch.eye(len(begins), dtype=torch.bool, device=ids.device)
            for j in range(1, depth):
                seen = torch.cat([committed, *[own] * j], dim=1)
                step_ids = ids[(begins + j).clamp(max=pairs - 1)]
                hidden.append(self._run(step_ids, hidden[-1], Window(begins + j, ~seen)))
            self.rollback()
            blocks.append(torch.stack(hidden, dim=1))
        return torch.cat(blocks)

    def _run(
        self, target_ids: Tensor, features: Tensor, window: Window | None = None, last: int | None = None
    ) -> Tensor:
        """Pairs (x_{t+1}, f_t), int64 [n] and [n, H] -> f_{t+1}, predicted, of the last ``last`` (None: all)."""
        embedded = functional.embedding(target_ids, self._embedding)
        x = self._fc(torch.cat([embedded, features], dim=-1))
        rotation = self._rotary.at(self._cache.length, len(target_ids), window, x.device)
        unseen = None if window is None else window.unseen
        return self._layers(x, rotation, self._cache, unseen, last=last)[0]


def config_of(make: Callable[..., Any], fields: dict[str, Any]) -> Any:
    """``make(**fields)``, a transformers config.

    Raises:
        DraftMismatch: the fields contradict each other.
    """
    try:
        return make(**fields)
    except StrictDataclassError as error:
        last = str(error).strip().splitlines()[-1].strip()
        raise DraftMismatch(
            f"the draft's config.json describes no possible layer ({last}); expected the one it was trained with"
        ) from error


def plain_rows(target: CausalLM) -> Tensor:
    """The target's embedding, [V, H]."""
    if type(target.embedding) is not nn.Embedding:
        raise DraftMismatch(
            f"the target's embedding is a {type(target.embedding).__name__}, which scales or changes its rows; "
            "the draft must bring its own embed_tokens.weight"
        )
    return target.embedding.weight


def _check_sizes(config: PreTrainedConfig, target: CausalLM) -> None:
    if config.hidden_size != target.hidden_size:
        raise DraftMismatch(
            f"the draft's hidden size is {config.hidden_size} and the target's is {target.hidden_size}: "
            "this draft was trained for another target"
        )
    if config.vocab_size != target.lm_head.vocab_size:
        raise DraftMismatch(
            f"the draft's vocabulary is {config.vocab_size} and the target's head has {target.lm_head.vocab_size} "
            "rows: this draft was trained for another target"
        )
    if config.num_hidden_layers != 1:
        raise DraftMismatch(
            f"an EAGLE draft has 1 layer; this config says num_hidden_layers={config.num_hidden_layers}"
        )


def check_tensors(
    kind: str,
    tensors: dict[str, Tensor],
    expected: dict[str, tuple[int, ...]],
    optional: dict[str, tuple[int, ...]],
    hint: str = "",
) -> None:
    """
    Args:
        kind: of checkpoint.
        expected, optional: shape of each tensor that must, and may, be there.
        hint: what extra tensors may mean.

    Raises:
        DraftMismatch: a missing, extra or misshapen tensor, by name.
    """
    missing = sorted(expected.keys() - tensors.keys())
    extra = sorted(tensors.keys() - expected.keys() - optional.keys())
    if missing or extra:
        parts = [f"{kind} {', '.join(names)}" for kind, names in (("missing", missing), ("extra", extra)) if names]
        raise DraftMismatch(f"not an {kind} checkpoint: {'; '.join(parts)}{hint if extra else ''}")
    for name, shape in {**expected, **optional}.items():
        if name in tensors and tuple(tensors[name].shape) != shape:
            raise DraftMismatch(
                f"{name} has shape {list(tensors[name].shape)}; this config and target expect {list(shape)}"
            )
