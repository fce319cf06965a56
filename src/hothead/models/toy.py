"""Toy models: real architectures with a handful of random weights, for tests and for trying things in milliseconds.

They are built and saved like any other model, so every loader and verb takes their folders.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hothead.models.causal_lm import CausalLMDraft
from hothead.models.eagle import EagleDraft
from hothead.models.target import Target

CONTROL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def toy_tokenizer(words: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes and three control tokens (259 ids), or of ``words`` words "w0 w1 ..." in all."""
    if words is None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(BPE({byte: number for number, byte in enumerate(alphabet)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        backend = Tokenizer(
            WordLevel({f"w{number}": number for number in range(words - len(CONTROL_TOKENS))}, unk_token="w0")
        )
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=CONTROL_TOKENS[0],
        eos_token=CONTROL_TOKENS[1],
        pad_token=CONTROL_TOKENS[2],
        chat_template=CHAT_TEMPLATE,
    )


def toy_causal_lm(
    vocab_size: int = 320, layers: int = 2, seed: int = 0, sharpness: float = 3.0, **changes: Any
) -> LlamaForCausalLM:
    """A random float32 Llama of hidden size 32.

    Args:
        vocab_size: rows of the head; more than the tokenizer's ids makes a padded vocabulary.
        sharpness: scales the untied head, so that distributions are neither flat nor certain.
        changes: other fields of the config.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))
    finally:
        torch.random.set_rng_state(state)
    if not model.config.tie_word_embeddings:
        model.lm_head.weight.data *= sharpness
    return model


def toy_target(vocab_size: int = 320, words: int | None = None, seed: int = 0, **changes: Any) -> Target:
    """A toy target with its tokenizer; its end token is the tokenizer's."""
    tokenizer = toy_tokenizer(words)
    model = toy_causal_lm(vocab_size, seed=seed, eos_token_id=tokenizer.eos_token_id, **changes)
    return Target(model, tokenizer)


def toy_standalone(target: Target, noise: float = 0.1, seed: int = 1) -> CausalLMDraft:
    """A standalone draft: the target's own toy weights with relative noise, so that some drafts are accepted."""
    config = target.model.config
    model = toy_causal_lm(config.vocab_size, layers=config.num_hidden_layers, seed=0)
    # A Target's linears are packed; the same seed gives its plain weights again.
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise_like = torch.randn(parameter.shape, generator=generator) * parameter.data.std()
        parameter.data += noise * noise_like
    return CausalLMDraft(model, target)


def toy_eagle_tensors(hidden_size: int = 32, seed: int = 2, fc_bias: bool = False) -> dict[str, Tensor]:
    """A random EAGLE checkpoint in the public layout, float32."""
    generator = torch.Generator().manual_seed(seed)
    width, key_width = 2 * hidden_size, hidden_size // 2
    shapes = {
        "fc.weight": (hidden_size, 2 * hidden_size),
        "layers.0.self_attn.q_proj.weight": (hidden_size, hidden_size),
        "layers.0.self_attn.k_proj.weight": (key_width, hidden_size),
        "layers.0.self_attn.v_proj.weight": (key_width, hidden_size),
        "layers.0.self_attn.o_proj.weight": (hidden_size, hidden_size),
        "layers.0.mlp.gate_proj.weight": (width, hidden_size),
        "layers.0.mlp.up_proj.weight": (width, hidden_size),
        "layers.0.mlp.down_proj.weight": (hidden_size, width),
        "layers.0.post_attention_layernorm.weight": (hidden_size,),
    }
    if fc_bias:
        shapes["fc.bias"] = (hidden_size,)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def toy_eagle_config(vocab_size: int = 320, hidden_size: int = 32, **changes: Any) -> LlamaConfig:
    """The config that goes with :func:`toy_eagle_tensors`."""
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    return LlamaConfig(**{**settings, **changes})


def toy_eagle(target: Target, seed: int = 2) -> EagleDraft:
    """A random EAGLE draft for ``target``."""
    tensors = toy_eagle_tensors(target.hidden_size, seed)
    return EagleDraft(toy_eagle_config(target.vocab_size, target.hidden_size), tensors, target)


def save_toy_target(folder: Path, vocab_size: int = 320, seed: int = 0, **changes: Any) -> Path:
    """Write a toy target as a model folder that ``load_target`` reads."""
    tokenizer = toy_tokenizer()
    model = toy_causal_lm(vocab_size, seed=seed, eos_token_id=tokenizer.eos_token_id, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_toy_eagle(folder: Path, vocab_size: int = 320, hidden_size: int = 32, seed: int = 2) -> Path:
    """Write a toy EAGLE draft as a checkpoint folder that ``load_draft`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(toy_eagle_tensors(hidden_size, seed), folder / "model.safetensors")
    config = toy_eagle_config(vocab_size, hidden_size).to_dict()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
