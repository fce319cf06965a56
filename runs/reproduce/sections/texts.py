"""Is the text plain decoding's? From ``hothead compare``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from layout import MISSING, table

from hothead.bench.schema import DYNAMIC, Answer, read_results
from hothead.bench.summary import count_equality

FLOAT32 = "equality_float32_*.jsonl"
BFLOAT16 = "spec_bench_bf16.jsonl"


def in_float32(results: Path) -> Sequence[str]:
    """Which answers are plain decoding's, by method, where nothing counts as a tie."""
    paths = sorted(results.glob(FLOAT32))
    if not paths:
        return ()
    runs = [read_results(path) for path in paths]
    settings, prompts = runs[0].header.settings, sum(run.header.prompt_set.prompts for run in runs)
    rows = []
    for method in settings.methods[1:]:
        answers = [answer for run in runs for answer in run.answers if answer.method == method]
        counts, tokens = count_equality(answers), sum(answer.new_tokens for answer in answers)
        cells = (counts.compared, tokens, counts.equal, counts.tied, counts.different)
        rows.append((method, *(f"{cell:,}" for cell in cells)))
    files = ", ".join(f"`results/{path.name}`" for path in paths)
    return (
        f"## The same text, {runs[0].header.dtype}",
        f"{files}. {prompts} prompts, all turns, up to {settings.max_new_tokens} tokens; compared with plain "
        "decoding's token by token, and nothing counts as a tie.",
        table(("", "answers", "tokens", "equal", "tied", "different"), rows),
    )


def where_bfloat16_parts(results: Path) -> Sequence[str]:
    """The differences in bf16, one by one: how far apart the two tokens' logits were."""
    path = results / BFLOAT16
    if not path.exists():
        return ()
    answers = read_results(path).answers
    parted, counts = [answer for answer in answers if answer.difference is not None], count_equality(answers)
    if not parted:
        return (
            "## The same text, bfloat16",
            f"`results/{BFLOAT16}`. With compiled layers {counts.equal} of {counts.compared} answers are plain "
            "decoding's token by token: a pass gives the same bits however many tokens it has.",
        )
    gaps = [abs(gap) for answer in parted for gap in _gaps(answer) if gap is not None]
    listed = [answer for answer in parted if (answer.method, answer.repeat) == (DYNAMIC, 0)]
    columns = ("prompt", "turn", "verdict", "position", "gap, plain's passes", "gap, its own", "tie below")
    return (
        "## Where bf16 parts from plain decoding",
        f"`results/{BFLOAT16}`. {counts.equal} of {counts.compared} answers are plain decoding's, {counts.tied} leave "
        f"it at a tie of the two top logits, {counts.different} elsewhere. First differences (those of dynamic shown): "
        "the gap is the emitted token's logit less the other method's token's, in the passes that each method made; "
        f"over all methods the median gap is {np.median(gaps):.3f} and the largest {max(gaps):.3f}.",
        table(columns, [_parting(answer) for answer in listed]),
    )


def _gaps(answer: Answer) -> tuple[float | None, float | None]:
    assert answer.difference is not None
    return answer.difference.plain_gap, answer.difference.gap


def _parting(answer: Answer) -> tuple[str, ...]:
    assert answer.difference is not None
    gaps = (MISSING if gap is None else f"{gap:.3f}" for gap in _gaps(answer))
    place = (answer.prompt_id, str(answer.turn + 1), answer.equality, str(answer.difference.position))
    return (*place, *gaps, f"{answer.difference.tolerance:.3f}")
