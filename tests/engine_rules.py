"""What stock engines do with a map or a draft when they load it, written out for tests on machines without a GPU.

SGLang: ``load_token_map`` (speculative/spec_utils.py), ``init_token_map`` and ``init_lm_head`` (eagle_worker_v2.py,
standalone_worker_v2.py), ``LlamaForCausalLMEagle3`` (models/llama_eagle3.py). vLLM: ``Eagle3LlamaForCausalLM``
(models/llama_eagle3.py). Each returns which target id every draft row proposes, or raises what the engine would.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor


def checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    return json.loads((folder / "config.json").read_text()), tensors


def sglang_token_map(path: Path, head: Tensor, tensor_parallel: int = 1) -> tuple[Tensor, Tensor]:
    """(head rows [Vd, H], target id of each) for an EAGLE draft that shares ``head``, [V, H]."""
    hot_token_id = torch.tensor(torch.load(path, weights_only=True), dtype=torch.int64)
    shard = head.chunk(tensor_parallel)[0]
    return shard[hot_token_id], hot_token_id


def sglang_standalone_token_map(path: Path, draft_head: Tensor) -> tuple[Tensor, Tensor]:
    """STANDALONE loads the map too, but keeps its head: its best rows are then looked up in the map."""
    return draft_head, torch.tensor(torch.load(path, weights_only=True), dtype=torch.int64)


def sglang_eagle3(folder: Path) -> tuple[Tensor, Tensor]:
    """(head rows, target id of each) of an EAGLE-3 draft."""
    config, tensors = checkpoint(folder)
    if config["tie_word_embeddings"]:
        return tensors["embed_tokens.weight"], torch.arange(config["vocab_size"])
    rows = config["vocab_size"] if config.get("draft_vocab_size") is None else config["draft_vocab_size"]
    lm_head = torch.empty(rows, config["hidden_size"], dtype=tensors["lm_head.weight"].dtype)
    hot_token_id = None
    for name, loaded in tensors.items():
        if "d2t" in name:
            hot_token_id = loaded + torch.arange(loaded.shape[0])
        elif name == "lm_head.weight":
            assert loaded.shape == lm_head.shape, f"size mismatch: {list(loaded.shape)} and {list(lm_head.shape)}"
            lm_head.copy_(loaded)
    return lm_head, torch.arange(rows) if hot_token_id is None else hot_token_id


def vllm_eagle3(folder: Path) -> tuple[Tensor, Tensor]:
    """(head rows, target id of each) of an EAGLE-3 draft. Without d2t the offsets stay zero."""
    config, tensors = checkpoint(folder)
    layer = config.get("transformer_layer_config", config)
    rows = config.get("draft_vocab_size")
    rows = layer["vocab_size"] if rows is None else rows
    lm_head = torch.empty(rows, layer["hidden_size"], dtype=tensors["lm_head.weight"].dtype)
    draft_id_to_target_id = torch.zeros(rows, dtype=torch.long)
    for name, loaded in tensors.items():
        if "t2d" in name:
            continue
        if "d2t" in name:
            assert loaded.shape == draft_id_to_target_id.shape, "size mismatch"
            draft_id_to_target_id.copy_(loaded)
        elif "lm_head" in name:
            assert loaded.shape == lm_head.shape, f"size mismatch: {list(loaded.shape)} and {list(lm_head.shape)}"
            lm_head.copy_(loaded)
    targets = torch.arange(rows) + draft_id_to_target_id
    logits = torch.full((1, layer["vocab_size"]), float("-inf"))
    logits[:, targets] = 0.0  # as compute_logits does: an id past the vocabulary fails here
    return lm_head, targets
