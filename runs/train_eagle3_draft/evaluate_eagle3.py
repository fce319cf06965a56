"""Greedy acceptance length of an EAGLE-3 draft on stored greedy answers: ../train_demo_draft/evaluate.py says how."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from draft import DraftConfig
from eagle3 import load_eagle3
from evaluate import draft_chains, summarise
from shards import read_shards
from target import load_embedding, read_config


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--draft", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--shards", type=Path, required=True, help="greedy answers with taps (taps.py)")
    parser.add_argument("--k", type=int, default=4, help="draft tokens a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draft = load_eagle3(args.draft, DraftConfig.like(read_config(args.target), 0))
    embedding = load_embedding(args.target)
    examples = [e for e in read_shards(args.shards) if len(e) > e.answer_start]
    print(json.dumps(summarise([draft_chains(draft, embedding, e, args.k) for e in examples]), indent=1))


if __name__ == "__main__":
    main()
