"""From a result file to the numbers of a report: per task group and overall, per method. Needs no torch.

Only blocks in which every method answered count, so that all methods are measured on the same answers; prompts of
which plain decoding emitted a single token say nothing about decoding and are left out of rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hothead.bench.schema import FULL, PLAIN, Answer, Results
from hothead.bench.stats import Estimate, Sample, rate, rate_ratio

OVERALL = "overall"


@dataclass(frozen=True)
class MethodSummary:
    """One method on one group.

    Attributes:
        answers: how many, over turns and repeats.
        tokens_per_s: decoding speed, with the bootstrap interval over prompts.
        times_plain: speed over plain decoding's; None for plain itself.
        times_full: speed over that of the draft with its full vocabulary; None where that was not run.
        times_full_by_repeat: the same in each repeat alone: how much it moves when nothing changes but time.
        acceptance_length: tokens per verify pass, bonus token included; None for plain.
        misses_per_100: of 100 decoded tokens, how many the draft could not have proposed.
        rows_copied_per_100: LM head rows copied for 100 decoded tokens.
        prefill_ms: mean over answers; what a vocabulary does before the first token is in it.
        ms_per_round: mean, by section.
    """

    method: str
    answers: int
    tokens_per_s: Estimate
    times_plain: Estimate | None
    times_full: Estimate | None
    times_plain_by_repeat: tuple[float, ...]
    times_full_by_repeat: tuple[float, ...]
    acceptance_length: float | None
    misses_per_100: float
    rows_copied_per_100: float
    prefill_ms: float
    ms_per_round: dict[str, float]


@dataclass(frozen=True)
class GroupSummary:
    """A group of prompts (or all of them, under ``OVERALL``); ``prompts`` are those with something to measure."""

    name: str
    prompts: int
    methods: tuple[MethodSummary, ...]


@dataclass(frozen=True)
class EqualityCounts:
    """How many answers were compared with plain decoding's, and what came out."""

    equal: int = 0
    tied: int = 0
    different: int = 0
    sampled: int = 0

    @property
    def compared(self) -> int:
        return self.equal + self.tied + self.different


def summarize(results: Results) -> tuple[GroupSummary, ...]:
    """One summary a group, in the order of the file, then ``OVERALL``; empty if no block is usable."""
    blocks = [
        tuple(o for o in block if isinstance(o, Answer))
        for block in results.blocks.values()
        if all(isinstance(o, Answer) for o in block)
    ]
    measured = [block for block in blocks if all(answer.decoded_tokens > 0 for answer in block)]
    if not measured:
        return ()
    answers = [answer for block in measured for answer in block]
    names = list(dict.fromkeys(answer.group for answer in answers))
    groups = [_group(name, [a for a in answers if a.group == name], results) for name in names]
    return (*groups, _group(OVERALL, answers, results))


def count_equality(answers: Iterable[Answer]) -> EqualityCounts:
    """Count verdicts."""
    found = [answer.equality for answer in answers]
    return EqualityCounts(**{name: found.count(name) for name in ("equal", "tied", "different", "sampled")})


def _group(name: str, answers: Sequence[Answer], results: Results) -> GroupSummary:
    methods = results.header.settings.methods
    by_method = {method: [a for a in answers if a.method == method] for method in methods}
    summaries = tuple(_method(method, by_method, results.header.settings.repeats) for method in methods)
    return GroupSummary(name, len({answer.prompt_id for answer in answers}), summaries)


def _method(method: str, by_method: dict[str, list[Answer]], repeats: int) -> MethodSummary:
    answers = by_method[method]
    tokens = sum(a.decoded_tokens for a in answers)
    rounds = sum(a.rounds for a in answers)
    sections = {name: 0.0 for a in answers for name in a.sections_s}
    for answer in answers:
        for name, seconds in answer.sections_s.items():
            sections[name] += seconds
    against_plain, plain_by_repeat = _against(PLAIN, method, by_method, repeats)
    against_full, full_by_repeat = _against(FULL, method, by_method, repeats)
    return MethodSummary(
        method=method,
        answers=len(answers),
        tokens_per_s=rate(_sample(answers)),
        times_plain=against_plain,
        times_full=against_full,
        times_plain_by_repeat=plain_by_repeat,
        times_full_by_repeat=full_by_repeat,
        acceptance_length=None if method == PLAIN else tokens / rounds,
        misses_per_100=100 * sum(a.misses for a in answers) / tokens,
        rows_copied_per_100=100 * sum(a.rows_copied for a in answers) / tokens,
        prefill_ms=1000 * sum(a.prefill_s for a in answers) / len(answers),
        ms_per_round={name: 1000 * seconds / rounds for name, seconds in sections.items()},
    )


def _against(
    baseline: str, method: str, by_method: dict[str, list[Answer]], repeats: int
) -> tuple[Estimate | None, tuple[float, ...]]:
    if baseline not in by_method or baseline == method:
        return None, ()
    ours, theirs = by_method[method], by_method[baseline]
    by_repeat = []
    for repeat in range(repeats):
        pair = [[a for a in answers if a.repeat == repeat] for answers in (ours, theirs)]
        if pair[0]:
            by_repeat.append(_sample(pair[0]).rate / _sample(pair[1]).rate)
    return rate_ratio(_sample(ours), _sample(theirs)), tuple(by_repeat)


def _sample(answers: Sequence[Answer]) -> Sample:
    """Tokens and seconds by prompt, over its turns and repeats; prompts in the order of the file."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for answer in answers:
        tokens[answer.prompt_id] = tokens.get(answer.prompt_id, 0) + answer.decoded_tokens
        seconds[answer.prompt_id] = seconds.get(answer.prompt_id, 0.0) + answer.decode_s
    return Sample(np.array(list(tokens.values()), dtype=float), np.array(list(seconds.values())))
