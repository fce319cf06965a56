"""From a result file to the numbers of a report: per task group and overall, per method. Needs no torch.

Only blocks in which every method of the engine answered count, so that all of them are measured on the same answers;
prompts of which plain decoding emitted a single token say nothing about decoding and are left out of rates. Other
engines may lack answers: a ratio is always taken over the answers that both sides have.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hothead.bench.methods import full_of, is_hot
from hothead.bench.schema import ASSISTED, LOOKUP, PEERS, PLAIN, VLLM_DRAFT, Answer, Results
from hothead.bench.stats import Estimate, Sample, rate, rate_ratio

OVERALL = "overall"


@dataclass(frozen=True)
class Clock:
    """What counts as tokens, and what as the time they took."""

    tokens: Callable[[Answer], int]
    seconds: Callable[[Answer], float]


# Decoding alone; or the whole answer, prefill and first token included, which every engine can be timed by.
DECODING = Clock(lambda answer: answer.decoded_tokens, lambda answer: answer.decode_s)
WHOLE_ANSWER = Clock(
    lambda answer: answer.new_tokens,
    lambda answer: answer.prefill_s + answer.decode_s if answer.answer_s is None else answer.answer_s,
)


@dataclass(frozen=True)
class MethodSummary:
    """One method on one group.

    Attributes:
        answers: how many, over turns and repeats.
        tokens_per_s: speed by the clock that was asked for, with the bootstrap interval over prompts.
        times_plain: speed over plain decoding's; None for plain itself.
        times_full: speed over that of the draft with its full vocabulary, in the same shape if that was run; None
            where none was.
        times_full_by_repeat: the same in each repeat alone: how much it moves when nothing changes but time.
        acceptance_length: tokens per verify pass, bonus token included; None for what does not draft.
        misses_per_100: of 100 decoded tokens, how many the draft could not have proposed.
        rows_copied_per_100: LM head rows copied for 100 decoded tokens.
        prefill_ms: mean over answers; what a vocabulary does before the first token is in it.
        ms_per_round: mean, by section.
        best_hot_times_it: speed of the run's fastest hot method over this one's; None for hot methods.
        same_text: share of its answers that are plain decoding's to the last token.
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
    best_hot_times_it: Estimate | None = None
    same_text: float | None = None


@dataclass(frozen=True)
class GroupSummary:
    """A group of prompts (or all of them, under ``OVERALL``).

    Attributes:
        prompts: those with something to measure.
        methods: those that answered any of them, in the order of the run.
        best_hot: the hot method that is fastest over all groups, so that no group picks its own.
    """

    name: str
    prompts: int
    methods: tuple[MethodSummary, ...]
    best_hot: str | None = None


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


def summarize(results: Results, clock: Clock = DECODING) -> tuple[GroupSummary, ...]:
    """One summary a group, in the order of the file, then ``OVERALL``; empty if no block is usable."""
    measured = _measured(results)
    if not measured:
        return ()
    hot = [name for name in results.header.settings.methods if is_hot(name)]
    rates = {name: _sample([a for a in measured if a.method == name], clock).rate for name in hot}
    best_hot = max(rates, key=rates.__getitem__, default=None)
    names = list(dict.fromkeys(answer.group for answer in measured))
    groups = [_group(name, [a for a in measured if a.group == name], results, clock, best_hot) for name in names]
    return (*groups, _group(OVERALL, measured, results, clock, best_hot))


def times_faster(results: Results, method: str, baseline: str, clock: Clock = DECODING) -> Estimate | None:
    """How many times the baseline's speed ``method`` reaches over all groups; None if no answer is of both."""
    measured = _measured(results)
    by_method = {name: [a for a in measured if a.method == name] for name in (method, baseline)}
    return _against(baseline, method, by_method, 1, clock)[0]


def _measured(results: Results) -> list[Answer]:
    """Answers of the blocks in which all our methods emitted something to measure."""
    measured: list[Answer] = []
    for block in results.blocks.values():
        answers = [outcome for outcome in block if isinstance(outcome, Answer) and outcome.decoded_tokens > 0]
        answered = {answer.method for answer in answers}
        if all(outcome.method in answered for outcome in block if outcome.method not in PEERS):
            measured += answers
    return measured


def count_equality(answers: Iterable[Answer]) -> EqualityCounts:
    """Count verdicts."""
    found = [answer.equality for answer in answers]
    return EqualityCounts(**{name: found.count(name) for name in ("equal", "tied", "different", "sampled")})


def _group(name: str, answers: Sequence[Answer], results: Results, clock: Clock, best_hot: str | None) -> GroupSummary:
    settings = results.header.settings
    by_method = {method: [a for a in answers if a.method == method] for method in settings.methods}
    by_method = {method: found for method, found in by_method.items() if found}
    summaries = tuple(_method(method, by_method, settings.repeats, clock, best_hot) for method in by_method)
    return GroupSummary(name, len({answer.prompt_id for answer in answers}), summaries, best_hot)


def _method(
    method: str, by_method: dict[str, list[Answer]], repeats: int, clock: Clock, best_hot: str | None
) -> MethodSummary:
    answers = by_method[method]
    tokens = sum(a.decoded_tokens for a in answers)
    rounds = sum(a.rounds for a in answers)
    sections = {name: 0.0 for a in answers for name in a.sections_s}
    for answer in answers:
        for name, seconds in answer.sections_s.items():
            sections[name] += seconds
    against_plain, plain_by_repeat = _against(PLAIN, method, by_method, repeats, clock)
    against_full, full_by_repeat = _against(full_of(method, list(by_method)), method, by_method, repeats, clock)
    ratio_of_hot = None
    if best_hot is not None and not is_hot(method):
        ratio_of_hot, _ = _against(method, best_hot, by_method, 1, clock)
    drafts = method in (ASSISTED, LOOKUP, VLLM_DRAFT) or method not in (PLAIN, *PEERS)
    compared = [a for a in answers if a.equality not in ("reference", "sampled")]
    return MethodSummary(
        method=method,
        answers=len(answers),
        tokens_per_s=rate(_sample(answers, clock)),
        times_plain=against_plain,
        times_full=against_full,
        times_plain_by_repeat=plain_by_repeat,
        times_full_by_repeat=full_by_repeat,
        acceptance_length=tokens / rounds if drafts and rounds else None,
        misses_per_100=100 * sum(a.misses for a in answers) / tokens,
        rows_copied_per_100=100 * sum(a.rows_copied for a in answers) / tokens,
        prefill_ms=1000 * sum(a.prefill_s for a in answers) / len(answers),
        ms_per_round={name: 1000 * seconds / rounds for name, seconds in sections.items()},
        best_hot_times_it=ratio_of_hot,
        same_text=sum(a.equality == "equal" for a in compared) / len(compared) if compared else None,
    )


def _against(
    baseline: str | None, method: str, by_method: dict[str, list[Answer]], repeats: int, clock: Clock
) -> tuple[Estimate | None, tuple[float, ...]]:
    """How many times the baseline's speed ``method`` reaches, over the answers that both have; and in each repeat."""
    if baseline is None or baseline not in by_method or baseline == method:
        return None, ()
    places = [{_place(a): a for a in by_method[name]} for name in (method, baseline)]
    common = [place for place in places[0] if place in places[1]]
    if not common:
        return None, ()
    ours, theirs = ([found[place] for place in common] for found in places)
    by_repeat = []
    for repeat in range(repeats):
        pair = [[a for a in answers if a.repeat == repeat] for answers in (ours, theirs)]
        if pair[0]:
            by_repeat.append(_sample(pair[0], clock).rate / _sample(pair[1], clock).rate)
    return rate_ratio(_sample(ours, clock), _sample(theirs, clock)), tuple(by_repeat)


def _place(answer: Answer) -> tuple[str, int, int]:
    return answer.prompt_id, answer.turn, answer.repeat


def _sample(answers: Sequence[Answer], clock: Clock) -> Sample:
    """Tokens and seconds by prompt, over its turns and repeats; prompts in the order of the file."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for answer in answers:
        tokens[answer.prompt_id] = tokens.get(answer.prompt_id, 0) + clock.tokens(answer)
        seconds[answer.prompt_id] = seconds.get(answer.prompt_id, 0.0) + clock.seconds(answer)
    return Sample(np.array(list(tokens.values()), dtype=float), np.array(list(seconds.values())))
