"""Greedy acceptance length of a draft, measured on stored greedy answers of the target.

Chains are teacher-forced: along the accepted path the draft's tokens are the path's, so feeding the path's
tokens with the draft's own predicted features gives exactly what each round of a real run would draft.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from draft import ChainLayer, load_draft
from shards import Example, read_shards
from target import load_embedding, read_config
from torch import Tensor


@dataclass(frozen=True)
class Chains:
    """For each answer position, whether the j-th draft of a chain is right: match bool [positions, k]."""

    source: str
    greedy: bool
    match: Tensor

    def walk(self) -> tuple[int, int]:
        """Play a speculative run; return (tokens emitted, verify passes), bonus tokens included."""
        n, k = self.match.shape
        at = rounds = 0
        while at < n:
            accepted = 0
            while accepted < k and at + accepted < n and self.match[at + accepted, accepted]:
                accepted += 1
            at += accepted + 1
            rounds += 1
        return n, rounds


@torch.inference_mode()
def draft_chains(draft: ChainLayer, embedding: Tensor, example: Example, k: int) -> Chains:
    """Unroll `draft` k steps from every answer position of one example.

    Row r of `match` is about the r-th token after the answer's first; `match[r, j]` says that the (j+1)-th
    draft of the chain that would put its (j+1)-th token there equals the target's greedy token.
    """
    n, start = len(example), example.answer_start - 1
    embeds = embedding[example.ids[1:]].float() / draft.embed_scale
    features = example.inputs.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = draft.unroll(embeds[None], features[None, :-1], torch.zeros(1, dtype=torch.long), n - 1 - start, k)
    truth = (example.features[start + 1 :] @ embedding.T).argmax(-1)  # [S]
    head = embedding if draft.head_ids is None else embedding[draft.head_ids]
    guesses = torch.stack([(draft.head_input(s[0]).bfloat16() @ head.T).argmax(-1) for s in steps], -1)  # [S, k]
    if draft.head_ids is not None:
        guesses = draft.head_ids[guesses]
    match = guesses == truth[:, None]
    for j in range(1, k):
        match[:j, j] = False
    return Chains(example.source, example.temperature < 0.05, match)


def summarise(chains: list[Chains]) -> dict[str, object]:
    """Top-1 accuracy at each step (conditional on nothing), and acceptance length by source and overall."""
    k = chains[0].match.shape[1]
    top1 = [round(float(torch.cat([c.match[j:, j] for c in chains]).float().mean()), 4) for j in range(k)]
    tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for c in chains:
        if c.greedy:
            n, rounds = c.walk()
            for key in (c.source, "overall"):
                tokens[key][0] += n
                tokens[key][1] += rounds
    acceptance = {s: round(n / max(r, 1), 4) for s, (n, r) in sorted(tokens.items())}
    return {
        "top1": top1,
        "acceptance": acceptance,
        "answer_tokens": tokens["overall"][0],
        "rounds": tokens["overall"][1],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--draft", type=Path, required=True, help="folder with the draft's model.safetensors")
    parser.add_argument("--shards", type=Path, required=True, help="greedy answers with features (generate.py)")
    parser.add_argument("--k", type=int, default=4, help="draft tokens a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    embedding = load_embedding(args.target)
    scale = float(embedding.float().pow(2).mean().sqrt())
    draft = load_draft(args.draft, read_config(args.target), scale)
    examples = [e for e in read_shards(args.shards) if len(e) > e.answer_start]
    print(json.dumps(summarise([draft_chains(draft, embedding, e, args.k) for e in examples]), indent=1))


if __name__ == "__main__":
    main()
