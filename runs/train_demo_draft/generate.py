"""Let the target answer prompts, batched, and store the text with its features. Resumable by shard."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from shards import Conversation, shard_path, write_shard
from target import FastTarget
from torch import Tensor
from transformers import AutoTokenizer

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclass(frozen=True)
class Answer:
    """Prompt and answer: ids without the last token drawn, and their features [n, H]."""

    ids: list[int]
    features: Tensor
    last_id: int
    prompt_length: int

    @property
    def answer_ids(self) -> list[int]:
        """Every token drawn, the last one included."""
        return [*self.ids[self.prompt_length :], self.last_id]


def draw(logits: Tensor, temperature: float) -> Tensor:
    """Draw one token a row from logits [B, V]; greedy at temperature 0. Returns int64 [B]."""
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits.float() / temperature, -1), 1)[:, 0]


@torch.inference_mode()
def answer_batch(
    target: FastTarget, prompts: list[list[int]], max_new: int, stop_id: int, temperature: float = 0.0
) -> list[Answer]:
    """Answer a batch of token-id prompts of similar lengths; rows that stop leave the batch now and then."""
    longest = max(map(len, prompts))
    pad = torch.tensor([longest - len(p) for p in prompts])
    ids = torch.tensor([[stop_id] * (longest - len(p)) + p for p in prompts])
    cache = target.new_cache(pad, longest + max_new)
    features = target.forward(ids, cache)
    tokens = [list(p) for p in prompts]
    feats = [[features[r, int(pad[r]) :].clone()] for r in range(len(prompts))]
    rows = torch.arange(len(prompts))  # which prompt each batch row is
    active = torch.ones(len(prompts), dtype=torch.bool)
    last: list[int] = [stop_id] * len(prompts)
    step = features[:, -1:]
    for count in range(max_new):
        drawn = draw(target.head(step)[:, -1], temperature)
        for r, token in zip(rows.tolist(), drawn.tolist(), strict=True):
            if active[r]:
                last[r] = token
                active[r] = token != stop_id
        if count == max_new - 1 or not active.any():
            break
        if active[rows].float().mean() < 0.85:
            keep = active[rows].nonzero()[:, 0]
            cache.select(keep)
            rows, drawn = rows[keep], drawn[keep]
        step = target.forward(drawn[:, None], cache)
        for i, (r, token) in enumerate(zip(rows.tolist(), drawn.tolist(), strict=True)):
            if active[r]:
                tokens[r].append(token)
                feats[r].append(step[i])
    return [Answer(t, torch.cat(f), x, len(p)) for t, f, x, p in zip(tokens, feats, last, prompts, strict=True)]


def chat_ids(tokenizer: object, text: str) -> list[int]:
    """Token ids of one user turn in the target's chat template, up to where the answer begins."""
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)  # type: ignore


def answer_all(
    target: FastTarget, prompts: list[list[int]], max_new: int, stop_id: int, temperature: float, batch: int
) -> list[Answer]:
    """Answer prompts in batches of similar length; the order is kept."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out: dict[int, Answer] = {}
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        answers = answer_batch(target, [prompts[i] for i in rows], max_new, stop_id, temperature)
        out.update(zip(rows, answers, strict=True))
    return [out[i] for i in range(len(prompts))]


def read_prompts(path: Path) -> dict[str, list[str]]:
    """Prompts by group."""
    out: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        out[row["group"]].append(row["text"])
    return out


def read_benchmark(path: Path) -> dict[str, list[str]]:
    """First turns of a Spec-Bench file by task group; the MT-Bench categories are one group."""
    out: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        category = row["category"]
        out["mt_bench" if category in MT_BENCH else category].append(row["turns"][0])
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path, help="JSON lines with `group` and `text`")
    source.add_argument("--benchmark", type=Path, help="Spec-Bench file: JSON lines with `category` and `turns`")
    parser.add_argument("--every", type=int, default=1, help="take one prompt in so many of each group")
    parser.add_argument("--out", type=Path, required=True, help="folder of shards")
    parser.add_argument("--max-new", type=int, default=144)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=96, help="prompts a batch; also the size of a shard")
    parser.add_argument("--max-prompt", type=int, default=1000, help="longest prompt, in tokens; others are skipped")
    parser.add_argument("--part", default="0/1", help="i/n: this process takes shards i, i + n, ...")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    part, parts = map(int, args.part.split("/"))
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target = FastTarget(args.target)
    groups: dict[str, list[list[int]]] = defaultdict(list)
    rows = read_benchmark(args.benchmark) if args.benchmark else read_prompts(args.prompts)
    for group, texts in rows.items():
        ids = [chat_ids(tokenizer, text) for text in texts[:: args.every]]
        groups[group] = [i for i in ids if len(i) <= args.max_prompt]
    jobs = [
        (at // args.batch, group, prompts[at : at + args.batch])
        for group, prompts in groups.items()
        for at in range(0, len(prompts), args.batch)
    ]
    jobs.sort(key=lambda job: job[0])  # a run cut short has some of every group
    for index, group, prompts in jobs[part::parts]:
        path = shard_path(args.out, group, index)
        if path.exists():
            continue
        start = time.perf_counter()
        batch = args.batch if max(map(len, prompts)) < 400 else args.batch // 2
        answers = answer_all(target, prompts, args.max_new, tokenizer.eos_token_id, args.temperature, batch)
        items = [
            (Conversation(np.array(a.ids, dtype=np.int32), a.prompt_length, args.temperature), a.features)
            for a in answers
        ]
        write_shard(path, items, group)
        seconds, new = time.perf_counter() - start, sum(len(a.answer_ids) for a in answers)
        total = sum(len(a.ids) for a in answers)
        print(f"{path.name}: {total} tokens, {new} new, {seconds:.0f} s, {new / seconds:.0f} new/s", flush=True)


if __name__ == "__main__":
    main()
