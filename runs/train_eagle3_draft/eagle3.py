"""The EAGLE-3 draft and its checkpoint in the public layout (arXiv 2503.01840).

At position t the draft reads (embedding of x[t+1], state g[t]), each through its own RMS norm, side by side; its
output is g[t+1], and a third norm of that is what its LM head reads to give x[t+2]. A chain begins with
g = fc(what went into three of the target's layers) and goes on from the draft's own outputs: `ChainLayer.unroll`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from draft import ChainLayer, DraftConfig
from safetensors.torch import load_file, save_file
from taps import TAPS
from torch import Tensor, nn

from hothead.vocab import DraftVocab


class Eagle3(ChainLayer):
    """`fc`, one Llama layer with an attention twice as wide at its input, and the norm before the LM head.

    The LM head's rows are the target's, for the ids in `vocab`, and are not trained.

    Args:
        tap_scale: float32 [3 * H], by which what the target gives is divided, so that `fc` sees inputs of like size;
            saving folds it into `fc`.
    """

    tap_scale: Tensor

    def __init__(self, config: DraftConfig, vocab: DraftVocab, tap_scale: Tensor) -> None:
        h = config.hidden_size
        super().__init__(config, 2 * h)
        self.vocab = vocab
        self.head_ids = torch.tensor(vocab.target_ids)
        self.fc = nn.Linear(len(TAPS) * h, h, bias=False)
        self.embedding_norm = nn.Parameter(torch.ones(h))
        self.state_norm = nn.Parameter(torch.ones(h))
        self.head_norm = nn.Parameter(torch.ones(h))
        self.register_buffer("tap_scale", tap_scale)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps).bfloat16()

    def first(self, features: Tensor) -> Tensor:
        """See `ChainLayer`."""
        return self.fc(features / self.tap_scale)

    def mix(self, embeds: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ChainLayer`."""
        read = torch.cat((self._normed(embeds, self.embedding_norm), self._normed(states, self.state_norm)), -1)
        return states, read

    def head_input(self, states: Tensor) -> Tensor:
        """See `ChainLayer`."""
        return self._normed(states, self.head_norm)

    def public_state(self, embedding: Tensor) -> dict[str, Tensor]:
        """Tensors under the public names; `embedding` bfloat16 [V, H] is the target's, of which the head has rows."""
        out = self.layer_state("midlayer.")
        out |= {
            "fc.weight": self.fc.weight.detach() / self.tap_scale,
            "midlayer.input_layernorm.weight": self.embedding_norm.detach(),
            "midlayer.hidden_norm.weight": self.state_norm.detach(),
            "norm.weight": self.head_norm.detach(),
            "lm_head.weight": embedding[self.head_ids],
        }
        out = {name: value.bfloat16().contiguous() for name, value in out.items()}
        return out | {"d2t": torch.tensor(self.vocab.d2t), "t2d": torch.tensor(self.vocab.t2d)}

    def load_public_state(self, state: dict[str, Tensor]) -> None:
        """Load tensors under the public names; the sizes must fit."""
        own = {"norm": "post_attention_layernorm", "embedding_norm": "input_layernorm", "state_norm": "hidden_norm"}
        own |= {f"{n}_proj": f"self_attn.{n}_proj" for n in "qkvo"}
        own |= {f"{n}_proj": f"mlp.{n}_proj" for n in ("gate", "up", "down")}
        loaded = {
            (f"{name}.weight" if "proj" in name else name): state[f"midlayer.{public}.weight"].float()
            for name, public in own.items()
        }
        loaded |= {"head_norm": state["norm.weight"].float(), "fc.weight": state["fc.weight"].float() * self.tap_scale}
        self.load_state_dict(loaded | {"tap_scale": self.tap_scale})


def load_eagle3(folder: Path, config: DraftConfig) -> Eagle3:
    """Read a checkpoint in the public layout; `config` is the target's sizes."""
    state = load_file(folder / "model.safetensors")
    ids = state["d2t"].numpy() + np.arange(len(state["d2t"]))
    rows = {n: state[f"midlayer.{n}_proj.weight"].shape[0] for n in ("self_attn.q", "self_attn.k", "mlp.gate")}
    sizes = asdict(config) | {
        "num_heads": rows["self_attn.q"] // config.head_dim,
        "num_kv_heads": rows["self_attn.k"] // config.head_dim,
        "intermediate_size": rows["mlp.gate"],
    }
    vocab = DraftVocab.from_target_ids(ids, len(state["t2d"]))
    draft = Eagle3(DraftConfig(**sizes), vocab, torch.ones(state["fc.weight"].shape[1]))
    draft.load_public_state(state)
    return draft


def save_eagle3(draft: Eagle3, folder: Path, target_folder: Path, embedding: Tensor, metadata: dict[str, str]) -> None:
    """Write model.safetensors (atomically) and config.json in the public EAGLE-3 layout."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"format": "pt", **metadata}
    save_file(draft.public_state(embedding), folder / "model.safetensors.tmp", metadata=about)
    (folder / "model.safetensors.tmp").rename(folder / "model.safetensors")
    config = json.loads((target_folder / "config.json").read_text())
    for key in ("_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "dtype": "bfloat16", "intermediate_size": draft.config.intermediate_size,
        "num_attention_heads": draft.config.num_heads, "num_key_value_heads": draft.config.num_kv_heads,
        "tie_word_embeddings": False,
        "draft_vocab_size": len(draft.vocab), "target_hidden_size": draft.config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
