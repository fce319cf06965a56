"""A model's body without its own class's overhead, eager or compiled, where its layers are known to fit."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from hothead.models.cache import AnyCache
from hothead.models.compiled import CompiledLayers, CompiledNorm
from hothead.models.layers import FusedLayers, RMSNorm, Rotary
from hothead.models.window import Window

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
        compiled: see ``compiled.py``.
    """

    def __init__(self, model: PreTrainedModel, *, compiled: bool = False) -> None:
        body: Any = model.base_model
        self._embedding = model.get_input_embeddings()
        self._rotary = Rotary(body.rotary_emb)
        self._layers = layers_class(compiled)(body.layers, body.norm)
        body.layers = nn.ModuleList()

    def new_cache(self, capacity: int) -> AnyCache:
        """An empty cache for these layers."""
        return self._layers.new_cache(capacity)

    def __call__(
        self, target_ids: Tensor, cache: AnyCache, window: Window | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Append int64 [n] tokens to ``cache``.

        Returns:
            Their last hidden states, [n, H], and what went into the layers in ``taps``, side by side, [n, taps * H].
        """
        x = self._embedding(target_ids)
        rotation = self._rotary.at(cache.length, len(target_ids), window, x.device)
        last, features = self._layers(x, rotation, cache, None if window is None else window.unseen, taps)
        return last, features if taps else last


def layers_class(compiled: bool) -> Any:
    """What computes layers: :class:`CompiledLayers` or :class:`FusedLayers`, which are called alike."""
    return CompiledLayers if compiled else FusedLayers


def norm_class(compiled: bool) -> type[RMSNorm]:
    """What computes a norm between layers."""
    return CompiledNorm if compiled else RMSNorm
