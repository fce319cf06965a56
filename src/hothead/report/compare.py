"""What ``hothead compare`` prints and plots, made from a result file alone. Needs no torch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hothead.bench.schema import FULL, PLAIN, Answer, Failure, Results, Settings
from hothead.bench.stats import Estimate
from hothead.bench.summary import DECODING, OVERALL, Clock, GroupSummary, count_equality, summarize
from hothead.errors import InputError
from hothead.report.figures import COLOURS, GREY, Figure, check_plot_path, legend, plain_axes, save_together
from hothead.spans import LAYER_PARTS, PROFILE_LABELS, SECTION_LABELS, VERIFY_PARTS, WHOLE_LAYERS

LEGEND = (
    "tok/s: decoded tokens over decoding time, prefill apart. accept: tokens per verify pass, bonus token included. "
    "miss%: of 100 tokens, those outside the draft vocabulary. rows%: head rows copied for 100 tokens."
)


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def speed_table(summaries: Sequence[GroupSummary]) -> Table:
    """Per group and method: speed, what it gains, and why."""
    rows: list[tuple[str, ...]] = []
    for group in summaries:
        rows.append((f"{group.name} ({group.prompts})", *[""] * 6))
        for method in group.methods:
            is_plain = method.method == PLAIN
            rows.append(
                (
                    f"  {method.method}",
                    f"{method.tokens_per_s.value:.1f}",
                    estimate(method.times_plain),
                    estimate(method.times_full),
                    "-" if method.acceptance_length is None else f"{method.acceptance_length:.2f}",
                    "-" if is_plain else f"{method.misses_per_100:.1f}",
                    "-" if is_plain else f"{method.rows_copied_per_100:.0f}",
                )
            )
    columns = ("group (prompts)", "tok/s", "x plain, 95%", "x full, 95%", "accept", "miss%", "rows%")
    return Table("Decoding speed", columns, tuple(rows))


def breakdown_table(group: GroupSummary) -> Table:
    """As :func:`round_table`, and (apart from the round) the prefill."""
    methods = [method for method in group.methods if method.ms_per_round]
    rounds = round_table({method.method: method.ms_per_round for method in methods}, group.name)
    prefill = ("prefill", *(f"{method.prefill_ms:.0f}     " for method in methods))
    return Table(rounds.title, rounds.columns, (*rounds.rows, prefill))


def round_table(ms_by_method: Mapping[str, Mapping[str, float]], name: str) -> Table:
    """Milliseconds and share of a round, a section a row (profiled: a part of the pass too); then the round."""
    rounds_ms = [sum(ms.values()) for ms in ms_by_method.values()]
    rows = []
    for section, label in _labels(ms_by_method.values()).items():
        found = [ms.get(section, 0.0) for ms in ms_by_method.values()]
        cells = (
            f"{ms:.2f} {100 * ms / total:3.0f}%" if ms else "-" for ms, total in zip(found, rounds_ms, strict=True)
        )
        rows.append((label, *cells))
    rows.append(("round", *(f"{total:.2f} 100%" for total in rounds_ms)))
    return Table(f"Time per round, ms ({name})", ("", *ms_by_method), tuple(rows))


def _labels(rounds_ms: Collection[Mapping[str, float]]) -> Mapping[str, str]:
    """Of the parts that were told apart."""
    if not any(part in ms for ms in rounds_ms for part in VERIFY_PARTS):
        return SECTION_LABELS
    if any(ms.get(part) for ms in rounds_ms for part in LAYER_PARTS):
        return PROFILE_LABELS
    whole = PROFILE_LABELS | {"target_layers": WHOLE_LAYERS}
    return {section: label for section, label in whole.items() if section not in LAYER_PARTS}


def remarks(results: Results) -> list[str]:
    """What a reader must know beside the tables: texts, errors, and what makes the times doubtful."""
    failures = results.failures
    lines = [LEGEND] if results.answers else []
    summaries = summarize(results)
    if summaries and (repeats := spread(summaries[-1])) is not None:
        lines.append(repeats)
    lines += texts(results)
    if failures:
        first = failures[0]
        lines.append(f"Errors: {len(failures)} answers failed; first {place(first)}: {first.error}")
    return lines + circumstances(results)


def texts(results: Results) -> list[str]:
    """How the engine's texts compare with plain decoding's."""
    counts = count_equality(results.own_answers)
    if counts.sampled:
        return [f"Texts: sampled at temperature {results.header.settings.temperature}, so not compared."]
    if not counts.compared:
        return []
    return [
        f"Texts: {counts.equal} of {counts.compared} answers equal plain decoding's token by token; {counts.tied} "
        f"leave it at a tie of the two top logits in {results.header.dtype}; {counts.different} differ."
    ]


def circumstances(results: Results) -> list[str]:
    """What the run went through."""
    lines = []
    if results.dropped:
        lines.append("The file ends within a block; what is not complete is not counted.")
    if len(results.sessions) > 1:
        lines.append(f"Run in {len(results.sessions)} sessions; the dynamic vocabulary started anew in each.")
    cores = results.header.machine.cores
    busy = [s.load_1min for s in results.sessions if s.load_1min is not None and s.load_1min > cores / 2]
    if busy:
        lines.append(f"The machine was busy before the run (load {max(busy):.1f} on {cores} cores): times may be off.")
    return lines


def headline(results: Results) -> str:
    """One line: models, vocabulary, settings, machine."""
    header, settings = results.header, results.header.settings
    vocab = header.vocab
    parts = [
        header.target.name + ("" if header.draft is None else f" + {header.draft.name}"),
        f"vocabulary {vocab.size} of {vocab.target_vocab_size}" if vocab else "full vocabulary",
        _shape(settings),
        f"{header.prompt_set.name}: {header.prompt_set.prompts} prompts x {settings.repeats}",
        f"up to {settings.max_new_tokens} tokens, temperature {settings.temperature:g}",
        f"{header.dtype}, {header.machine.accelerator or header.machine.cpu}, {header.machine.threads} threads",
        *(["profiled"] if settings.profiled else []),
    ]
    return "; ".join(parts)


def _shape(settings: Settings) -> str:
    least = {"p_min": settings.draft_p_min, "verify_p_min": settings.verify_p_min}
    sure = "".join(f", {name} {value:g}" for name, value in least.items() if value)
    if settings.draft_topk == 1:
        return f"k = {settings.num_steps}{sure}"
    return f"trees of {settings.num_steps} levels, topk {settings.draft_topk}, {settings.num_draft_tokens} tokens{sure}"


def place(outcome: Answer | Failure) -> str:
    """Which answer this is."""
    return f"{outcome.method}, prompt {outcome.prompt_id}, turn {outcome.turn + 1}, repeat {outcome.repeat + 1}"


def estimate(value: Estimate | None) -> str:
    """``1.42 1.38-1.47``; ``-`` for none."""
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} {value.low:.2f}-{value.high:.2f}"


def spread(summary: GroupSummary) -> str | None:
    """How far the speed ratios of single repeats lie apart; None for one repeat."""
    ranges = [
        f"{m.method} {min(m.times_plain_by_repeat):.2f}-{max(m.times_plain_by_repeat):.2f}"
        for m in summary.methods
        if len(m.times_plain_by_repeat) > 1
    ]
    return f"Single repeats ({summary.name}), times plain: {', '.join(ranges)}." if ranges else None


def figures(summaries: Sequence[GroupSummary]) -> list[Figure]:
    """Speed ratios by group, and the round by section; nothing for nothing measured."""
    if not summaries:
        return []
    return [
        Figure("speed", "Speed by task (95% interval over prompts)", lambda axes: _draw_ratios(axes, summaries)),
        Figure("round", "Where a round's time goes", lambda axes: _draw_breakdown(axes, summaries[-1])),
    ]


def plot(results: Results, path: Path, clock: Clock = DECODING) -> None:
    """Draw what :func:`figures` gives, side by side, into ``path`` (.png, .svg or .pdf).

    Raises:
        InputError: nothing to draw, another kind of file, or one that cannot be written.
    """
    check_plot_path(path)
    found = figures(summarize(results, clock))
    if not found:
        raise InputError("no complete block of answers yet: nothing to plot")
    save_together(found, headline(results), path)


def _draw_ratios(axes, summaries: Sequence[GroupSummary]) -> None:  # type: ignore[no-untyped-def]
    methods = [method.method for method in summaries[-1].methods if method.method != PLAIN]
    width = 0.8 / max(1, len(methods))
    for number, name in enumerate(methods):
        found = [_ratio(name, group) for group in summaries]
        at = [group + (number - (len(methods) - 1) / 2) * width for group in range(len(summaries))]
        values = [ratio.value for ratio in found]
        errors = [
            [r.value - (r.low if r.low is not None else r.value) for r in found],
            [(r.high if r.high is not None else r.value) - r.value for r in found],
        ]
        colour = GREY if name == FULL else COLOURS[number % len(COLOURS)]
        axes.bar(at, values, width, yerr=errors, label=name, color=colour, capsize=2, error_kw={"linewidth": 0.8})
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    slanted = len(summaries) > 4
    names = [f"{group.name}{' ' if slanted else chr(10)}({group.prompts})" for group in summaries]
    axes.set_xticks(
        range(len(summaries)), names, fontsize=7, rotation=40 if slanted else 0, ha="right" if slanted else "center"
    )
    axes.set_ylabel("speed, times plain decoding")
    plain_axes(axes)
    legend(axes, columns=4, below=0.4 if slanted else 0.18)


def _ratio(name: str, group: GroupSummary) -> Estimate:
    """Against plain decoding; not a number, which is not drawn, for a method that did not answer this group."""
    found = next((m.times_plain for m in group.methods if m.method == name), None)
    return Estimate(float("nan")) if found is None else found


def _draw_breakdown(axes, group: GroupSummary) -> None:  # type: ignore[no-untyped-def]
    assert group.name == OVERALL
    methods = [method for method in group.methods if method.ms_per_round]
    names = [method.method for method in methods]
    bottom = [0.0] * len(names)
    for (section, label), colour in zip(SECTION_LABELS.items(), COLOURS, strict=True):
        parts = (section, *VERIFY_PARTS) if section == "target_verify" else (section,)
        heights = [sum(method.ms_per_round.get(part, 0.0) for part in parts) for method in methods]
        axes.bar(names, heights, bottom=bottom, label=label, color=colour)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("ms per round")
    axes.tick_params(axis="x", labelsize=7)
    plain_axes(axes)
    legend(axes)
