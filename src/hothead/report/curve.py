"""What ``hothead curve`` prints and plots, made from a result file alone. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path

from hothead.replay.curve import AcceptanceCurve, AcceptanceCurves, Interval, MissedToken, MissedTokens, Series
from hothead.report.compare import Table
from hothead.report.figures import COLOURS, GREY, Figure, legend, log_scale, plain_axes, save_together, spread_indices

LEGEND = (
    "accept: tokens per verify pass, bonus token included. vs full: difference to the full vocabulary on the same "
    "paths. kept%: accepted drafts per round as a share of the full vocabulary's. miss%: of 100 tokens, those outside "
    "the draft vocabulary. p1, p2, ...: share of the rounds whose first draft, first two drafts, ... were accepted."
)

ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def tables(curves: AcceptanceCurves) -> list[Table]:
    """Everything to print: for each ranking its sizes and groups at the first k, then the other k; then slots."""
    found = []
    for ranking in curves.rankings:
        found.append(size_table(curves, curves.curve(ranking.name)))
        if len(curves.groups) > 1:
            found.append(group_table(curves, ranking.name, curves.settings.num_steps[0]))
        if len(curves.settings.num_steps) > 1:
            found.append(steps_table(curves, ranking.name))
    return [*found, dynamic_table(curves)] if curves.dynamic else found


def size_table(curves: AcceptanceCurves, curve: AcceptanceCurve) -> Table:
    """One curve at standard sizes."""
    rows = []
    for size in curves.standard_sizes:
        at = curves.index(size)
        rows.append(
            (
                f"{size}",
                f"{100 * size / curves.sizes[-1]:.1f}",
                interval(curve.acceptance_length.at(at)),
                interval(curve.difference.at(at), "+.3f"),
                f"{100 * curve.kept.value[at]:.1f}",
                f"{100 * (1 - curve.coverage[at]):.1f}",
                " ".join(f"{rate[at]:.2f}" for rate in curve.acceptance_rate[:4]),
            )
        )
    rates = " ".join(f"p{i + 1}" for i in range(min(4, curve.num_steps)))
    columns = ("rows", "rows%", "accept, 95%", "vs full, 95%", "kept%", "miss%", rates)
    title = f"{curve.ranking}, k = {curve.num_steps}, {curve.group}: {curve.prompts} prompts, {curve.tokens} tokens"
    return Table(title, columns, tuple(rows))


def group_table(curves: AcceptanceCurves, ranking: str, num_steps: int) -> Table:
    """Acceptance length of every group at standard sizes."""
    sizes = curves.standard_sizes
    rows = []
    for curve in curves.curves:
        if (curve.ranking, curve.num_steps) == (ranking, num_steps):
            lengths = (f"{curve.acceptance_length.value[curves.index(size)]:.2f}" for size in sizes)
            rows.append((f"{curve.group} ({curve.prompts})", *lengths))
    return Table(f"Acceptance length, {ranking}, k = {num_steps}", ("group", *map(str, sizes)), tuple(rows))


def steps_table(curves: AcceptanceCurves, ranking: str) -> Table:
    """Acceptance length of every k at standard sizes, over all prompts."""
    lengths = [curves.curve(ranking, k).acceptance_length for k in curves.settings.num_steps]
    rows = []
    for size in curves.standard_sizes:
        rows.append((f"{size}", *(interval(length.at(curves.index(size))) for length in lengths)))
    columns = ("rows", *(f"k = {k}, 95%" for k in curves.settings.num_steps))
    return Table(f"Acceptance length, {ranking}, {curves.overall}", columns, tuple(rows))


def dynamic_table(curves: AcceptanceCurves) -> Table:
    """Dynamic vocabularies over all prompts, against their static rows alone and against the full vocabulary."""
    rows = []
    for found in curves.dynamic:
        if found.group != curves.overall:
            continue
        rows.append(
            (
                f"{found.ranking}, k = {found.num_steps}",
                f"{found.size}+{found.slots}",
                found.policy,
                interval(found.acceptance_length),
                interval(found.over_static, "+.3f"),
                interval(found.difference, "+.3f"),
                f"{100 * found.kept.value:.1f}",
                f"{100 * (1 - found.coverage):.1f}",
                f"{100 * found.rows_copied / found.tokens:.0f}",
            )
        )
    columns = (
        "ranking",
        "rows",
        "policy",
        "accept, 95%",
        "vs static, 95%",
        "vs full, 95%",
        "kept%",
        "miss%",
        "rows copied%",
    )
    return Table("Dynamic vocabularies (overall)", columns, tuple(rows))


def headline(curves: AcceptanceCurves) -> str:
    """One line: models, prompts, settings, and what it took."""
    settings = curves.settings
    drafting = f", {settings.draft_sampling} drafts" if settings.temperature else ""
    return "; ".join(
        (
            f"{curves.target.name} + {curves.draft.name}",
            f"{curves.prompt_set.name}: {curves.prompt_set.prompts} prompts",
            f"up to {settings.max_new_tokens} tokens, temperature {settings.temperature:g}{drafting}",
            f"{len(curves.sizes)} sizes from {curves.sizes[0]} to {curves.sizes[-1]}",
            curves.dtype,
        )
    )


def remarks(curves: AcceptanceCurves) -> list[str]:
    """What a reader must know beside the tables."""
    cost = curves.cost
    lines = [LEGEND]
    took = f"{cost.answers} answers ({cost.cached} passes from the cache): answering {cost.generate_s:.1f} s, "
    took += f"target and draft {cost.pass_s:.1f} s, their logits {cost.head_s:.1f} s, all sizes {cost.sizes_s:.1f} s"
    lines.append(f"{took}, dynamic {cost.dynamic_s:.1f} s." if curves.dynamic else f"{took}.")
    if cost.wall_s is not None and cost.cpu_s is not None:
        memory = "" if cost.peak_memory_gib is None else f", at most {cost.peak_memory_gib:.1f} GiB of memory"
        lines.append(f"In all {cost.wall_s / 60:.1f} minutes, {cost.cpu_s / 60:.1f} of CPU time{memory}.")
    if curves.skipped:
        lines.append(f"Skipped: {len(curves.skipped)} turns without an answer; first {curves.skipped[0]}.")
    return lines


def interval(found: Interval, form: str = ".3f") -> str:
    """``1.420 1.380-1.470``."""
    if found.low is None or found.high is None:
        return f"{found.value:{form}}"
    between = " to " if form.startswith("+") else "-"
    return f"{found.value:{form}} {found.low:{form}}{between}{found.high:{form}}"


def figures(curves: AcceptanceCurves) -> list[Figure]:
    """At the first k: acceptance length by ranking, its difference to the full vocabulary, and by task."""
    k, first = curves.settings.num_steps[0], curves.rankings[0].name
    found = [
        Figure(
            "acceptance",
            f"Acceptance length, k = {k} (95% over prompts)",
            lambda axes: _draw_rankings(axes, curves, "acceptance_length"),
        ),
        Figure(
            "acceptance_difference",
            "Difference to the full vocabulary (95%, paired)",
            lambda axes: _draw_rankings(axes, curves, "difference"),
        ),
        Figure("acceptance_by_task", f"Acceptance length by task, {first}", lambda axes: _draw_tasks(axes, curves)),
    ]
    return found if len(curves.groups) > 1 else found[:2]


def plot(curves: AcceptanceCurves, path: Path) -> None:
    """Draw what :func:`figures` gives, side by side, into ``path`` (.png, .svg or .pdf).

    Raises:
        InputError: another kind of file, or one that cannot be written.
    """
    save_together(figures(curves), headline(curves), path)


def _draw_rankings(axes, curves: AcceptanceCurves, value: str) -> None:  # type: ignore[no-untyped-def]
    k = curves.settings.num_steps[0]
    for number, ranking in enumerate(curves.rankings):
        series = getattr(curves.curve(ranking.name, k), value)
        _draw(axes, curves.sizes, series, ranking.name, COLOURS[number % len(COLOURS)])
    dynamic = [d for d in curves.dynamic if (d.group, d.num_steps) == (curves.overall, k)]
    if dynamic:
        rows, points = [d.size + d.slots for d in dynamic], [getattr(d, value).value for d in dynamic]
        axes.plot(rows, points, "o", color=GREY, markersize=4, label="with slots")
    if value == "difference":
        axes.axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("tokens per verify pass")
    _size_axis(axes)


def _draw_tasks(axes, curves: AcceptanceCurves) -> None:  # type: ignore[no-untyped-def]
    first = (curves.rankings[0].name, curves.settings.num_steps[0])
    for number, curve in enumerate(c for c in curves.curves if (c.ranking, c.num_steps) == first):
        colour = "black" if curve.group == curves.overall else COLOURS[number % len(COLOURS)]
        label, shown = f"{curve.group} ({curve.prompts})", spread_indices(len(curves.sizes))
        rows, lengths = ([values[i] for i in shown] for values in (curves.sizes, curve.acceptance_length.value))
        axes.plot(rows, lengths, color=colour, linewidth=1.2, label=label)
    axes.set_ylabel("tokens per verify pass")
    _size_axis(axes)


def _size_axis(axes) -> None:  # type: ignore[no-untyped-def]
    log_scale(axes, "x")
    axes.set_xlabel("rows of the draft vocabulary")
    plain_axes(axes)
    legend(axes)


def _draw(axes, sizes: Sequence[int], series: Series, label: str, colour: str) -> None:  # type: ignore[no-untyped-def]
    shown = spread_indices(len(sizes))
    rows = [sizes[i] for i in shown]
    axes.plot(rows, [series.value[i] for i in shown], color=colour, linewidth=1.2, label=label)
    if series.low is not None and series.high is not None:
        low, high = ([bound[i] for i in shown] for bound in (series.low, series.high))
        axes.fill_between(rows, low, high, color=colour, alpha=0.15, linewidth=0)


def missed_table(missed: MissedTokens) -> Table:
    """Examples of what a vocabulary lacks, in context."""
    rows = [(quoted(m.text), str(m.count), f"{m.before}[{m.text}]{m.after}") for m in map(one_line, missed.examples)]
    title = (
        f"Missed by {missed.size} rows of {missed.ranking}: {missed.tokens} tokens, {missed.distinct} different ones"
    )
    return Table(title, ("token", "times", "first seen in"), tuple(rows))


def one_line(missed: MissedToken) -> MissedToken:
    """With line breaks and tabs shown as escapes."""
    shown = {name: getattr(missed, name).translate(ESCAPES) for name in ("text", "before", "after")}
    return missed.model_copy(update=shown)


def quoted(text: str) -> str:
    """A token between quotes, so that its spaces are seen."""
    return f'"{text}"'
