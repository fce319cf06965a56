"""What ``hothead plan`` prints and plots, made from a plan alone. Needs no torch."""

from functools import partial
from pathlib import Path

from hothead.bench.schema import Machine
from hothead.plan.schema import BatchPlan, Candidate, Plan
from hothead.report.compare import Table
from hothead.report.curve import interval
from hothead.report.figures import COLOURS, GREY, Figure, legend, log_scale, plain_axes, save_together
from hothead.spans import SECTION_LABELS

LEGEND = (
    "accept: emitted tokens per round. x plain, x full: predicted speed over plain decoding and over the draft with "
    "its full vocabulary at its best k. kept%: accepted drafts per round as a share of the full vocabulary's."
)


def headline(plan: Plan) -> str:
    """One line: models, acceptance, times."""
    machine = plan.times.machine
    if isinstance(machine, Machine):
        machine = f"{machine.accelerator or machine.cpu}, {machine.threads} threads"
    return "; ".join(
        (
            f"{plan.target.name} + {plan.draft.name}",
            f"acceptance on {plan.prompt_set.name} ({plan.group}), ranking {plan.ranking.name}, "
            f"temperature {plan.temperature:g}",
            f"times of {machine}, {plan.times.dtype}",
        )
    )


def kinds_table(plan: Plan, batch: BatchPlan) -> Table:
    """The best of each kind and k, best first; the full vocabulary at every k among them."""
    best: dict[tuple[int, int, str, bool], Candidate] = {}
    for found in sorted(batch.candidates, key=lambda c: -c.times_plain.value):
        is_full = found.size == plan.target_vocab_size
        best.setdefault((found.num_steps, found.slots, found.policy, is_full), found)
    rows = []
    for candidate in best.values():
        mark = "* " if candidate == batch.choice else "  "
        rows.append(
            (
                mark + vocabulary(plan, candidate),
                f"{candidate.num_steps}",
                interval(candidate.acceptance_length),
                f"{100 * candidate.kept:.1f}",
                interval(candidate.round_ms),
                interval(candidate.tokens_per_s, ".1f"),
                interval(candidate.times_plain, ".2f"),
                interval(candidate.times_full, ".2f"),
            )
        )
    columns = ("rows", "k", "accept, 95%", "kept%", "ms a round, 95%", "tok/s, 95%", "x plain, 95%", "x full, 95%")
    return Table(f"The best of each kind, batch {batch.batch} (*: the choice)", columns, tuple(rows))


def shares_table(batch: BatchPlan) -> Table:
    """A round of the choice and one of the full vocabulary, by section."""
    shown = [("choice", batch.choice), ("full", batch.full)]
    rows = []
    for section, label in SECTION_LABELS.items():
        cells = (f"{c.sections_ms[section]:.2f} {100 * c.shares[section]:3.0f}%" for _, c in shown)
        rows.append((label, *cells))
    rows.append(("round", *(f"{c.round_ms.value:.2f} 100%" for _, c in shown)))
    return Table(f"Time per round, ms, batch {batch.batch}", ("", *(name for name, _ in shown)), tuple(rows))


def vocabulary(plan: Plan, candidate: Candidate) -> str:
    """``8192 + 512 on_miss``, or ``full``."""
    rows = "full" if candidate.size == plan.target_vocab_size else str(candidate.size)
    return f"{rows} + {candidate.slots} {candidate.policy}" if candidate.slots else rows


def verdict(batch: BatchPlan) -> str:
    """What to do, and why, in one sentence."""
    said = f"{batch.verdict[0].upper()}{batch.verdict[1:]}: {batch.reason}."
    return said if batch.batch == 1 else f"Batch {batch.batch}. {said}"


def remarks(plan: Plan) -> list[str]:
    """What a reader must know beside the tables."""
    lines = [LEGEND]
    for batch in plan.batches:
        limits = batch.limits
        lines.append(
            f"What limits it: {SECTION_LABELS[limits.largest]}, {100 * limits.shares[limits.largest]:.0f} % of a "
            f"round; a head that took no time would reach {limits.free_head:.2f} times plain decoding."
        )
        ties = "; ".join(
            f"{_rows(tie.least, tie.most)}{f' + {tie.slots} {tie.policy}' if tie.slots else ''}, k = {tie.num_steps}"
            for tie in batch.near_ties
        )
        lines.append(f"Not told from the best by these numbers: {ties}.")
    return [*lines, *plan.remarks]


def _rows(least: int, most: int) -> str:
    return f"{least} rows" if least == most else f"{least} to {most} rows"


def figures(plan: Plan) -> list[Figure]:
    """Of each batch size: predicted speed over size for every k, and the round by section."""
    found = []
    for batch in plan.batches:
        several = len(plan.batches) > 1
        suffix, of = (f"_batch_{batch.batch}", f", batch {batch.batch}") if several else ("", "")
        found += [
            Figure(
                f"predicted_speed{suffix}",
                f"Predicted speed{of} (band: 95% at the choice's k)",
                partial(_draw_speed, batch),
            ),
            Figure(
                f"predicted_round{suffix}", f"Where a round's time goes, predicted{of}", partial(_draw_round, batch)
            ),
        ]
    return found


def plot(plan: Plan, path: Path) -> None:
    """Draw what :func:`figures` gives, side by side, into a picture file.

    Args:
        path: .png, .svg or .pdf.

    Raises:
        InputError: another kind of file, or one that cannot be written.
    """
    save_together(figures(plan), headline(plan), path)


def _draw_speed(batch: BatchPlan, axes) -> None:  # type: ignore[no-untyped-def]
    static = [c for c in batch.candidates if not c.slots]
    for number, k in enumerate(sorted({c.num_steps for c in static})):
        of_k = sorted((c for c in static if c.num_steps == k), key=lambda c: c.size)
        sizes, found = [c.size for c in of_k], [c.times_plain for c in of_k]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(sizes, [one.value for one in found], color=colour, linewidth=1.2, label=f"k = {k}")
        if k == batch.choice.num_steps:
            lows = [one.value if one.low is None else one.low for one in found]
            highs = [one.value if one.high is None else one.high for one in found]
            axes.fill_between(sizes, lows, highs, color=colour, alpha=0.15, linewidth=0)
    dynamic = [c for c in batch.candidates if c.slots]
    if dynamic:
        rows, speeds = [c.size + c.slots for c in dynamic], [c.times_plain.value for c in dynamic]
        axes.plot(rows, speeds, "o", color=GREY, markersize=3, label="with slots")
    choice = batch.choice
    at = choice.size + choice.slots
    axes.plot([at], [choice.times_plain.value], "*", color="black", markersize=9, label="choice")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    log_scale(axes, "x")
    axes.set_xlabel("rows of the draft vocabulary")
    axes.set_ylabel("predicted speed, times plain decoding")
    plain_axes(axes)
    legend(axes, columns=4)


def _draw_round(batch: BatchPlan, axes) -> None:  # type: ignore[no-untyped-def]
    shown = {f"full, k = {batch.full.num_steps}": batch.full, f"choice, k = {batch.choice.num_steps}": batch.choice}
    bottom = [0.0] * len(shown)
    for (section, label), colour in zip(SECTION_LABELS.items(), COLOURS, strict=True):
        heights = [candidate.sections_ms[section] for candidate in shown.values()]
        axes.bar(list(shown), heights, bottom=bottom, label=label, color=colour)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("ms per round")
    axes.tick_params(axis="x", labelsize=7)
    plain_axes(axes)
    legend(axes)
