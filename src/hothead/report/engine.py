"""What ``hothead bench engine`` prints: our methods and other engines, timed by the whole answer. Needs no torch."""

from collections.abc import Sequence

from hothead.bench.schema import PEERS, Results
from hothead.bench.summary import WHOLE_ANSWER, GroupSummary, summarize
from hothead.report.compare import Table, circumstances, estimate, spread, texts

LEGEND = (
    "tok/s: all tokens of an answer over the time to have it, prefill included, for every method alike. x full: over "
    "the full draft vocabulary, in the same shape where it was run. accept: tokens per verify pass. same%: answers "
    "that are plain decoding's to the last token; other engines round otherwise."
)


def speed_table(summaries: Sequence[GroupSummary]) -> Table:
    """Per group and method: speed, and its ratio to plain decoding, to the full vocabulary, and of ours to it."""
    rows: list[tuple[str, ...]] = []
    for group in summaries:
        rows.append((f"{group.name} ({group.prompts})", *[""] * 6))
        for method in group.methods:
            rows.append(
                (
                    f"  {method.method}",
                    f"{method.tokens_per_s.value:.1f}",
                    estimate(method.times_plain),
                    estimate(method.times_full),
                    estimate(method.best_hot_times_it),
                    "-" if method.acceptance_length is None else f"{method.acceptance_length:.2f}",
                    "-" if method.same_text is None else f"{100 * method.same_text:.0f}",
                )
            )
    best = summaries[-1].best_hot if summaries else None
    ours = "best hot / it" if best is None else f"{best} / it"
    return Table(
        "Speed of whole answers",
        ("group (prompts)", "tok/s", "x plain", "x full", ours, "accept", "same%"),
        tuple(rows),
    )


def remarks(results: Results) -> list[str]:
    """Where we lose, what failed, how the others were run, and what makes the times doubtful."""
    summaries = summarize(results, WHOLE_ANSWER)
    lines = [LEGEND] if results.answers else []
    lines += losses(summaries)
    if summaries and (repeats := spread(summaries[-1])) is not None:
        lines.append(repeats)
    lines += texts(results)
    for name in results.header.settings.methods:
        failures = [failure for failure in results.failures if failure.method == name]
        if failures:
            lines.append(f"Errors: {name} failed {len(failures)} times, such as: {failures[0].error}")
    threads = results.header.machine.threads
    for name, words in results.header.peers.items():
        lines.append(f"{name}: {' '.join(words)}; {threads} threads.")
    return lines + circumstances(results)


def losses(summaries: Sequence[GroupSummary]) -> list[str]:
    """One line for each method that the best hot method is behind somewhere."""
    lines = []
    for name in dict.fromkeys(method.method for group in summaries for method in group.methods):
        behind = [
            f"{group.name} {estimate(method.best_hot_times_it)}"
            for group in summaries
            for method in group.methods
            if method.method == name and method.best_hot_times_it is not None and method.best_hot_times_it.value < 1
        ]
        if behind:
            lines.append(f"{summaries[-1].best_hot} is behind {name}: {', '.join(behind)}.")
    return lines


def has_peers(results: Results) -> bool:
    """Whether other engines were asked too."""
    return any(name in PEERS for name in results.header.settings.methods)
