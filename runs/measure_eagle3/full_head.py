"""A copy of an EAGLE-3 draft that brings no head, and so reads the target's over its whole vocabulary.

    python runs/measure_eagle3/full_head.py DRAFT OUT

The published draft's head has 16,384 of the target's own rows; without it nothing else changes.
"""

import json
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from hothead.files import write_text

LEFT_OUT = ("lm_head.weight", "d2t", "t2d")


def without_head(draft: Path, out: Path) -> None:
    """Write `out/` as `draft/`, without its head and the ids of the head's rows."""
    out.mkdir(parents=True, exist_ok=True)
    with safe_open(draft / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name not in LEFT_OUT}  # noqa: SIM118
        save_file(tensors, out / "model.safetensors.tmp", metadata=file.metadata())
    (out / "model.safetensors.tmp").rename(out / "model.safetensors")
    config = json.loads((draft / "config.json").read_text())
    del config["draft_vocab_size"]
    write_text(out / "config.json", json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    without_head(*map(Path, sys.argv[1:]))
