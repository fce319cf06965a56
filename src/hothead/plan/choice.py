"""The plan: which vocabulary and k decode fastest, whether that beats plain decoding, and what else comes as close."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hothead.errors import InputError
from hothead.plan.cost import Cost, CostModel, Kind, interval, kinds_of
from hothead.plan.schema import (
    DO_NOT_SPECULATE,
    KEEP_FULL,
    PRUNE,
    SECTIONS,
    BatchPlan,
    Candidate,
    Limits,
    NearTie,
    Plan,
    Times,
    Verdict,
)
from hothead.replay.curve import AcceptanceCurves, Interval


def make_plan(
    curves: AcceptanceCurves,
    times: Times,
    batches: Sequence[int] = (1,),
    ranking: str | None = None,
    group: str | None = None,
) -> Plan:
    """Join acceptance and times; the same inputs give the same plan.

    Args:
        batches: sizes to plan for, each of which ``times`` must have.
        ranking: of the curve; None: its first.
        group: of prompts; None: all.

    Raises:
        InputError: a ranking, group or batch size that is not there, times of another model, or of too few tokens.
    """
    if not batches or len(set(batches)) < len(batches):
        raise InputError(f"name at least one batch size, each once; found {list(batches)}")
    name = curves.rankings[0].name if ranking is None else ranking
    group = curves.overall if group is None else group
    kinds = [kind for k in curves.settings.num_steps for kind in kinds_of(curves, k, name, group)]
    remarks = _remarks(curves, times)
    plans = []
    for batch in batches:
        plan, left_out = _plan_batch(kinds, CostModel(times.at(batch), curves.sizes[-1]))
        plans.append(plan)
        remarks += [f"Batch {batch}: {remark}" if len(batches) > 1 else remark for remark in left_out]
    return Plan(
        versions=curves.versions,
        target=curves.target,
        draft=curves.draft,
        prompt_set=curves.prompt_set,
        ranking=next(one for one in curves.rankings if one.name == name),
        group=group,
        temperature=curves.settings.temperature,
        target_vocab_size=curves.sizes[-1],
        times=times,
        batches=tuple(plans),
        remarks=tuple(remarks),
    )


def _remarks(curves: AcceptanceCurves, times: Times) -> list[str]:
    found = []
    if times.dtype != curves.dtype:
        found.append(f"Times are in {times.dtype}, acceptance was measured in {curves.dtype}.")
    for what in ("target", "draft"):
        timed, replayed = getattr(times, what), getattr(curves, what)
        if timed is not None and timed != replayed:
            found.append(f"Times are of the {what} {timed.name}, acceptance of {replayed.name}: not the same files.")
    return found


@dataclass(frozen=True)
class _Place:
    """One candidate: a column of one kind's cost."""

    cost: Cost
    column: int

    @property
    def size(self) -> int:
        return int(self.cost.kind.sizes[self.column])

    @property
    def kind(self) -> Kind:
        return self.cost.kind

    @property
    def length(self) -> np.ndarray:
        return self.cost.length[:, self.column]

    @property
    def round_ms(self) -> np.ndarray:
        return self.cost.round_ms[:, self.column]

    @property
    def rate(self) -> np.ndarray:
        """Tokens per ms of one sequence, [N + 1]."""
        return self.length / self.round_ms

    @property
    def order(self) -> tuple[float, int, int, int]:
        """The fastest first; of equals the simplest."""
        return (-round(float(self.rate[0]), 12), self.kind.num_steps, self.kind.slots, self.size)


def _plan_batch(kinds: Sequence[Kind], model: CostModel) -> tuple[BatchPlan, list[str]]:
    usable = [kind for kind in kinds if kind.num_steps < model.most_tokens and model.knows(kind)]
    if not usable:
        raise InputError(
            f"times go up to a verify pass of {model.most_tokens} tokens, and the least k of the curve needs "
            f"{min(kind.num_steps for kind in kinds) + 1}: give the target's time for more tokens"
        )
    costs = [model.cost(kind) for kind in usable]
    places = [_Place(cost, column) for cost in costs for column in range(len(cost.kind.sizes))]
    places.sort(key=lambda place: place.order)
    fulls = [place for place in places if place.kind.slots == 0 and place.size == model.full_rows]
    candidates = [_candidate(place, fulls[0], model) for place in places]
    full = candidates[places.index(fulls[0])]
    best = candidates[0]
    choice = _choice(best, full)
    verdict, reason = _verdict(best, choice, full)
    free_head = max(_free_head(place, model) for place in fulls)
    shares = {name: round(share, 6) for name, share in choice.shares.items()}
    largest = max(shares, key=lambda name: shares[name])
    plan = BatchPlan(
        batch=model.batch,
        verdict=verdict,
        reason=reason,
        choice=choice,
        full=full,
        plain_tokens_per_s=interval(1000 * model.batch / model.plain_ms),
        near_ties=_near_ties(candidates),
        limits=Limits(shares=shares, largest=largest, free_head=round(free_head, 6)),
        candidates=tuple(sorted(candidates, key=lambda c: (c.num_steps, c.slots, c.policy, c.size))),
    )
    return plan, _left_out(kinds, model)


def _candidate(place: _Place, full: _Place, model: CostModel) -> Candidate:
    sections = {name: round(float(place.cost.sections_ms[name][place.column]), 6) for name in SECTIONS}
    kind = place.kind
    return Candidate(
        size=place.size,
        slots=kind.slots,
        policy=kind.policy,
        num_steps=kind.num_steps,
        acceptance_length=kind.length.at(place.column),
        kept=float(kind.kept[place.column]),
        round_ms=interval(place.round_ms),
        tokens_per_s=interval(1000 * model.batch * place.rate),
        times_plain=interval(place.rate * model.plain_ms),
        times_full=interval(place.rate / full.rate),
        sections_ms=sections,
    )


def _free_head(place: _Place, model: CostModel) -> float:
    """Speed over plain decoding's of a full vocabulary whose head takes no time."""
    head_ms = place.cost.sections_ms["draft_head"][place.column]
    return float(place.length[0] * model.plain_ms[0] / (place.round_ms[0] - head_ms))


def _choice(best: Candidate, full: Candidate) -> Candidate:
    """The best one, unless the full vocabulary beats plain decoding and the best cannot be told from it."""
    pays = _is_above_one(full.times_plain)
    if _is_above_one(best.times_plain) and (_is_above_one(best.times_full) or not pays):
        return best
    return full if pays else best


def _verdict(best: Candidate, choice: Candidate, full: Candidate) -> tuple[Verdict, str]:
    if not _is_above_one(choice.times_plain):
        if choice.times_plain.value <= 1:
            why = f"the fastest way to draft reaches {_said(choice.times_plain)} times the speed of plain decoding"
        else:
            why = f"{_said(choice.times_plain)} times the speed of plain decoding cannot be told from 1"
        return DO_NOT_SPECULATE, f"{why} ({_named(choice)})"
    if choice is full:
        if best is full:
            why = "no smaller vocabulary is faster"
        else:
            why = f"the fastest smaller one ({_named(best)}) is {_said(best.times_full)} times as fast: not told from 1"
        return KEEP_FULL, f"{_said(full.times_plain)} times plain decoding at k = {full.num_steps}; {why}"
    gains = f"{_said(choice.times_plain)} times plain decoding, {_said(choice.times_full)} times the full vocabulary"
    return PRUNE, f"{_named(choice)}: {gains} at its best k = {full.num_steps}"


def _is_above_one(found: Interval) -> bool:
    return (found.value if found.low is None else found.low) > 1


def _near_ties(candidates: Sequence[Candidate]) -> tuple[NearTie, ...]:
    """By kind, those whose interval reaches the best one's value; the candidates come best first."""
    best = candidates[0].times_full.value
    tied: dict[tuple[int, int, str], list[Candidate]] = {}
    for candidate in candidates:
        found = candidate.times_full
        if (found.value if found.high is None else found.high) >= best:
            tied.setdefault((candidate.num_steps, candidate.slots, candidate.policy), []).append(candidate)
    return tuple(
        NearTie(
            least=min(c.size for c in of_kind),
            most=max(c.size for c in of_kind),
            slots=slots,
            policy=policy,
            num_steps=k,
            times_plain=of_kind[0].times_plain.value,
        )
        for (k, slots, policy), of_kind in tied.items()
    )


def _left_out(kinds: Sequence[Kind], model: CostModel) -> list[str]:
    too_long = sorted({kind.num_steps for kind in kinds if kind.num_steps >= model.most_tokens})
    remarks = []
    if too_long:
        ks = ", ".join(map(str, too_long))
        remarks.append(f"Left out: k = {ks}, as the target's times end at {model.most_tokens} tokens.")
    unknown = dict.fromkeys((kind.slots, kind.policy) for kind in kinds if not model.knows(kind))
    if unknown:
        names = ", ".join(f"{slots} slots with {policy}" for slots, policy in unknown)
        remarks.append(f"Left out: {names}, as no time of their update is given.")
    return remarks


def _named(candidate: Candidate) -> str:
    slots = f" + {candidate.slots} slots ({candidate.policy})" if candidate.slots else ""
    return f"{candidate.size} rows{slots}, k = {candidate.num_steps}"


def _said(found: Interval) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"
