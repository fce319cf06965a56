"""What ``hothead bench head`` prints and plots, made from a result file alone. Needs no torch."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from hothead.bench.head_results import FULL, SLOTS, STATIC, UPDATES, Ceiling, HeadBench, HeadSeries, HeadTiming
from hothead.bench.stats import Estimate
from hothead.report.compare import Table
from hothead.report.figures import COLOURS, Figure, legend, log_scale, plain_axes, save_together

LEGEND = (
    "GB/s and GFLOP/s: what a call achieves, by its least bytes s(HR + BH + BR) and its operations 2BHR. flop/byte: "
    "their ratio, and in brackets without the logits, BR. roof%: achieved, as a share of what the roofline allows; "
    "above 100 where the weights stay in a cache."
)
LINES = {STATIC: "-", SLOTS: "--"}


def tables(bench: HeadBench) -> list[Table]:
    """One a head: every variant at every batch."""
    return [head_table(head, bench) for head in bench.heads]


def head_table(head: HeadSeries, bench: HeadBench) -> Table:
    """One head: time of each variant, and what it makes of the machine."""
    rows = []
    for timing in head.timings:
        done = ("-", "-", "-", "-")
        if timing.variant not in UPDATES:
            work, share = head.work(timing), head.share_of_roof(timing)
            seconds = timing.median_s.value
            done = (
                f"{work.bytes_moved / seconds / 1e9:.1f}",
                f"{work.flops / seconds / 1e9:.1f}",
                f"{work.intensity:.2f} ({work.intensity_without_output:.2f})",
                "-" if share is None else f"{100 * share:.0f}",
            )
        cells = (timing.name, str(timing.batch), str(timing.rows), microseconds(timing.median_s))
        rows.append((*cells, ratio(timing.times_full), *done))
    columns = ("head", "batch", "rows", "us, 95%", "x full, 95%", "GB/s", "GFLOP/s", "flop/byte", "roof%")
    return Table(f"{title(head)}; {ran_on(bench)}", columns, tuple(rows))


def title(head: HeadSeries) -> str:
    """Which head."""
    weights = f", weights of {head.weights}" if head.weights not in ("", "random") else ""
    return f"LM head {head.vocab_size} x {head.hidden_size}, {head.dtype}{weights}"


def ran_on(bench: HeadBench) -> str:
    """The machine, in a few words."""
    return f"{bench.machine.accelerator or bench.machine.cpu}, {bench.machine.threads} threads"


def remarks(bench: HeadBench) -> list[str]:
    """What a reader must know beside the tables."""
    lines = [LEGEND]
    for head in unique_ceilings(bench):
        lines.append(f"This machine, {head.dtype}: {ceiling_text(head)}.")
    rounds = [timing.rounds for head in bench.heads for timing in head.timings]
    if min(rounds) < bench.config.repeats:
        lines.append(
            f"Rounds ended after {bench.config.max_s:g} s a batch: {min(rounds)} to {max(rounds)} of "
            f"{bench.config.repeats}."
        )
    return lines


def unique_ceilings(bench: HeadBench) -> list[HeadSeries]:
    """A head for each dtype of which there is a ceiling."""
    return list({head.dtype: head for head in bench.heads if head.ceiling is not None}.values())


def ceiling_text(head: HeadSeries) -> str:
    """The two ceilings, in words."""
    assert head.ceiling is not None  # as unique_ceilings gives them
    found = head.ceiling
    return (
        f"reads {found.read_bytes_per_s / 1e9:.1f} GB/s ({found.buffer_bytes / 2**20:.0f} MiB), multiplies "
        f"{found.gemm_size} x {found.gemm_size} matrices at {found.gemm_flops_per_s / 1e9:.0f} GFLOP/s"
    )


def microseconds(seconds: Estimate) -> str:
    """``208 205-211``."""
    if seconds.low is None or seconds.high is None:
        return f"{1e6 * seconds.value:.0f}"
    return f"{1e6 * seconds.value:.0f} {1e6 * seconds.low:.0f}-{1e6 * seconds.high:.0f}"


def ratio(found: Estimate) -> str:
    """``0.075 0.074-0.076``."""
    if found.low is None or found.high is None:
        return f"{found.value:.3f}"
    return f"{found.value:.3f} {found.low:.3f}-{found.high:.3f}"


def figures(bench: HeadBench) -> list[Figure]:
    """Of each head: time and speed-up over rows, speed-up over batch (of several), roofline (with a ceiling)."""
    found = []
    for head in bench.heads:
        suffix = "" if len(bench.heads) == 1 else f"_{head.vocab_size}x{head.hidden_size}_{head.dtype}"
        of = "" if len(bench.heads) == 1 else f", {head.vocab_size} x {head.hidden_size} {head.dtype}"
        found.append(Figure(f"head_time{suffix}", f"Time of the head by rows{of}", partial(_draw_time, head)))
        found.append(
            Figure(f"head_speedup{suffix}", f"Speed-up of the head by rows{of}", partial(_draw_speedup_by_rows, head))
        )
        if len(head.batches) > 1:
            found.append(
                Figure(
                    f"head_speedup_by_batch{suffix}",
                    f"Speed-up of the head by batch{of}",
                    partial(_draw_speedup_by_batch, head),
                )
            )
        if head.ceiling is not None:
            found.append(Figure(f"roofline{suffix}", f"Roofline{of}", partial(_draw_roofline, head, head.ceiling)))
    return found


def plot(bench: HeadBench, path: Path) -> None:
    """Draw what :func:`figures` gives, side by side, into ``path`` (.png, .svg or .pdf).

    Raises:
        InputError: another kind of file, or one that cannot be written.
    """
    save_together(figures(bench), "; ".join(map(title, bench.heads)) + f"; {ran_on(bench)}", path)


def _at(head: HeadSeries, batch: int, variants: Iterable[str]) -> list[HeadTiming]:
    found = [t for t in head.timings if t.batch == batch and t.variant in variants]
    return sorted(found, key=lambda timing: timing.rows)


def _draw_time(head: HeadSeries, axes) -> None:  # type: ignore[no-untyped-def]
    for number, batch in enumerate(head.batches):
        colour = COLOURS[number % len(COLOURS)]
        timings = _at(head, batch, (FULL, STATIC))
        _band(axes, [t.rows for t in timings], [t.median_s for t in timings], 1e6, f"batch {batch}", colour)
        slots = _at(head, batch, (SLOTS,))
        _points(axes, [t.rows for t in slots], [1e6 * t.median_s.value for t in slots], number, colour)
    log_scale(axes, "y")
    axes.set_ylabel("microseconds a call")
    _rows_axis(axes)


def _draw_speedup_by_rows(head: HeadSeries, axes) -> None:  # type: ignore[no-untyped-def]
    for number, batch in enumerate(head.batches):
        colour = COLOURS[number % len(COLOURS)]
        timings = _at(head, batch, (FULL, STATIC))
        speedups = [inverse(t.times_full) for t in timings]
        _band(axes, [t.rows for t in timings], speedups, 1, f"batch {batch}", colour)
        slots = _at(head, batch, (SLOTS,))
        _points(axes, [t.rows for t in slots], [1 / t.times_full.value for t in slots], number, colour)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("times the full head's speed")
    _rows_axis(axes)


def _draw_speedup_by_batch(head: HeadSeries, axes) -> None:  # type: ignore[no-untyped-def]
    keys = dict.fromkeys((t.variant, t.size) for t in head.timings if t.variant in LINES)
    sizes = list(dict.fromkeys(size for _, size in keys))
    for variant, size in keys:
        found = [t for t in head.timings if (t.variant, t.size) == (variant, size)]
        colour = COLOURS[sizes.index(size) % len(COLOURS)]
        speedups = [1 / t.times_full.value for t in found]
        batches = [t.batch for t in found]
        axes.plot(batches, speedups, LINES[variant], marker=".", color=colour, linewidth=1.2, label=found[0].name)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(head.batches, [str(batch) for batch in head.batches], fontsize=7)
    axes.set_xlabel("batch, hidden states a call")
    axes.set_ylabel("times the full head's speed")
    plain_axes(axes)
    legend(axes, columns=2)


def _draw_roofline(head: HeadSeries, ceiling: Ceiling, axes) -> None:  # type: ignore[no-untyped-def]
    ridge = ceiling.gemm_flops_per_s / ceiling.read_bytes_per_s
    intensities = [head.work(timing).intensity for timing in head.heads]
    left, right = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
    slope = [left * ceiling.read_bytes_per_s / 1e9, ceiling.gemm_flops_per_s / 1e9]
    axes.plot([left, ridge, right], [*slope, slope[1]], color="black", linewidth=1.2)
    keys = [(FULL, head.vocab_size), *dict.fromkeys((t.variant, t.size) for t in head.heads if t.variant == STATIC)]
    for number, key in enumerate(keys):
        found = [t for t in head.heads if (t.variant, t.size) == key]
        reached = [head.work(t).flops / t.median_s.value / 1e9 for t in found]
        at = [head.work(t).intensity for t in found]
        axes.plot(
            at, reached, "o-", color=COLOURS[number % len(COLOURS)], markersize=4, linewidth=0.8, label=found[0].name
        )
    log_scale(axes, "x")
    log_scale(axes, "y")
    axes.set_xlabel("operations per byte, 2BHR / s(HR + BH + BR)")
    axes.set_ylabel("GFLOP/s")
    plain_axes(axes)
    legend(axes)


def inverse(found: Estimate) -> Estimate:
    """Of a time's ratio, that of the speeds."""
    if found.low is None or found.high is None:
        return Estimate(1 / found.value)
    return Estimate(1 / found.value, 1 / found.high, 1 / found.low)


def _band(  # type: ignore[no-untyped-def]
    axes, rows: Sequence[int], values: Sequence[Estimate], factor: float, label: str, colour: str
) -> None:
    axes.plot(rows, [factor * v.value for v in values], ".-", color=colour, linewidth=1.2, label=label)
    low = [factor * (v.value if v.low is None else v.low) for v in values]
    high = [factor * (v.value if v.high is None else v.high) for v in values]
    axes.fill_between(rows, low, high, color=colour, alpha=0.15, linewidth=0)


def _points(axes, rows: Sequence[int], values: Sequence[float], number: int, colour: str) -> None:  # type: ignore[no-untyped-def]
    axes.plot(rows, values, "o", fillstyle="none", color=colour, markersize=5, label=None if number else "with slots")


def _rows_axis(axes) -> None:  # type: ignore[no-untyped-def]
    log_scale(axes, "x")
    axes.set_xlabel("rows read")
    plain_axes(axes)
    legend(axes)
