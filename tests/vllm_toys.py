"""Toy models of sizes that vLLM's CPU attention knows: a target, and a draft of each kind for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from hothead.models.toy import save_toy_target, toy_causal_lm, toy_tokenizer

TOY_VOCAB = 320
TOY_SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 128,
}
EAGLE3_IDS = tuple(range(0, TOY_VOCAB, 2))  # the even ids: half of the vocabulary has no row


KV_BYTES = 256 << 20  # said outright, because vLLM then leaves out its warm-up
RUN_ENGINE = Path(__file__).parent / "vllm_plugin" / "run_engine.py"


def start_engine(
    folder: Path, model: Path, batches: list[dict[str, Any]], sampling: dict[str, Any] | None = None, **engine: Any
) -> dict[str, Any]:
    """Start an engine on a model, answer batches one after another, and return what ``run_engine.py`` says.

    Greedy unless ``sampling`` says otherwise. ``log`` is everything the process printed.
    """
    defaults = {"dtype": "float32", "max_num_seqs": 4, "kv_cache_memory_bytes": KV_BYTES}
    job = {
        "engine": {"model": str(model), **defaults, **engine},
        "batches": batches,
        "sampling": {"temperature": 0, "ignore_eos": True, **(sampling or {})},
        "result": str(folder / "result.json"),
    }
    process = subprocess.run(
        [sys.executable, str(RUN_ENGINE)], input=json.dumps(job), text=True, capture_output=True, check=False
    )
    log = process.stdout + process.stderr
    assert process.returncode == 0, log[-6000:]
    return {**json.loads((folder / "result.json").read_text()), "log": log}


def save_toys(root: Path) -> dict[str, Path]:
    """A target of seven layers (EAGLE-3 reads three), and drafts by their method; ``draft_model`` is it with noise.

    ``mtp`` is a target of its own, with a layer that drafts for it.
    """
    target = save_toy_target(root / "target", TOY_VOCAB, layers=7, **TOY_SIZES)
    noisy = toy_causal_lm(TOY_VOCAB, layers=7, **TOY_SIZES)
    generator = torch.Generator().manual_seed(1)
    for parameter in noisy.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator) * parameter.data.std()
    noisy.save_pretrained(root / "draft_model")
    toy_tokenizer().save_pretrained(root / "draft_model")
    _save_eagle(root / "eagle")
    _save_eagle3(root / "eagle3")
    _save_mtp(root / "mtp")
    return {"target": target, **{name: root / name for name in ("draft_model", "eagle", "eagle3", "mtp")}}


def _layer_tensors(inputs: int, generator: torch.Generator) -> dict[str, Tensor]:
    hidden, keys, width = 64, 32, 128
    shapes = {
        "self_attn.q_proj.weight": (hidden, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.v_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def _config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": TOY_VOCAB,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **TOY_SIZES,
        **changes,
    }


def _save(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _save_eagle(folder: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    layer = _layer_tensors(64, generator)
    tensors = {"fc.weight": torch.randn(64, 128, generator=generator) * 0.3}
    _save(folder, {**tensors, **{f"layers.0.{name}": value for name, value in layer.items()}}, _config())


def _save_eagle3(folder: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    layer = _layer_tensors(128, generator)
    target_ids = torch.tensor(EAGLE3_IDS)
    t2d = torch.zeros(TOY_VOCAB, dtype=torch.bool)
    t2d[target_ids] = True
    tensors = {
        "fc.weight": torch.randn(64, 192, generator=generator) * 0.3,
        "midlayer.hidden_norm.weight": torch.ones(64),
        "midlayer.input_layernorm.weight": torch.ones(64),
        "norm.weight": torch.ones(64),
        "lm_head.weight": torch.randn(len(EAGLE3_IDS), 64, generator=generator),
        "d2t": target_ids - torch.arange(len(EAGLE3_IDS)),
        "t2d": t2d,
        **{f"midlayer.{name}": value for name, value in layer.items()},
    }
    config = _config(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=len(EAGLE3_IDS))
    _save(folder, tensors, config)


def _save_mtp(folder: Path) -> None:
    """MiMo's layout: a Qwen2 with layers for multi-token prediction in the same checkpoint."""
    generator = torch.Generator().manual_seed(4)
    config = Qwen2Config(**_config(model_type="qwen2", num_hidden_layers=2))
    config.num_nextn_predict_layers = 1
    model = Qwen2ForCausalLM(config)
    tensors = {name: torch.randn(value.shape, generator=generator) * 0.3 for name, value in model.state_dict().items()}
    layer = _layer_tensors(64, generator)
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = layer[f"self_attn.{name}.weight"].shape[0]
        layer[f"self_attn.{name}.bias"] = torch.randn(rows, generator=generator) * 0.3
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm")
    layer |= {f"{name}.weight": torch.ones(64) for name in norms}
    layer["input_proj.weight"] = torch.randn(64, 128, generator=generator) * 0.3
    tensors |= {f"model.mtp_layers.0.{name}": value for name, value in layer.items()}
    _save(folder, tensors, {**config.to_dict(), "architectures": ["MiMoForCausalLM"]})
    toy_tokenizer().save_pretrained(folder)
