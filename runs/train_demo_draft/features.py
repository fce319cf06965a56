"""Teacher-force the target over conversations that exist already, and store its features."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from shards import Conversation, shard_path, write_shard
from target import FastTarget
from torch import Tensor


def read_conversations(path: Path) -> list[Conversation]:
    """Read an .npz of `ids`, `offsets`, `answer_start`, `temperature`; lowest temperature first."""
    with np.load(path) as z:
        ids, bounds = z["ids"].astype(np.int32), z["offsets"]
        out = [
            Conversation(ids[a:b], int(s), float(t))
            for a, b, s, t in zip(bounds, bounds[1:], z["answer_start"], z["temperature"], strict=False)
        ]
    return sorted(out, key=lambda c: c.temperature)


def extract(target: FastTarget, conversations: list[Conversation], batch_tokens: int) -> list[Tensor]:
    """Return each conversation's features, bfloat16 [n, H], in order."""
    order = sorted(range(len(conversations)), key=lambda i: len(conversations[i].ids))
    out: list[Tensor] = [torch.empty(0)] * len(conversations)
    while order:
        longest = len(conversations[order[-1]].ids)
        take = max(1, batch_tokens // longest)
        rows, order = order[-take:], order[:-take]
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for r, i in enumerate(rows):
            ids[r, : len(conversations[i].ids)] = torch.from_numpy(conversations[i].ids)
        features = target.forward_causal(ids)
        for r, i in enumerate(rows):
            out[i] = features[r, : len(conversations[i].ids)].clone()
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--conversations", type=Path, required=True, help=".npz of conversations")
    parser.add_argument("--out", type=Path, required=True, help="folder of shards")
    parser.add_argument("--source", default="selfchat")
    parser.add_argument("--shard-size", type=int, default=256, help="conversations in a shard")
    parser.add_argument("--part", default="0/1", help="i/n: this process takes shards i, i + n, ...")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, args.part.split("/"))
    target = FastTarget(args.target)
    conversations = read_conversations(args.conversations)
    for index in range(part, -(-len(conversations) // args.shard_size), parts):
        path = shard_path(args.out, args.source, index)
        if path.exists():
            continue
        chunk = conversations[index * args.shard_size : (index + 1) * args.shard_size]
        start = time.perf_counter()
        features = extract(target, chunk, args.batch_tokens)
        write_shard(path, list(zip(chunk, features, strict=True)), args.source)
        tokens = sum(len(c.ids) for c in chunk)
        print(f"{path.name}: {tokens} tokens, {tokens / (time.perf_counter() - start):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
