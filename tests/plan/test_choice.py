"""The plan as a function of acceptance and times: the formula, verdicts, near-ties, and what must not change them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import SIZES, V, curves_of, dynamic_of, times_of

from hothead.errors import InputError
from hothead.plan.choice import make_plan
from hothead.plan.cost import CostModel, kinds_of
from hothead.plan.schema import BatchPlan

LENGTHS = [2.0, 2.4, 2.6, 2.7, 2.75]
PLAIN_MS = 10.0


def plan(curves: Any, times: Any) -> BatchPlan:
    return make_plan(curves, times).batches[0]


def test_the_formula_by_hand() -> None:
    found = plan(curves_of({4: LENGTHS}), times_of())
    by_size = {c.size: c for c in found.candidates}
    assert tuple(by_size) == SIZES
    head = {64: 0.125, 512: 0.125 + (2.0 - 0.125) * (512 - 64) / (V - 64), V: 2.0}
    rounds = {size: 11.0 + 0.5 + 3 * 0.25 + 4 * ms + 0.5 for size, ms in head.items()}
    for size, round_ms in rounds.items():
        candidate = by_size[size]
        length = LENGTHS[SIZES.index(size)]
        assert candidate.round_ms.value == pytest.approx(round_ms)
        assert candidate.times_plain.value == pytest.approx(length / round_ms * PLAIN_MS, rel=1e-5)
        assert candidate.times_full.value == pytest.approx(length / round_ms / (LENGTHS[-1] / rounds[V]), rel=1e-5)
        assert candidate.tokens_per_s.value == pytest.approx(1000 * length / round_ms)
        assert candidate.kept == pytest.approx((length - 1) / (LENGTHS[-1] - 1))
        assert sum(candidate.sections_ms.values()) == pytest.approx(round_ms)
        assert sum(candidate.shares.values()) == pytest.approx(1)
    assert found.plain_tokens_per_s.value == 100
    assert found.limits.free_head == pytest.approx(LENGTHS[-1] / (rounds[V] - 8.0) * PLAIN_MS, rel=1e-5)
    assert found.limits.largest == "target_verify"
    assert found.verdict == "prune"
    assert found.choice == max(found.candidates, key=lambda c: c.times_plain.value)


def test_no_acceptance_no_speculation() -> None:
    found = plan(curves_of({2: [1.0] * 5, 4: [1.0] * 5}), times_of())
    assert found.verdict == "do not speculate"
    assert found.choice.times_plain.value < 1
    assert found.choice.num_steps == 2, "what costs least comes closest"
    assert "times the speed of plain decoding" in found.reason


def test_a_gain_within_the_noise_is_no_gain() -> None:
    """The same point estimates: 1.2 times plain for sure, or not to be told from it."""
    sure, unsure = (plan(curves_of({4: [1.6] * 5}, width=width), times_of()) for width in (0.0, 0.6))
    assert sure.choice.times_plain.value == unsure.choice.times_plain.value > 1
    assert sure.verdict == "prune"
    assert unsure.verdict == "do not speculate"
    assert "cannot be told from 1" in unsure.reason


def test_a_free_head_keeps_the_full_vocabulary() -> None:
    found = plan(curves_of({4: LENGTHS}), times_of(head_ms={64: 0.0, V: 0.0}))
    assert found.verdict == "keep the full vocabulary"
    assert found.choice == found.full
    assert (found.choice.size, found.choice.times_full.value) == (V, 1)
    assert found.limits.free_head == pytest.approx(found.full.times_plain.value, rel=1e-5)


def test_a_smaller_vocabulary_must_be_told_from_the_full_one() -> None:
    """Half a per cent faster, sure of the times and unsure of the difference in acceptance."""
    times = times_of(head_ms={64: 1.0, V: 1.05})
    sure, unsure = (
        plan(curves_of({4: [2.74, 2.745, 2.75, 2.75, 2.75]}, width=0.2, difference_width=width), times)
        for width in (0.0, 0.1)
    )
    assert sure.verdict == "prune", "the noise that both share cancels"
    assert unsure.verdict == "keep the full vocabulary"
    assert "not told from 1" in unsure.reason


def test_near_ties_are_those_whose_interval_reaches_the_best() -> None:
    curves = curves_of({3: LENGTHS, 4: LENGTHS}, width=0.1, difference_width=0.02)
    found = plan(curves, times_of())
    best = found.choice.times_full.value
    tied = {(tie.num_steps, size) for tie in found.near_ties for size in SIZES if tie.least <= size <= tie.most}
    reaching = {(c.num_steps, c.size) for c in found.candidates if (c.times_full.high or c.times_full.value) >= best}
    assert (found.choice.num_steps, found.choice.size) in reaching <= tied
    assert len(reaching) < len(found.candidates)


def test_slots_are_rows_and_their_update_counts() -> None:
    curves = curves_of({4: LENGTHS}, dynamic=[dynamic_of(2.7, 2.75, 64, 64, 4)])
    update = {"policy": "on_miss", "slots": 64, "ms": 0.75}
    found = make_plan(curves, times_of(updates=(update,)))
    static = {c.size: c for c in found.batches[0].candidates if not c.slots}
    dynamic = next(c for c in found.batches[0].candidates if c.slots)
    assert dynamic.round_ms.value == pytest.approx(static[128].round_ms.value + 0.75)
    assert found.batches[0].choice == dynamic
    without = make_plan(curves, times_of())
    assert not any(c.slots for c in without.batches[0].candidates)
    assert without.remarks == ("Left out: 64 slots with on_miss, as no time of their update is given.",)


def test_what_the_times_do_not_reach_is_left_out() -> None:
    lengths = dict.fromkeys((2, 4, 5, 8), LENGTHS)
    found = make_plan(curves_of(lengths), times_of())
    assert {c.num_steps for c in found.batches[0].candidates} == {2, 4}
    assert "k = 5, 8" in found.remarks[0]
    with pytest.raises(InputError, match="give the target's time for more tokens"):
        make_plan(curves_of({8: LENGTHS}), times_of())


def test_a_large_head_slows_what_stands_beside_it() -> None:
    beside = {"draft_step_ms": {64: 0.1, V: 0.3}, "verify_factor": {64: 0.9, V: 1.0}}
    by_size = {c.size: c for c in plan(curves_of({4: LENGTHS}), times_of(**beside)).candidates}
    for size, step_ms, verify_ms in ((64, 0.1, 9.9), (V, 0.3, 11.0)):
        assert by_size[size].sections_ms["draft_steps"] == pytest.approx(3 * step_ms)
        assert by_size[size].sections_ms["target_verify"] == pytest.approx(verify_ms)
        assert by_size[size].round_ms.value == pytest.approx(sum(by_size[size].sections_ms.values()))


def test_times_of_another_model_or_batch_are_refused() -> None:
    with pytest.raises(InputError, match="no time for the full vocabulary of 1024 rows, only for 64, 512"):
        make_plan(curves_of({4: LENGTHS}), times_of(head_ms={64: 1, 512: 2}))
    with pytest.raises(InputError, match="no times for batch size 8"):
        make_plan(curves_of({4: LENGTHS}), times_of(), batches=(1, 8))
    with pytest.raises(InputError, match="no curve of ranking 'mine'"):
        make_plan(curves_of({4: LENGTHS}), times_of(), ranking="mine")
    found = make_plan(curves_of({4: LENGTHS}), times_of(dtype="float16"))
    assert found.remarks == ("Times are in float16, acceptance was measured in bfloat16.",)


def test_intervals_hold_what_they_should() -> None:
    """One source of noise at a time: the interval is that source's, scaled."""
    noisy_target = {"target_verify_ms": {1: 10.0, 5: {"value": 11.0, "low": 10.5, "high": 11.5}}}
    found = plan(curves_of({4: LENGTHS}), times_of(**noisy_target)).full
    assert found.round_ms.low == pytest.approx(found.round_ms.value - 0.5, abs=0.02)
    assert found.round_ms.high == pytest.approx(found.round_ms.value + 0.5, abs=0.02)
    assert found.times_full.low is None, "the full vocabulary is exactly as fast as itself"
    found = plan(curves_of({4: LENGTHS}, width=0.3), times_of()).full
    assert found.times_plain.low == pytest.approx(found.times_plain.value * (1 - 0.3 / 2.75), rel=0.01)
    assert found.times_plain.high == pytest.approx(found.times_plain.value * (1 + 0.3 / 2.75), rel=0.01)
    assert found.round_ms.low is None


def test_many_sizes_are_thinned_with_both_ends_kept() -> None:
    sizes = (*range(64, 49152, 64), 49152)
    curves = curves_of({4: np.linspace(2, 2.75, len(sizes)).tolist()}, sizes=sizes)
    (kind,) = kinds_of(curves, 4, "own", "overall")
    assert (kind.sizes[0], kind.sizes[-1]) == (64, 49152)
    assert len(kind.sizes) < 150
    assert np.all(kind.sizes[1:-1] / kind.sizes[:-2] >= 1.05)
    assert [curves.curve().acceptance_length.value[curves.index(int(size))] for size in kind.sizes] == list(
        kind.length.value
    )


# Whole numbers of hundredths: no two candidates differ by a rounding error alone.
ms = st.integers(1, 2000).map(lambda hundredths: hundredths / 100)
rising = st.lists(st.integers(100, 500).map(lambda hundredths: hundredths / 100), min_size=5, max_size=5).map(sorted)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    lengths = {k: [min(length, k + 1.0) for length in draw(rising)] for k in (2, 4)}
    width = draw(st.sampled_from([0.0, 0.05, 0.3]))
    curves = curves_of(lengths, width=width, difference_width=width / 3)
    small, full = sorted((draw(ms), draw(ms)))
    changes = {
        "head_ms": {64: small, V: full},
        "draft_step_ms": draw(ms),
        "draft_extend_ms": draw(ms),
        "target_verify_ms": {1: draw(ms), 5: draw(ms)},
    }
    return curves, changes


@settings(max_examples=40, deadline=None)
@given(inputs())
def test_the_same_inputs_give_the_same_plan(found: tuple[Any, dict[str, Any]]) -> None:
    curves, changes = found
    assert make_plan(curves, times_of(**changes)) == make_plan(curves, times_of(**changes))


@settings(max_examples=40, deadline=None)
@given(inputs(), st.floats(1.1, 10))
def test_a_dearer_head_never_speeds_anything_up_nor_asks_for_more_rows(
    found: tuple[Any, dict[str, Any]], factor: float
) -> None:
    curves, changes = found
    dearer = {rows: factor * time for rows, time in changes["head_ms"].items()}
    before, after = plan(curves, times_of(**changes)), plan(curves, times_of(**{**changes, "head_ms": dearer}))
    for one, other in zip(before.candidates, after.candidates, strict=True):
        assert (one.size, one.num_steps) == (other.size, other.num_steps)
        assert other.times_plain.value <= one.times_plain.value
    for k in (2, 4):
        fastest = [
            max((c for c in each.candidates if c.num_steps == k), key=lambda c: (c.times_plain.value, -c.size)).size
            for each in (before, after)
        ]
        assert fastest[1] <= fastest[0]


@settings(max_examples=40, deadline=None)
@given(inputs())
def test_verdicts_follow_from_the_candidates(found: tuple[Any, dict[str, Any]]) -> None:
    curves, changes = found
    made = plan(curves, times_of(**changes))
    least = made.choice.times_plain.value if made.choice.times_plain.low is None else made.choice.times_plain.low
    assert (least > 1) == (made.verdict != "do not speculate")
    assert made.full == max(
        (c for c in made.candidates if c.size == V), key=lambda c: (c.times_plain.value, -c.num_steps)
    )
    if made.verdict == "keep the full vocabulary":
        assert made.choice == made.full
    if made.verdict == "prune":
        assert made.choice.size < V
        assert made.choice.times_plain.value == max(c.times_plain.value for c in made.candidates)
    assert made.choice in made.candidates
    for candidate in made.candidates:
        for interval in (candidate.times_plain, candidate.times_full, candidate.round_ms, candidate.tokens_per_s):
            if interval.low is not None and interval.high is not None:
                assert interval.low <= interval.value <= interval.high


def test_draws_of_a_shared_time_cancel() -> None:
    noisy = {"value": 11.0, "low": 6.0, "high": 16.0}
    times = times_of(head_ms={64: 1.0, V: 1.0}, target_verify_ms={1: 10.0, 5: noisy})
    model = CostModel(times.at(1), V)
    (kind,) = kinds_of(curves_of({4: LENGTHS}), 4, "own", "overall")
    cost = model.cost(kind)
    assert np.ptp(cost.round_ms[:, 0]) > 5
    assert np.all(cost.round_ms[:, 0] == cost.round_ms[:, -1])
