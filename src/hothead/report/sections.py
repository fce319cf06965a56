"""What the report says, section by section: words, figures and tables from the evidence. Needs no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from hothead.bench.schema import DYNAMIC, STATIC, Machine, Results
from hothead.bench.stats import Estimate
from hothead.bench.summary import DECODING, WHOLE_ANSWER, summarize
from hothead.plan.schema import Plan
from hothead.ranking.ranking import Source, TokenRanking
from hothead.replay.curve import Interval
from hothead.report import compare, curve, engine, head, plan_summary, predicted
from hothead.report.compare import Table
from hothead.report.evidence import Evidence, ResultFile
from hothead.report.figures import COLOURS, Figure, legend, log_scale, plain_axes, spread_indices

COVERAGE_SIZES = tuple(1 << exponent for exponent in range(9, 18))


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        anchor: its name in links.
        title: what it is about.
        words: paragraphs before its figures and tables.
        notes: small print after them.
    """

    anchor: str
    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Highlight:
    """A figure for the top of the page, with what it is and how sure."""

    label: str
    value: str
    note: str = ""


def sections(evidence: Evidence) -> list[Section]:
    """Those that the evidence has something for, in the order of the argument."""
    return list(
        chain(
            choice_sections(evidence),
            coverage_sections(evidence),
            acceptance_sections(evidence),
            missed_sections(evidence),
            head_sections(evidence),
            prediction_sections(evidence),
            speed_sections(evidence),
            [provenance_section(evidence)],
        )
    )


def headline(evidence: Evidence) -> str:
    """Which models and prompts, as far as the files say."""
    for _, found in evidence.plans:
        return f"{found.target.name} + {found.draft.name}, {found.prompt_set.name}"
    for _, results in evidence.comparisons:
        return compare.headline(results)
    for _, curves in evidence.curves:
        return curve.headline(curves)
    for _, bench in evidence.heads:
        return f"{head.title(bench.heads[0])}; {head.ran_on(bench)}"
    return ", ".join(file.stem for file in evidence.files)


def highlights(evidence: Evidence) -> list[Highlight]:
    """The few figures that matter most, of the first file of each kind."""
    found = []
    for _, made in evidence.plans[:1]:
        batch = made.batches[0]
        rows = f"{batch.choice.size:,}" + (f" + {batch.choice.slots:,}" if batch.choice.slots else "")
        found += [
            Highlight("Verdict", batch.verdict, f"batch {batch.batch}"),
            Highlight("Rows" + (" + slots" if batch.choice.slots else ""), rows, f"of {made.target_vocab_size:,}"),
            Highlight("Drafted per round", f"k = {batch.choice.num_steps}"),
            Highlight("Predicted", f"{batch.choice.times_plain.value:.2f} x plain", _between(batch.choice.times_plain)),
            Highlight("Acceptance kept", f"{100 * batch.choice.kept:.1f} %", "of the full vocabulary's drafts"),
        ]
    for _, results in evidence.comparisons[:1]:
        for summary in summarize(results)[-1:]:
            for method in summary.methods:
                if method.method in (STATIC, DYNAMIC) and method.times_plain is not None:
                    value, note = f"{method.times_plain.value:.2f} x plain", _between(method.times_plain)
                    found.append(Highlight(f"Measured, {method.method}", value, note))
    return found


def _between(found: Interval | Estimate) -> str:
    return "" if found.low is None or found.high is None else f"95 %: {found.low:.2f} to {found.high:.2f}"


# --- the sections, in order -------------------------------------------------------------------


def choice_sections(evidence: Evidence) -> Iterator[Section]:
    """What to do, and why."""
    for file, made in evidence.plans:
        tables = chain.from_iterable(
            (plan_summary.kinds_table(made, batch), plan_summary.shares_table(batch)) for batch in made.batches
        )
        yield Section(
            f"choice-{file.stem}",
            _titled("The choice, and why", file, evidence.plans),
            tuple(plan_summary.verdict(batch) for batch in made.batches),
            tuple(plan_summary.figures(made)),
            tuple(tables),
            tuple(plan_summary.remarks(made)),
        )


def coverage_sections(evidence: Evidence) -> Iterator[Section]:
    """How much of the ranked text the most frequent tokens make up."""
    if not evidence.rankings:
        return
    rankings = {file.stem: ranking for file, ranking in evidence.rankings}
    notes = []
    for name, ranking in rankings.items():
        seen = int((ranking.counts > 0).sum())
        notes.append(
            f"{name}: {ranking.token_total:,} tokens counted; {seen:,} of the tokenizer's {ranking.vocab_size:,} "
            "occur. " + " ".join(_source(source) for source in ranking.sources)
        )
    yield Section(
        "coverage",
        "Which tokens are hot",
        ("Share of the counted tokens that the most frequent ones make up.",),
        (Figure("coverage", "Coverage of the ranked text", partial(_draw_coverage, rankings)),),
        (coverage_table(rankings),),
        tuple(notes),
    )


def acceptance_sections(evidence: Evidence) -> Iterator[Section]:
    """Acceptance of every size."""
    for file, curves in evidence.curves:
        yield Section(
            f"acceptance-{file.stem}",
            _titled("Acceptance of every size", file, evidence.curves),
            (curve.headline(curves),),
            tuple(curve.figures(curves)),
            tuple(curve.tables(curves)),
            tuple(curve.remarks(curves)),
        )


def missed_sections(evidence: Evidence) -> Iterator[Section]:
    """What small vocabularies lack: at the plan's size, or at a half, a quarter, ... of the rows."""
    for file, curves in evidence.curves:
        chosen = {batch.choice.size for _, made in evidence.plans for batch in made.batches}
        first = [m for m in curves.missed if m.ranking == curves.rankings[0].name]
        near = [
            max((m for m in first if m.size <= size), key=lambda m: m.size, default=None) for size in sorted(chosen)
        ]
        shown = list({m.size: m for m in near if m is not None}.values()) or first[-3:]
        if shown:
            yield Section(
                f"missed-{file.stem}",
                _titled("What a small vocabulary misses", file, evidence.curves),
                (
                    "The most frequent tokens of the answers that are outside the vocabulary. The draft cannot propose "
                    "them, so a round ends there; the target emits them all the same.",
                ),
                tables=tuple(curve.missed_table(missed) for missed in shown),
            )


def head_sections(evidence: Evidence) -> Iterator[Section]:
    """Time of the head, against the machine's limits."""
    for file, bench in evidence.heads:
        yield Section(
            f"head-{file.stem}",
            _titled("Time of the head", file, evidence.heads),
            ("; ".join(map(head.title, bench.heads)) + f"; {head.ran_on(bench)}.",),
            tuple(head.figures(bench)),
            tuple(head.tables(bench)),
            tuple(head.remarks(bench)),
        )


def prediction_sections(evidence: Evidence) -> Iterator[Section]:
    """The plan beside what was measured."""
    for file, results in evidence.comparisons:
        for _, made in evidence.plans:
            table, figure = predicted.table(made, results), predicted.figure(made, results)
            if table is not None and figure is not None:
                words = ("What the plan predicts for the methods of a real comparison, and what they measured.",)
                title = _titled("Predicted and measured speed-up", file, evidence.comparisons)
                yield Section(f"predicted-{file.stem}", title, words, (figure,), (table,))


def speed_sections(evidence: Evidence) -> Iterator[Section]:
    """Measured speed per task group, and where a round's time goes."""
    for file, results in evidence.comparisons:
        shown = engine if engine.has_peers(results) else compare  # other engines can be timed by whole answers only
        summaries = summarize(results, WHOLE_ANSWER if shown is engine else DECODING)
        tables = (shown.speed_table(summaries), compare.breakdown_table(summaries[-1])) if summaries else ()
        words = [compare.headline(results)]
        if not summaries:
            words.append("No complete block of answers yet: nothing to measure.")
        yield Section(
            f"speed-{file.stem}",
            _titled("Measured speed", file, evidence.comparisons),
            tuple(words),
            tuple(compare.figures(summaries)),
            tables,
            tuple(shown.remarks(results)),
        )


def provenance_section(evidence: Evidence) -> Section:
    """Which files, which versions, which machine."""
    files = [(file.name, file.kind, file.sha256[:16], *_made_with(file)) for file in evidence.files]
    columns = ("file", "what", "sha-256, first 16", "made by", "on", "models", "prompts")
    return Section(
        "provenance",
        "Versions and provenance",
        ("Everything above is made from these files alone.",),
        tables=(Table("Files", columns, tuple(files)),),
    )


# --- their parts ------------------------------------------------------------------------------


def coverage_table(rankings: dict[str, TokenRanking]) -> Table:
    """Coverage at standard sizes, a ranking a column."""
    most = max(ranking.vocab_size for ranking in rankings.values())
    sizes = [*(size for size in COVERAGE_SIZES if size < most), most]
    rows = [(f"{size:,}", *(f"{100 * found.coverage(size):.2f}" for found in rankings.values())) for size in sizes]
    return Table("Tokens covered, %", ("most frequent", *rankings), tuple(rows))


def _draw_coverage(rankings: dict[str, TokenRanking], axes) -> None:  # type: ignore[no-untyped-def]
    for number, (name, ranking) in enumerate(rankings.items()):
        covered = ranking.coverage_curve()
        shown = np.array(spread_indices(len(covered)))
        axes.plot(shown + 1, 100 * covered[shown], color=COLOURS[number % len(COLOURS)], linewidth=1.2, label=name)
    log_scale(axes, "x")
    axes.set_ylim(0, 102)
    axes.set_xlabel("most frequent tokens")
    axes.set_ylabel("% of the counted tokens")
    plain_axes(axes)
    legend(axes)


def _source(source: Source) -> str:
    names = ", ".join(source.names[:3]) + (f" and {len(source.names) - 3} more" if len(source.names) > 3 else "")
    weight = f" x {source.weight:g}" if source.weight != 1 else ""
    by = f", by {source.made_by}" if source.made_by else ""
    return f"From {names}: {source.tokens:,} tokens of {source.records:,} records ({source.counted}){weight}{by}."


def _titled(title: str, file: ResultFile, others: Sequence[tuple[ResultFile, object]]) -> str:
    """With the file's name where there are several of a kind."""
    return title if len(others) == 1 else f"{title}: {file.stem}"


def _made_with(file: ResultFile) -> tuple[str, str, str, str]:
    """Versions, machine, models and prompts of a result, as far as it has them."""
    about = file.value.header if isinstance(file.value, Results) else file.value
    if isinstance(about, TokenRanking):
        return "-", "-", f"tokenizer {about.tokenizer_fingerprint[:12]}", "-"
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    machine = about.times.machine if isinstance(about, Plan) else about.machine
    models = [getattr(about, name, None) for name in ("target", "draft")]
    named = [f"{m.name} ({m.fingerprint[:12]})" if m.fingerprint else m.name for m in models if m is not None]
    prompts = getattr(about, "prompt_set", None)
    asked = "-" if prompts is None else f"{prompts.name}, {prompts.prompts} ({prompts.digest[:12]})"
    return versions or "-", _machine(machine), ", ".join(named) or "-", asked


def _machine(machine: Machine | str) -> str:
    if isinstance(machine, str):
        return machine
    parts = [machine.accelerator, machine.cpu, f"{machine.cores} cores, {machine.threads} threads"]
    return ", ".join(part for part in (*parts, f"{machine.memory_gib:g} GiB") if part)
