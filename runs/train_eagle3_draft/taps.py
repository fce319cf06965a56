"""Add what goes into three of the target's layers to shards that ../train_demo_draft has written."""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import torch
from shards import open_shard, save_shard
from target import FastTarget
from torch import Tensor

TAPS = (2, 15, 27)  # of 30 layers: EAGLE-3's low, middle and high, as engines take them where no config says otherwise


def tap(target: FastTarget, ids: Tensor, bounds: list[int], batch_tokens: int) -> Tensor:
    """bfloat16 [N, 3 * H] for ids int64 [N], conversation i of which is `bounds[i]:bounds[i + 1]`."""
    out = torch.empty(len(ids), len(TAPS) * target.config.hidden_size, dtype=torch.bfloat16)
    spans = sorted(pairwise(bounds), key=lambda span: span[1] - span[0])
    while spans:
        longest = spans[-1][1] - spans[-1][0]
        take = max(1, batch_tokens // longest)
        rows, spans = spans[-take:], spans[:-take]
        batch = torch.zeros(len(rows), longest, dtype=torch.long)
        for r, (a, b) in enumerate(rows):
            batch[r, : b - a] = ids[a:b]
        found = target.forward_causal(batch, TAPS)
        for r, (a, b) in enumerate(rows):
            out[a:b] = found[r, : b - a]
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--shards", type=Path, required=True, help="folder of shards to read")
    parser.add_argument("--names", nargs="*", default=["*"], help="which of them, in this order (globs)")
    parser.add_argument("--out", type=Path, required=True, help="folder of shards to write")
    parser.add_argument("--part", default="0/1", help="i/n: this process takes shards i, i + n, ...")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, args.part.split("/"))
    target = FastTarget(args.target)
    paths = [path for name in args.names for path in sorted(args.shards.glob(f"{name}.safetensors"))]
    for path in paths[part::parts]:
        if (args.out / path.name).exists():
            continue
        start = time.perf_counter()
        tensors, source = open_shard(path)
        ids = tensors["ids"].long()
        tensors["taps"] = tap(target, ids, tensors["offsets"].tolist(), args.batch_tokens)
        save_shard(args.out / path.name, tensors, source)
        print(f"{path.name}: {len(ids)} tokens, {len(ids) / (time.perf_counter() - start):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
