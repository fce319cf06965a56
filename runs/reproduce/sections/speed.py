"""Decoding speed, from ``hothead compare``."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, between, shown, table
from published import SPEED_ON, TIMES_PLAIN

from hothead.bench.methods import Method, parse_method
from hothead.bench.schema import FULL, PEERS, PLAIN, Results, read_results
from hothead.bench.summary import GroupSummary, summarize, times_faster
from hothead.report.compare import breakdown_table, headline, remarks, speed_table

SPEC_BENCH = "spec_bench_bf16.jsonl"
EAGLE3 = "eagle3_spec_bench_bf16.jsonl"
OUT_OF_DOMAIN = "out_of_domain_*_bf16.jsonl"


def on_spec_bench(results: Path) -> Sequence[str]:
    """Speed-ups beside the published ones, then everything by group."""
    path = results / SPEC_BENCH
    if not path.exists():
        return ()
    found = read_results(path)
    summaries = summarize(found)
    if not summaries:
        return ()
    rows = []
    for method in summaries[-1].methods:
        published = TIMES_PLAIN.get(method.method)
        rows.append(
            (
                method.method,
                MISSING if published is None else f"{published:.2f}",
                MISSING if published is None else f"{published / TIMES_PLAIN['full']:.2f}",
                f"{method.tokens_per_s.value:.1f}",
                between(method.times_plain),
                between(method.times_full),
                between(method.best_hot_times_it),
            )
        )
    hot = f"{summaries[-1].best_hot} over this"
    columns = ("", f"published: {SPEED_ON}", "over full", "ours, tokens/s", "over plain", "over full, same k", hot)
    return (
        f"## Speed on Spec-Bench, {found.header.dtype}",
        f"`results/{SPEC_BENCH}`. {headline(found)}.",
        table(columns, rows),
        "The published dynamic vocabulary (`full_refresh`) loses to its own static map there as here; slots do not. "
        "Against plain decoding our small pair gains less than the published one: the target's own pass is short, so "
        "drafting and verifying weigh more, and its draft is accepted less often. Pruning gains more, because the "
        "head is a larger part of this draft.",
        *_details(found, summaries),
    )


def with_eagle3(results: Path) -> Sequence[str]:
    """The same with the EAGLE-3 draft."""
    path = results / EAGLE3
    if not path.exists():
        return ()
    found = read_results(path)
    return (
        f"## Speed on Spec-Bench with the EAGLE-3 draft, {found.header.dtype}",
        f"`results/{EAGLE3}`. {headline(found)}. The draft brings no head here: it reads the target's, of 49,152 rows.",
        *_details(found, summarize(found)),
    )


def out_of_domain(results: Path) -> Sequence[str]:
    """Speed where the traffic is not what the vocabulary was counted on."""
    blocks: list[str] = []
    for path in sorted(results.glob(OUT_OF_DOMAIN)):
        found = read_results(path)
        assert found.header.vocab is not None
        blocks += [
            f"## Speed out of domain: {found.header.vocab.size:,} rows counted on GSM8K alone",
            f"`results/{path.name}`. {headline(found)}.",
            *_details(found, summarize(found)),
        ]
    return blocks


def _details(found: Results, summaries: Sequence[GroupSummary]) -> list[str]:
    step = draft_step(summaries[-1], found.header.settings.num_steps)
    said = [shown(speed_table(summaries)), *remarks(found)]
    best = [line for is_tree in (False, True) for line in at_best(found, summaries[-1], is_tree)]
    return [*said, *best, "Time per round, ms, all groups:", shown(breakdown_table(summaries[-1])), step]


def at_best(found: Results, overall: GroupSummary, is_tree: bool) -> list[str]:
    """The fastest hot chain (or tree) beside the fastest full one, and with and without stopping where it is unsure."""
    speeds = {method.method: method.tokens_per_s.value for method in overall.methods if method.method not in PEERS}
    methods = {name: parse_method(name) for name in speeds}
    methods = {name: method for name, method in methods.items() if _is_tree(method, found) == is_tree}
    hot = [name for name, method in methods.items() if method.is_hot]
    full = [name for name, method in methods.items() if method.kind == FULL]
    stopping, fixed = ([name for name in hot if bool(methods[name].p_min) is stops] for stops in (True, False))
    lines, shape = [], "tree" if is_tree else "chain"
    for ours, others in ((hot, full), (stopping, fixed)):
        if ours and others:
            method, baseline = (max(names, key=speeds.__getitem__) for names in (ours, others))
            times = between(times_faster(found, method, baseline))
            lines.append(f"Each {shape} at its best: `{method}` is {times} times `{baseline}`.")
    return lines


def _is_tree(method: Method, found: Results) -> bool:
    return (found.header.settings.draft_topk if method.shape is None else method.shape[1]) > 1


def draft_step(overall: GroupSummary, num_steps: int) -> str:
    """What drafting one token costs with chains of ``num_steps``: the layer and the head, once each."""
    steps = {
        method.method: method.ms_per_round["draft_steps"] / max(1, num_steps - 1)
        + method.ms_per_round["draft_head"] / num_steps
        for method in overall.methods
        if method.method != PLAIN and parse_method(method.method).shape is None  # chains of num_steps
    }
    first = next(iter(steps.values()))
    parts = [f"{name} {ms:.2f} ms ({ms / first:.2f})" for name, ms in steps.items()]
    return f"One draft step, layer and head (in brackets, times the first): {', '.join(parts)}."
