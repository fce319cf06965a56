"""The draft's LM head alone, from ``hothead bench head``."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, between, percent, table

from hothead.bench.head_results import FULL, FULL_REFRESH, HEADS, SLOT_UPDATE, HeadSeries, HeadTiming, read_head_bench

FILE = "bench_head.json"


def by_batch(results: Path) -> Sequence[str]:
    """Times of the head by batch and rows, against the machine's limits; then what an update takes."""
    path = results / FILE
    if not path.exists():
        return ()
    bench = read_head_bench(path)
    blocks = ["## The head alone"]
    for head in bench.heads:
        blocks += [
            f"`results/{FILE}`. A head of {head.vocab_size:,} rows of {head.hidden_size}, {head.dtype}, "
            f"{bench.machine.accelerator or bench.machine.cpu}, {bench.machine.threads} threads; median microseconds "
            "of a call, and in brackets its time over the full head's in the same rounds. The batch is the number of "
            "hidden states in a call; drafting for one sequence calls it with 1.",
            _times(head),
            *_limits(head),
            _updates(head),
        ]
    return blocks


def _times(head: HeadSeries) -> str:
    keys = list(dict.fromkeys((t.variant, t.size, t.slots) for t in head.timings if t.variant in HEADS))
    found = {(t.variant, t.size, t.slots, t.batch): t for t in head.timings}
    rows = []
    for key in keys:
        of_batches = [found.get((*key, batch)) for batch in head.batches]
        named = next(timing for timing in of_batches if timing is not None)
        rows.append((named.name, f"{named.rows:,}", *(_time(timing) for timing in of_batches)))
    return table(("", "rows", *(f"batch {batch}" for batch in head.batches)), rows)


def _time(timing: HeadTiming | None) -> str:
    if timing is None:
        return MISSING
    microseconds = f"{1e6 * timing.median_s.value:,.0f}"
    return microseconds if timing.variant == FULL else f"{microseconds} ({timing.times_full.value:.2f})"


def _limits(head: HeadSeries) -> list[str]:
    """How near to the roofline."""
    if head.ceiling is None:
        return []
    found = [timing for timing in head.heads if timing.variant == FULL]
    rows = []
    for timing in found:
        work, seconds = head.work(timing), timing.median_s.value
        rows.append(
            (
                str(timing.batch),
                f"{work.intensity:.1f}",
                f"{work.bytes_moved / seconds / 1e9:.1f}",
                f"{work.flops / seconds / 1e9:,.0f}",
                percent(head.share_of_roof(timing), 0),
            )
        )
    columns = ("batch", "operations per byte", "GB/s", "GFLOP/s", "of the roofline, %")
    return [
        f"The full head against what this machine can do ({head.ceiling.read_bytes_per_s / 1e9:.1f} GB/s read, "
        f"{head.ceiling.gemm_flops_per_s / 1e9:,.0f} GFLOP/s multiplied in the same run). At batch 1 the weight's "
        "bytes are the time; from the batch where the operations are, a small vocabulary still saves its share of "
        "them:",
        table(columns, rows),
    ]


def _updates(head: HeadSeries) -> str:
    rows = [
        (timing.name, str(timing.rows), f"{1e6 * timing.median_s.value:,.0f}", between(timing.times_full, ".3f"))
        for timing in head.timings
        if timing.variant in (SLOT_UPDATE, FULL_REFRESH)
    ]
    return table(("a round's update, 4 tokens missed", "rows copied", "us", "times the full head, batch 1"), rows)
