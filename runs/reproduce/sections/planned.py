"""What ``hothead optimize`` chose, and its predictions beside real runs."""

from collections.abc import Sequence
from pathlib import Path

from layout import between, percent, table

from hothead.bench.schema import Results, read_results
from hothead.plan.schema import Plan, read_plan
from hothead.report import plan_summary
from hothead.report.predicted import compared

PLAN = "optimize_plan.json"
CHECKS = ("optimize_compare.jsonl", "plan_check_*.jsonl")


def predicted_and_measured(results: Path) -> Sequence[str]:
    """The verdict, then every run of a candidate of the plan."""
    path = results / PLAN
    if not path.exists():
        return ()
    plan = read_plan(path)
    runs = [found for pattern in CHECKS for found in sorted(results.glob(pattern))]
    rows = [row for run in runs for row in _rows(plan, read_results(run), run.name)]
    columns = (
        "run",
        "method",
        "over plain, predicted",
        "measured",
        "off by, %",
        "acceptance length, predicted",
        "measured",
        "round, ms, predicted",
        "measured",
    )
    batch = plan.batches[0]
    blocks = [
        "## What hothead optimize chooses, and whether it comes true",
        f"`results/{PLAN}`. {plan_summary.headline(plan)}.",
        plan_summary.verdict(batch)
        + f" Of the full vocabulary's accepted drafts it keeps {percent(batch.choice.kept)} %.",
    ]
    if rows:
        blocks += [
            "The acceptance was predicted from one pass over the answers, the time from what each part of a round "
            "takes; then the engine ran these vocabularies. The first run is the verifying one, the others are away "
            "from the choice.",
            table(columns, rows),
        ]
    return blocks


def _rows(plan: Plan, results: Results, name: str) -> list[tuple[str, ...]]:
    return [
        (
            f"`{name}`",
            f"{method.method}: {plan_summary.vocabulary(plan, candidate)}, k = {candidate.num_steps}",
            between(candidate.times_plain),
            between(method.times_plain),
            f"{100 * (candidate.times_plain.value / method.times_plain.value - 1):+.1f}" if method.times_plain else "-",
            between(candidate.acceptance_length),
            f"{method.acceptance_length:.2f}",
            between(candidate.round_ms),
            f"{sum(method.ms_per_round.values()):.2f}",
        )
        for method, candidate in compared(plan, results)
    ]
