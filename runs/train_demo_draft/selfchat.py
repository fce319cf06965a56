"""Let the target write conversations with itself: user turns sampled from its chat prefix, then answers."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from generate import answer_all, chat_ids
from target import FastTarget
from transformers import AutoTokenizer

from prompts import continue_turns

TEMPERATURES = (0.0, 0.5, 0.8, 1.0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--out", type=Path, required=True, help=".npz to write")
    parser.add_argument("--conversations", type=int, default=4000)
    parser.add_argument("--max-new", type=int, default=280)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target = FastTarget(args.target)
    ids: list[np.ndarray] = []
    starts: list[int] = []
    temperatures: list[float] = []
    size = 128
    for at in range(0, args.conversations, size):
        temperature = TEMPERATURES[at // size % len(TEMPERATURES)]
        turns = [t for t in continue_turns(target, tokenizer, [""] * size, 1.0, 120) if t]
        prompts = [chat_ids(tokenizer, t) for t in turns]
        for a in answer_all(target, prompts, args.max_new, tokenizer.eos_token_id, temperature, 96):
            ids.append(np.array([*a.ids, a.last_id], dtype=np.uint16))
            starts.append(a.prompt_length)
            temperatures.append(temperature)
        print(f"{len(ids)} conversations, {sum(map(len, ids))} tokens", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_suffix(".tmp.npz")
    np.savez_compressed(
        temporary,
        ids=np.concatenate(ids),
        offsets=np.cumsum([0, *map(len, ids)]),
        answer_start=np.array(starts, dtype=np.int32),
        temperature=np.array(temperatures, dtype=np.float32),
    )
    temporary.rename(args.out)


if __name__ == "__main__":
    main()
