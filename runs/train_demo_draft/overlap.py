"""Check that no evaluation prompt leaked into training: shared runs of n tokens between prompts and text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer


def ngram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Hashes uint64 [len(ids) - n + 1] of every run of `n` ids (polynomial, modulo 2**64)."""
    if len(ids) < n:
        return np.zeros(0, dtype=np.uint64)
    out = np.zeros(len(ids) - n + 1, dtype=np.uint64)
    for i in range(n):
        out = out * np.uint64(1_000_003) + ids[i : len(ids) - n + 1 + i].astype(np.uint64) + np.uint64(1)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target, for its tokenizer")
    parser.add_argument("--benchmark", type=Path, required=True, help="JSON lines with `turns` and `category`")
    parser.add_argument("--shards", type=Path, required=True, help="training shards")
    parser.add_argument("--n", type=int, default=13)
    args = parser.parse_args()
    from shards import read_shards

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    rows = [json.loads(line) for line in args.benchmark.read_text().splitlines()]
    known: dict[int, tuple[int, str]] = {}
    for r, row in enumerate(rows):
        for turn in row["turns"]:
            ids = np.array(tokenizer(turn, add_special_tokens=False)["input_ids"])
            known.update(dict.fromkeys(ngram_hashes(ids, args.n).tolist(), (r, row["category"])))
    table = np.array(sorted(known), dtype=np.uint64)
    hits: dict[int, int] = {}
    texts = 0
    for e in read_shards(args.shards):
        texts += 1
        # the opening system turn is everyone's: skip to the user's own words
        found = ngram_hashes(e.ids.numpy(), args.n)
        for h in found[np.isin(found, table)].tolist():
            row = known[h][0]
            hits[row] = hits.get(row, 0) + 1
    print(json.dumps({"texts": texts, "benchmark_prompts": len(rows), "prompts_sharing_a_run": len(hits)}))
    for r, count in sorted(hits.items(), key=lambda x: -x[1])[:20]:
        print(json.dumps({"category": rows[r]["category"], "shared_runs": count, "prompt": rows[r]["turns"][0][:120]}))


if __name__ == "__main__":
    main()
