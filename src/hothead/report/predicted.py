"""A plan's predictions beside what a comparison measured, made from their files alone. Needs no torch."""

from collections.abc import Sequence
from functools import partial

from hothead.bench.schema import DYNAMIC, FULL, PLAIN, STATIC, Results
from hothead.bench.summary import MethodSummary, summarize
from hothead.plan.schema import Candidate, Plan
from hothead.report.compare import Table, estimate
from hothead.report.curve import interval
from hothead.report.figures import COLOURS, GREY, Figure, legend, plain_axes
from hothead.report.plan_summary import vocabulary

NEAR_ROWS = 0.02  # how far off a candidate's rows may be, as a share


def candidate_of(plan: Plan, results: Results, method: str) -> Candidate | None:
    """What the plan says of a method of a comparison: of the same models, temperature, k and vocabulary, at batch 1.

    None where the plan has no such candidate; of sizes between two candidates, the nearest one's, if it is within 2 %
    of the rows.
    """
    header, settings = results.header, results.header.settings
    drafted_by = header.draft.name if header.draft else ""
    ours = (plan.target.name, plan.draft.name, plan.temperature)
    same = ours == (header.target.name, drafted_by, settings.temperature)
    batch = next((b for b in plan.batches if b.batch == 1), None)
    is_fixed_chain = settings.draft_topk == 1 and not settings.draft_p_min and not settings.verify_p_min
    if not same or batch is None or not is_fixed_chain or method not in (FULL, STATIC, DYNAMIC):
        return None
    rows = plan.target_vocab_size if method == FULL or header.vocab is None else header.vocab.size
    slots, policy = (settings.slots, settings.policy) if method == DYNAMIC else (0, "")
    kind = (settings.num_steps, slots, policy)
    found = [c for c in batch.candidates if (c.num_steps, c.slots, c.policy if c.slots else "") == kind]
    nearest = min(found, key=lambda candidate: abs(candidate.size - rows), default=None)
    return nearest if nearest is not None and abs(nearest.size - rows) <= NEAR_ROWS * rows else None


def compared(plan: Plan, results: Results) -> list[tuple[MethodSummary, Candidate]]:
    """The methods of a comparison, over all prompts, of which the plan says something."""
    summaries = summarize(results)
    if not summaries:
        return []
    pairs = [(m, candidate_of(plan, results, m.method)) for m in summaries[-1].methods if m.method != PLAIN]
    return [(method, candidate) for method, candidate in pairs if candidate is not None]


def table(plan: Plan, results: Results) -> Table | None:
    """Predicted beside measured, a method a row; None where there is nothing to compare."""
    rows = []
    for method, candidate in compared(plan, results):
        assert method.times_plain is not None and method.acceptance_length is not None  # not plain
        off = candidate.times_plain.value / method.times_plain.value - 1
        rows.append(
            (
                f"{method.method}: {vocabulary(plan, candidate)}, k = {candidate.num_steps}",
                interval(candidate.times_plain, ".2f"),
                estimate(method.times_plain),
                f"{100 * off:+.1f}",
                interval(candidate.acceptance_length, ".2f"),
                f"{method.acceptance_length:.2f}",
                f"{candidate.round_ms.value:.2f}",
                f"{sum(method.ms_per_round.values()):.2f}",
            )
        )
    columns = (
        "method",
        "x plain, predicted",
        "x plain, measured",
        "off by %",
        "accept, predicted",
        "accept, measured",
        "ms a round, predicted",
        "ms a round, measured",
    )
    return Table("Predicted and measured", columns, tuple(rows)) if rows else None


def figure(plan: Plan, results: Results) -> Figure | None:
    """Predicted and measured speed-up side by side; None where there is nothing to compare."""
    pairs = compared(plan, results)
    if not pairs:
        return None
    return Figure("predicted_and_measured", "Speed-up, predicted and measured (95%)", partial(_draw_pairs, pairs))


def _draw_pairs(pairs: Sequence[tuple[MethodSummary, Candidate]], axes) -> None:  # type: ignore[no-untyped-def]
    for shift, colour, label, values in (
        (-0.2, GREY, "predicted", [candidate.times_plain for _, candidate in pairs]),
        (0.2, COLOURS[0], "measured", [m.times_plain for m, _ in pairs if m.times_plain is not None]),
    ):
        at = [index + shift for index in range(len(pairs))]
        low = [v.value - (v.value if v.low is None else v.low) for v in values]
        high = [(v.value if v.high is None else v.high) - v.value for v in values]
        heights = [v.value for v in values]
        axes.bar(at, heights, 0.38, yerr=[low, high], color=colour, label=label, capsize=2, error_kw={"linewidth": 0.8})
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(pairs)), [method.method for method, _ in pairs])
    axes.set_ylabel("speed, times plain decoding")
    plain_axes(axes)
    legend(axes)
