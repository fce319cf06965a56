"""Acceptance of every draft vocabulary size, from ``hothead curve``."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, between, percent, table
from published import ACCEPTANCE_BY_PRUNED, PRUNED_ON, RETAINED_BY_ROWS, RETAINED_ON, RETAINED_ROWS

from hothead.replay.curve import AcceptanceCurves, Interval, read_curves

SPEC_BENCH = "curve_spec_bench.json"
TEMPERATURES = "curve_temperature_*.json"
MT_BENCH = "mt_bench"
PRUNED_SHARES = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99)


def by_pruned_share(results: Path) -> Sequence[str]:
    """Acceptance length against the share of rows left out, at every temperature measured."""
    files = _files(results)
    if not files:
        return ()
    all_curves = [read_curves(path) for path in files]
    columns = ["rows left out, %", "rows kept", f"published: {PRUNED_ON}"]
    columns += [f"{name}, T = {_temperature(curves)}" for curves in all_curves for name in (MT_BENCH, "all tasks")]
    rows = []
    for pruned in PRUNED_SHARES:
        at = [curves.index(round((1 - pruned) * curves.sizes[-1])) for curves in all_curves]
        published = ACCEPTANCE_BY_PRUNED.get(pruned)
        ours = [
            between(curves.curve(group=group).acceptance_length.at(index))
            for curves, index in zip(all_curves, at, strict=True)
            for group in (MT_BENCH, None)
        ]
        kept = f"{all_curves[0].sizes[at[0]]:,}"
        rows.append((f"{100 * pruned:.0f}", kept, f"{published:.2f}" if published else MISSING, *ours))
    prompts = ", ".join(f"{curves.prompt_set.prompts} at T = {_temperature(curves)}" for curves in all_curves)
    return (
        "## Acceptance length against the rows left out",
        f"{_named(files)}. k = {all_curves[0].settings.num_steps[0]}, up to {all_curves[0].settings.max_new_tokens} "
        f"tokens an answer, {all_curves[0].dtype}; prompts: {prompts}. Emitted tokens per verify pass, the bonus token "
        "included; above temperature 0 drafts are sampled and accepted by rejection sampling. All sizes share the "
        "same answers.",
        table(columns, rows),
        "The shape is the published one: half of the rows cost next to nothing, three quarters a few per cent, and the "
        "loss comes with the last per cents. Our small draft guesses right less often, so its lengths are lower "
        "throughout; its vocabulary of 49,152 is smaller too, so the same share leaves fewer rows.",
    )


def retained(results: Path) -> Sequence[str]:
    """Acceptance as a share of the full vocabulary's, by rows."""
    path = results / SPEC_BENCH
    if not path.exists():
        return ()
    curves = read_curves(path)
    curve, total = curves.curve(), curves.sizes[-1]
    full = curve.acceptance_length.value[-1]
    rows = []
    for published_rows, published in RETAINED_BY_ROWS.items():
        at = curves.index(round(total * published_rows / RETAINED_ROWS))
        share = curve.acceptance_length.value[at] / full
        rows.append(
            (
                f"{percent(curves.sizes[at] / total)}",
                f"{published_rows // 1024}k",
                percent(published),
                f"{curves.sizes[at]:,}",
                percent(share),
                between(_in_percent(curve.kept.at(at)), ".1f"),
                f"{percent(1 - curve.coverage[at])}",
            )
        )
    columns = (
        "rows, % of all",
        "rows",
        f"published: {RETAINED_ON}, %",
        "our rows",
        "ours, %",
        "accepted drafts kept, %",
        "tokens missed, %",
    )
    return (
        "## Acceptance kept by size",
        f"`results/{SPEC_BENCH}`. All of Spec-Bench, greedy, k = {curve.num_steps}. The published share is of "
        "acceptance lengths, L / L_full, and so is ours beside it; the column after that leaves the bonus token out, "
        "which is always there: (L - 1) / (L_full - 1).",
        table(columns, rows),
        "Ours keep more at every share: the ranking is counted on the target's own answers, where the published one "
        "was counted on web text, and a small model's answers use fewer words.",
    )


def by_task(results: Path) -> Sequence[str]:
    """Acceptance length of each task group at some sizes, and for every k."""
    path = results / SPEC_BENCH
    if not path.exists():
        return ()
    curves = read_curves(path)
    ratios = (1.0, 0.25, 0.10)
    at = [curves.index(round(ratio * curves.sizes[-1])) for ratio in ratios]
    rows = []
    for group in curves.groups:
        of_k = [curves.curve(num_steps=k, group=group) for k in sorted(curves.settings.num_steps)]
        first = curves.curve(group=group)
        lengths = [between(first.acceptance_length.at(index)) for index in at]
        others = [f"{curve.acceptance_length.value[-1]:.2f}" for curve in of_k]
        rows.append((group, str(first.prompts), f"{first.tokens:,}", *lengths, *others))
    k = curves.settings.num_steps[0]
    columns = ["group", "prompts", "tokens"]
    columns += [f"k = {k}, {'all' if ratio == 1 else f'{100 * ratio:.0f} % of the'} rows" for ratio in ratios]
    columns += [f"k = {each}, all rows" for each in sorted(curves.settings.num_steps)]
    return (
        "## Acceptance length by task",
        f"`results/{SPEC_BENCH}`. Greedy, up to {curves.settings.max_new_tokens} tokens an answer; static "
        "vocabularies.",
        table(columns, rows),
    )


def what_it_took(results: Path) -> Sequence[str]:
    """Time and memory of measuring all sizes."""
    files = [path for path in _files(results) if read_curves(path).cost.wall_s is not None]
    if not files:
        return ()
    rows = [(f"`{path.name}`", *_cost(read_curves(path))) for path in files]
    columns = (
        "file",
        "prompts",
        "sizes",
        "answering, s",
        "pass of target and draft, s",
        "its logits, s",
        "all sizes, s",
        "times the pass",
        "slots, s",
        "in all, minutes",
        "CPU minutes",
        "peak memory, GiB",
        "threads",
    )
    return (
        "## What measuring all sizes takes",
        "One pass of target and draft over the answers serves every size; `times the pass` is the pass with all sizes "
        "over the pass alone, its full-vocabulary logits in both. Answers that were on disk already took no time.",
        table(columns, rows),
    )


def _cost(curves: AcceptanceCurves) -> tuple[str, ...]:
    cost = curves.cost
    alone = cost.pass_s + cost.head_s
    times = f"{(alone + cost.sizes_s) / alone:.2f}" if cost.cached < cost.answers else MISSING
    memory = MISSING if cost.peak_memory_gib is None else f"{cost.peak_memory_gib:.1f}"
    seconds = (cost.generate_s, cost.pass_s, cost.head_s, cost.sizes_s)
    minutes = ((found or 0.0) / 60 for found in (cost.wall_s, cost.cpu_s))
    return (
        str(curves.prompt_set.prompts),
        str(len(curves.sizes)),
        *(f"{found:.0f}" for found in seconds),
        times,
        f"{cost.dynamic_s:.0f}" if curves.dynamic else MISSING,
        *(f"{found:.1f}" for found in minutes),
        memory,
        str(curves.machine.threads),
    )


def _files(results: Path) -> list[Path]:
    """Greedy first, then by temperature."""
    greedy = results / SPEC_BENCH
    return [*([greedy] if greedy.exists() else []), *sorted(results.glob(TEMPERATURES))]


def _named(files: Sequence[Path]) -> str:
    return ", ".join(f"`results/{path.name}`" for path in files)


def _temperature(curves: AcceptanceCurves) -> str:
    return f"{curves.settings.temperature:g}"


def _in_percent(found: Interval) -> Interval:
    scaled = (None if bound is None else 100 * bound for bound in (found.low, found.high))
    return Interval(value=100 * found.value, low=next(scaled), high=next(scaled))
