"""Toy drafts with heads of their own, as files: EAGLE-3 checkpoints in their public layouts, and llama.cpp's GGUF."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

V, H, ROWS = 320, 32, 192


def eagle3_tensors(target_ids: np.ndarray | None = None, seed: int = 0, prefix: str = "midlayer.") -> dict[str, Any]:
    """An EAGLE-3 checkpoint: int64 [Vd] ``target_ids`` of its rows (None: the whole vocabulary), bf16 weights."""
    generator = torch.Generator().manual_seed(seed)
    rows = V if target_ids is None else len(target_ids)
    shapes = {
        "fc.weight": (H, 3 * H),
        f"{prefix}hidden_norm.weight": (H,),
        f"{prefix}input_layernorm.weight": (H,),
        f"{prefix}self_attn.q_proj.weight": (H, 2 * H),
        f"{prefix}self_attn.k_proj.weight": (H // 2, 2 * H),
        f"{prefix}self_attn.v_proj.weight": (H // 2, 2 * H),
        f"{prefix}self_attn.o_proj.weight": (H, H),
        f"{prefix}mlp.gate_proj.weight": (2 * H, H),
        f"{prefix}mlp.up_proj.weight": (2 * H, H),
        f"{prefix}mlp.down_proj.weight": (H, 2 * H),
        f"{prefix}post_attention_layernorm.weight": (H,),
        "norm.weight": (H,),
        "lm_head.weight": (rows, H),
    }
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    if target_ids is not None:
        tensors["d2t"] = torch.from_numpy(target_ids - np.arange(rows))
        mask = np.zeros(V, dtype=bool)
        mask[target_ids] = True
        tensors["t2d"] = torch.from_numpy(mask)
    return tensors


def eagle3_config(rows: int | None = ROWS, **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": V,
        "hidden_size": H,
        "intermediate_size": 2 * H,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    if rows is not None:
        config["draft_vocab_size"] = rows
    return {**config, **changes}


def some_ids(count: int = ROWS, seed: int = 0) -> np.ndarray:
    """int64 [count], ascending target ids."""
    return np.sort(np.random.default_rng(seed).choice(V, count, replace=False))


def save_draft(
    folder: Path, tensors: dict[str, Any], config: dict[str, Any], shards: int = 1, bin: bool = False
) -> Path:
    """Write a checkpoint folder: one safetensors file, several with an index, or a pytorch_model.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("A toy.")
    if bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    elif shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    else:
        names = sorted(tensors)
        weight_map = {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            held = names[number::shards]
            save_file({name: tensors[name] for name in held}, folder / file, {"format": "pt"})
            weight_map |= dict.fromkeys(held, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def save_eagle3(folder: Path, target_ids: np.ndarray | None = None, seed: int = 0, **settings: Any) -> Path:
    tensors = eagle3_tensors(target_ids, seed)
    return save_draft(folder, tensors, eagle3_config(len(tensors["lm_head.weight"])), **settings)


def save_gguf(  # noqa: PLR0915 - a file from end to end
    path: Path,
    target_ids: np.ndarray | None = None,
    quantization: str = "Q8_0",
    architecture: str = "eagle3",
    head: bool = True,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """A draft GGUF as llama.cpp's converter lays it out: H of 256, so that K-quants have whole blocks."""
    import gguf
    from gguf.quants import quantize

    hidden, width = 256, 512
    rng = np.random.default_rng(0)
    rows = V if target_ids is None else len(target_ids)
    kind = gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("toy")
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array(f"{architecture}.extract_layers", [1, 2, 3])
    writer.add_array(f"{architecture}.target_layers", [1, 2, 3])
    writer.add_uint32(f"{architecture}.target_hidden_size", hidden)
    writer.add_uint32(f"{architecture}.block_size", 4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    alphabet = [chr(33 + i) for i in range(94)]
    tokens = [alphabet[i] if i < 94 else f"{alphabet[i % 94]}{alphabet[i // 94]}" for i in range(V)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * V)
    writer.add_token_merges([f"{token[0]} {token[1]}" for token in tokens[94:]])
    writer.add_eos_token_id(V - 1)

    def add(name: str, *shape: int, quantized: bool = True) -> None:
        values = rng.standard_normal(shape).astype(np.float32)
        if quantized and kind != gguf.GGMLQuantizationType.F32:
            if kind == gguf.GGMLQuantizationType.Q4_K:  # the package does not quantize to K-quants
                data = rng.integers(0, 255, (shape[0], shape[1] // 256 * 144), dtype=np.uint8)
                blocks = data.reshape(-1, 144)
                blocks[:, :4] = np.frombuffer(np.array([0.01, 0.05], np.float16).tobytes(), np.uint8)  # their scales
            else:
                data = quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    add("fc.weight", hidden, 3 * hidden)
    add("output_norm.weight", hidden, quantized=False)
    if architecture == "dflash":
        add("enc.output_norm.weight", hidden, quantized=False)
        add("blk.0.attn_q_norm.weight", hidden // 4, quantized=False)
        add("blk.0.attn_k_norm.weight", hidden // 4, quantized=False)
    if head:
        add("output.weight", rows, hidden)
    inner = hidden if architecture == "dflash" else 2 * hidden
    add("blk.0.attn_norm.weight", hidden, quantized=False)
    if architecture != "dflash":
        add("blk.0.attn_norm_2.weight", hidden, quantized=False)
    add("blk.0.attn_q.weight", hidden, inner)
    add("blk.0.attn_k.weight", hidden // 2, inner)
    add("blk.0.attn_v.weight", hidden // 2, inner)
    add("blk.0.attn_output.weight", hidden, hidden)
    add("blk.0.ffn_norm.weight", hidden, quantized=False)
    add("blk.0.ffn_gate.weight", width, hidden)
    add("blk.0.ffn_up.weight", width, hidden)
    add("blk.0.ffn_down.weight", hidden, width)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    if target_ids is not None:
        writer.add_tensor("d2t", target_ids.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
