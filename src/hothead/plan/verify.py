"""A plan beside the run that verifies it: what was predicted of each method, and what came out. Needs no torch."""

from dataclasses import dataclass

from hothead.bench.schema import DYNAMIC, FULL, STATIC, Results
from hothead.bench.stats import Estimate
from hothead.bench.summary import EqualityCounts, MethodSummary, count_equality, summarize
from hothead.errors import InputError
from hothead.plan.schema import DO_NOT_SPECULATE, KEEP_FULL, BatchPlan, Candidate
from hothead.replay.curve import Interval


@dataclass(frozen=True)
class Check:
    """One method, predicted and measured.

    Attributes:
        times_plain, acceptance_length: as predicted.
        measured_times_plain: with its interval over prompts.
        off: predicted over measured speed-up, less 1.
    """

    method: str
    times_plain: Interval
    measured_times_plain: Estimate
    off: float
    acceptance_length: Interval
    measured_acceptance_length: float


@dataclass(frozen=True)
class Verification:
    """What the run says of the plan.

    Attributes:
        checks: the full vocabulary at the choice's k, and the choice.
        times_full: measured speed of the choice over that of the full vocabulary; None where it is that one.
        texts: answers compared with plain decoding's.
        is_confirmed: whether the run alone leads to the plan's verdict.
        remark: the same in a sentence.
    """

    checks: tuple[Check, ...]
    times_full: Estimate | None
    texts: EqualityCounts
    is_confirmed: bool
    remark: str


def verify(plan: BatchPlan, results: Results) -> Verification:
    """Hold a plan against a comparison of plain, full and (if it is a smaller one) the choice, at the choice's k.

    Raises:
        InputError: nothing was measured.
    """
    summaries = summarize(results)
    if not summaries:
        raise InputError("the verifying run has no prompt that all methods answered with more than one token")
    measured = {method.method: method for method in summaries[-1].methods}
    texts = count_equality(results.answers)
    full = _check(measured[FULL], plan.full_at(plan.choice.num_steps))
    name = next((name for name in (STATIC, DYNAMIC) if name in measured), None)
    if name is None:
        return _verification(plan, (full,), None, texts)
    choice = _check(measured[name], plan.choice)
    return _verification(plan, (full, choice), measured[name].times_full, texts)


def _check(measured: MethodSummary, predicted: Candidate) -> Check:
    assert measured.times_plain is not None and measured.acceptance_length is not None  # not plain
    return Check(
        method=measured.method,
        times_plain=predicted.times_plain,
        measured_times_plain=measured.times_plain,
        off=predicted.times_plain.value / measured.times_plain.value - 1,
        acceptance_length=predicted.acceptance_length,
        measured_acceptance_length=measured.acceptance_length,
    )


def _verification(
    plan: BatchPlan, checks: tuple[Check, ...], times_full: Estimate | None, texts: EqualityCounts
) -> Verification:
    chosen = checks[-1]
    pays = _least(chosen.measured_times_plain) > 1
    if plan.verdict == DO_NOT_SPECULATE:
        confirmed = not pays
    elif plan.verdict == KEEP_FULL or times_full is None:
        confirmed = pays
    else:
        confirmed = pays and _least(times_full) > 1
    said = f"{_said(chosen.measured_times_plain)} times plain decoding"
    if times_full is not None:
        said += f", {_said(times_full)} times the full vocabulary at the same k"
    remark = f"The run {'confirms' if confirmed else 'does not confirm'} it: {said}."
    return Verification(checks, times_full, texts, confirmed, remark)


def _least(found: Estimate) -> float:
    return found.value if found.low is None else found.low


def _said(found: Estimate) -> str:
    return f"{found.value:.2f}" + ("" if found.low is None else f" ({found.low:.2f}-{found.high:.2f})")
