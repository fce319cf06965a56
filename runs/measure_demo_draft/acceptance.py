"""Greedy acceptance length of a draft with its full vocabulary over a whole prompt set.

Acceptance does not depend on time, so the prompts are shared out to one-thread processes, which is the quickest way
over many prompts on a small machine. One JSON line a turn; a run that was interrupted goes on where it ended.
"""

import json
import multiprocessing
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hothead.bench.prompts import Prompt, read_prompts

FORMAT = {"format": "hothead.acceptance", "version": 1}


def measure(arguments: tuple[str, str, int, int, Sequence[Prompt], Path]) -> None:
    """One process: answer its prompts and append a line for each turn to its own file."""
    import torch

    from hothead import DraftShape, SamplingParams, SpeculativeDecoder, load_draft, load_target

    target_spec, draft_spec, num_steps, max_new_tokens, prompts, out = arguments
    torch.set_num_threads(1)
    done = {json.loads(line)["prompt_id"] for line in out.read_text().splitlines()} if out.exists() else set()
    target = load_target(target_spec)
    decoder = SpeculativeDecoder(target, load_draft(draft_spec, target), shape=DraftShape(num_steps))
    params = SamplingParams(max_new_tokens=max_new_tokens)
    for prompt in prompts:
        if prompt.id in done:
            continue
        answers: list[str] = []
        lines: list[dict[str, Any]] = []
        for turn in range(len(prompt.turns)):
            result = decoder.generate(prompt.messages(answers), params)
            answers.append(result.text)
            stats = result.stats
            lines.append(
                {
                    "prompt_id": prompt.id,
                    "group": prompt.group,
                    "turn": turn,
                    "prompt_tokens": stats.prompt_tokens,
                    "decoded_tokens": stats.new_tokens - 1,
                    "rounds": stats.rounds,
                }
            )
        with out.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-group", type=int)
    parser.add_argument("--num-steps", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.output.exists():
        print(f"{args.output} is there already")
        return
    prompts = read_prompts(args.prompts, args.per_group)
    parts = [args.output.with_suffix(f".part{n}") for n in range(args.processes)]
    work = [
        (args.target, args.draft, args.num_steps, args.max_new_tokens, prompts[n :: args.processes], part)
        for n, part in enumerate(parts)
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        pool.map(measure, work, chunksize=1)
    header = {
        **FORMAT,
        "prompts": args.prompts.name,
        "per_group": args.per_group,
        "num_steps": args.num_steps,
        "max_new_tokens": args.max_new_tokens,
        "dtype": "bfloat16",
        "draft": Path(args.draft).name,
    }
    order = {prompt.id: number for number, prompt in enumerate(prompts)}
    lines = [line for part in parts for line in part.read_text().splitlines() if json.loads(line)["prompt_id"] in order]
    lines.sort(key=lambda line: order[json.loads(line)["prompt_id"]])
    args.output.write_text("\n".join([json.dumps(header), *lines]) + "\n", encoding="utf-8")
    for part in parts:
        part.unlink()


if __name__ == "__main__":
    main()
