"""What ``hothead curve`` prints and plots, made from a result file alone. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path

from hothead.files import atomic_path
from hothead.replay.curve import AcceptanceCurve, AcceptanceCurves, Interval, Series
from hothead.report.compare import COLOURS, GREY, Table, check_plot_path

LEGEND = (
    "accept: tokens per verify pass, bonus token included. vs full: difference to the full vocabulary on the same "
    "paths. kept%: accepted drafts per round as a share of the full vocabulary's. miss%: of 100 tokens, those outside "
    "the draft vocabulary. p1, p2, ...: share of the rounds whose first draft, first two drafts, ... were accepted."
)


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


def standard_sizes(curves: AcceptanceCurves) -> list[int]:
    """A handful of sizes for a table: powers of two that a vocabulary can have, and the full one."""
    powers = (1 << exponent for exponent in range(curves.sizes[-1].bit_length()))
    return [*(size for size in powers if size in curves.sizes[:-1]), curves.sizes[-1]]


def size_table(curves: AcceptanceCurves, curve: AcceptanceCurve) -> Table:
    """One curve at standard sizes."""
    rows = []
    for size in standard_sizes(curves):
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
    sizes = standard_sizes(curves)
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
    for size in standard_sizes(curves):
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
    if curves.skipped:
        lines.append(f"Skipped: {len(curves.skipped)} turns without an answer; first {curves.skipped[0]}.")
    return lines


def interval(found: Interval, form: str = ".3f") -> str:
    """``1.420 1.380-1.470``."""
    if found.low is None or found.high is None:
        return f"{found.value:{form}}"
    between = " to " if form.startswith("+") else "-"
    return f"{found.value:{form}} {found.low:{form}}{between}{found.high:{form}}"


def plot(curves: AcceptanceCurves, path: Path) -> None:
    """Draw acceptance length by ranking, its difference to the full vocabulary, and by task, into a picture file.

    Args:
        path: .png, .svg or .pdf.

    Raises:
        InputError: another kind of file, or one that cannot be written.
    """
    check_plot_path(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    k, names = curves.settings.num_steps[0], [ranking.name for ranking in curves.rankings]
    lengths, differences, tasks = figure.subplots(1, 3)
    for number, name in enumerate(names):
        curve, colour = curves.curve(name, k), COLOURS[number % len(COLOURS)]
        _draw(lengths, curves.sizes, curve.acceptance_length, name, colour)
        _draw(differences, curves.sizes, curve.difference, name, colour)
    for axes, value in ((lengths, "acceptance_length"), (differences, "difference")):
        dynamic = [d for d in curves.dynamic if (d.group, d.num_steps) == (curves.overall, k)]
        if dynamic:
            rows, points = [d.size + d.slots for d in dynamic], [getattr(d, value).value for d in dynamic]
            axes.plot(rows, points, "o", color=GREY, markersize=4, label="with slots")
    of_first = [curve for curve in curves.curves if (curve.ranking, curve.num_steps) == (names[0], k)]
    for number, curve in enumerate(of_first):
        colour = "black" if curve.group == curves.overall else COLOURS[number % len(COLOURS)]
        label = f"{curve.group} ({curve.prompts})"
        tasks.plot(curves.sizes, curve.acceptance_length.value, color=colour, linewidth=1.2, label=label)
    differences.axhline(0, color="black", linewidth=0.8, linestyle=":")
    lengths.set_title(f"Acceptance length, k = {k} (95% over prompts)", fontsize=9)
    differences.set_title("Difference to the full vocabulary (95%, paired)", fontsize=9)
    tasks.set_title(f"Acceptance length by task, {names[0]}", fontsize=9)
    for axes in (lengths, differences, tasks):
        axes.set_xscale("log")
        axes.set_xlabel("rows of the draft vocabulary")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.suptitle(headline(curves), fontsize=7)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=160)


def _draw(axes, sizes: Sequence[int], series: Series, label: str, colour: str) -> None:  # type: ignore[no-untyped-def]
    axes.plot(sizes, series.value, color=colour, linewidth=1.2, label=label)
    if series.low is not None and series.high is not None:
        axes.fill_between(sizes, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
