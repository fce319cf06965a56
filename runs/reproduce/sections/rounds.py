"""Where a round's time goes, with a full and with a hot vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, table
from published import ROUND_ON, ROUND_US

from hothead.bench.schema import DYNAMIC, FULL, STATIC, read_results
from hothead.bench.summary import MethodSummary, summarize

FILE = "spec_bench_bf16.jsonl"


def breakdown(results: Path) -> Sequence[str]:
    """Milliseconds of a round by phase, and what the published phases took."""
    path = results / FILE
    if not path.exists():
        return ()
    found = read_results(path)
    summaries = summarize(found)
    if not summaries:
        return ()
    methods = {method.method: method for method in summaries[-1].methods}
    shown = [methods[name] for name in (FULL, STATIC, DYNAMIC) if name in methods]
    if len(shown) < 2:
        return ()
    k = found.header.settings.num_steps
    ours = [_phases(method, k) for method in shown]
    rows = []
    for phase in ours[0]:
        published = ROUND_US.get(phase)
        cells = [f"{phases[phase]:.2f}" for phases in ours]
        saved = f"{ours[1][phase] / ours[0][phase]:.2f}"
        theirs = (
            (f"{published[0]} to {published[1]}", f"{published[1] / published[0]:.2f}") if published else (MISSING,) * 2
        )
        rows.append((phase, *theirs, *cells, saved))
    rounds = [sum(method.ms_per_round.values()) for method in shown]
    rows.append(("round", MISSING, MISSING, *(f"{ms:.2f}" for ms in rounds), f"{rounds[1] / rounds[0]:.2f}"))
    columns = (
        "",
        "published, us",
        "hot / full",
        *(f"ours, {m.method}, ms" for m in shown),
        f"{shown[1].method} / full",
    )
    return (
        "## Where a round's time goes",
        f"`results/{FILE}`, all tasks, k = {k}. Published: {ROUND_ON}. Draft decode is the layer and the head of one "
        "drafted token after the first; draft extend takes in what the last round emitted and drafts the first token, "
        "head included.",
        table(columns, rows),
        "The head is a larger part of our draft's step, as its layer is small, so a step shrinks further than the "
        "published one. So does the extend: ours reads what one round emitted and one row of logits.",
    )


def _phases(method: MethodSummary, num_steps: int) -> dict[str, float]:
    """Milliseconds: the published phases, as far as ours can be put together to the same."""
    ms = method.ms_per_round
    head = ms["draft_head"] / num_steps
    step = ms["draft_steps"] / max(1, num_steps - 1)
    return {
        "draft head, once": head,
        "draft decode": step + head,
        "draft extend": ms["draft_extend"] + head,
        "target verify": ms["target_verify"],
    }
