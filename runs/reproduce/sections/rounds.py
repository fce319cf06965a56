"""Where a round's time goes, with a full and with a hot vocabulary."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from layout import MISSING, shown, table
from published import ROUND_ON, ROUND_US

from hothead.bench.schema import DYNAMIC, FULL, STATIC, read_results
from hothead.bench.summary import summarize
from hothead.report.compare import round_table
from hothead.report.profile import SpanCost, cost_remark
from hothead.spans import VERIFY_PARTS

FILE = "spec_bench_bf16.jsonl"
PROFILE = "profile_bf16.json"  # of runs/measure_engine/profile.sh
COMPARED = (FULL, STATIC, DYNAMIC)


def breakdown(results: Path) -> Sequence[str]:
    """Milliseconds of a round by phase, and what the published phases took."""
    path = results / FILE
    if not path.exists():
        return ()
    found = read_results(path)
    summaries = summarize(found)
    if not summaries:
        return ()
    ms = {method.method: method.ms_per_round for method in summaries[-1].methods}
    k = found.header.settings.num_steps
    compared = _beside_published(ms, k)
    if not compared:
        return ()
    return (
        "## Where a round's time goes",
        f"`results/{FILE}`, all tasks, k = {k}. Published: {ROUND_ON}. Draft decode is the layer and the head of one "
        "drafted token after the first; draft extend takes in what the last round emitted and drafts the first token, "
        "head included.",
        *compared,
        "The head is a larger part of our draft's step, as its layer is small, so a step shrinks further than the "
        "published one. So does the extend: ours reads what one round emitted and one row of logits.",
    )


def in_parts(results: Path) -> Sequence[str]:
    """The verify pass in its parts too, as ``--profile`` times them."""
    path = results / PROFILE
    if not path.exists():
        return ()
    document = json.loads(path.read_text(encoding="utf-8"))
    header, profile = document["header"], document["profile"]
    ms = {name: method["ms"] for name, method in profile["methods"].items() if name in COMPARED}
    settings, machine, mode = header["settings"], header["machine"], header.get("engine_mode", "eager")
    costs = {
        name: SpanCost(cost["spans_per_round"], cost["us_per_span"])
        for name, method in profile["methods"].items()
        if name in COMPARED and (cost := method.get("measuring"))
    }
    remarks = [cost_remark(costs)] if costs else []
    if mode == "compiled":
        remarks.append("A compiled layer is one call: its attention, products and the rest are one part.")
    return (
        "## A round in its parts",
        f"`results/{PROFILE}`. {header['prompt_set']['prompts']} prompts of {header['prompt_set']['name']}, up to "
        f"{settings['max_new_tokens']} tokens, k = {settings['num_steps']}, {header['vocab']['size']:,} rows and, "
        f"dynamic, {settings['slots']} slots; {header['dtype']}, {mode}, {machine['cpu']}, {machine['threads']} "
        "threads. Milliseconds of a round, and per cent of it:",
        shown(round_table(ms, "overall")),
        " ".join(remark for remark in remarks if remark),
        f"The same as the phases that were published ({ROUND_ON}):",
        *_beside_published(ms, settings["num_steps"]),
    )


def _beside_published(ms_by_method: Mapping[str, Mapping[str, float]], num_steps: int) -> Sequence[str]:
    """A table of the phases, or nothing where there is nothing to compare."""
    names = [name for name in COMPARED if name in ms_by_method]
    if names[:2] != [FULL, STATIC]:
        return ()
    ours = [_phases(ms_by_method[name], num_steps) for name in names]
    rows = []
    for phase in ours[0]:
        published = ROUND_US.get(phase)
        cells = [f"{phases[phase]:.2f}" for phases in ours]
        saved = f"{ours[1][phase] / ours[0][phase]:.2f}"
        theirs = (
            (f"{published[0]} to {published[1]}", f"{published[1] / published[0]:.2f}") if published else (MISSING,) * 2
        )
        rows.append((phase, *theirs, *cells, saved))
    rounds = [sum(ms_by_method[name].values()) for name in names]
    rows.append(("round", MISSING, MISSING, *(f"{ms:.2f}" for ms in rounds), f"{rounds[1] / rounds[0]:.2f}"))
    columns = ("", "published, us", "hot / full", *(f"ours, {name}, ms" for name in names), f"{STATIC} / full")
    return (table(columns, rows),)


def _phases(ms: Mapping[str, float], num_steps: int) -> dict[str, float]:
    """Milliseconds: the published phases, as far as ours can be put together to the same."""
    head = ms["draft_head"] / num_steps
    step = ms["draft_steps"] / max(1, num_steps - 1)
    return {
        "draft head, once": head,
        "draft decode": step + head,
        "draft extend": ms["draft_extend"] + head,
        "target verify": ms["target_verify"] if "target_verify" in ms else sum(ms[part] for part in VERIFY_PARTS),
    }
