"""A plan against made-up runs: what is compared with what, and when a run confirms the verdict."""

from typing import Any

import pytest
from plan_inputs import MACHINE, V, curves_of, times_of

from hothead.bench.schema import (
    FULL,
    PLAIN,
    STATIC,
    Answer,
    Header,
    ModelIdentity,
    PromptSetIdentity,
    Results,
    Session,
    Settings,
)
from hothead.errors import InputError
from hothead.plan.choice import make_plan
from hothead.plan.schema import BatchPlan
from hothead.plan.verify import verify

PRUNED = make_plan(curves_of({4: [2.0, 2.4, 2.6, 2.7, 2.75]}), times_of()).batches[0]
KEPT = make_plan(curves_of({4: [2.0, 2.4, 2.6, 2.7, 2.75]}), times_of(head_ms={64: 0, V: 0})).batches[0]
REFUSED = make_plan(curves_of({4: [1.0] * 5}), times_of()).batches[0]


def results(seconds: dict[str, float], tokens: int = 32, rounds: int = 16, prompts: int = 4) -> Results:
    """All prompts answered by each method in so many seconds (a little more for each prompt)."""
    settings = Settings(
        methods=tuple(seconds), repeats=1, num_steps=4, slots=0, policy="none", max_new_tokens=tokens + 1,
        temperature=0, top_p=1, top_k=0, seed=0,
    )  # fmt: skip
    header = Header(
        versions={}, machine=MACHINE, target=ModelIdentity(name="model"), tokenizer_fingerprint="0", dtype="bfloat16",
        device="cpu", prompt_set=PromptSetIdentity(name="p", prompts=prompts, digest="0"), settings=settings,
    )  # fmt: skip
    blocks: dict[tuple[str, int, int], Any] = {}
    for number in range(prompts):
        blocks[str(number), 0, 0] = tuple(
            Answer(
                prompt_id=str(number), group="all", turn=0, repeat=0, method=method,
                equality="reference" if method == PLAIN else "equal", finish_reason="length", prompt_tokens=8,
                new_tokens=tokens + 1, rounds=tokens if method == PLAIN else rounds, misses=0, rows_copied=0,
                prefill_s=0.1, decode_s=taken * (1 + 0.01 * number), sections_s={"other": taken}, ids_digest="0",
            )
            for method, taken in seconds.items()
        )  # fmt: skip
    return Results(header, (Session(started="now"),), blocks)


def test_predictions_stand_beside_what_was_measured() -> None:
    found = verify(PRUNED, results({PLAIN: 2.0, FULL: 1.6, STATIC: 1.0}))
    full, choice = found.checks
    assert (full.method, choice.method) == (FULL, STATIC)
    assert full.times_plain == PRUNED.full_at(4).times_plain
    assert choice.times_plain == PRUNED.choice.times_plain
    assert (full.measured_times_plain.value, choice.measured_times_plain.value) == pytest.approx((1.25, 2.0))
    assert choice.off == pytest.approx(PRUNED.choice.times_plain.value / 2.0 - 1)
    assert choice.measured_acceptance_length == 2.0
    assert found.times_full is not None and found.times_full.value == pytest.approx(1.6)
    assert found.texts.equal == found.texts.compared == 8


@pytest.mark.parametrize(
    ("plan", "seconds", "confirmed"),
    [
        (PRUNED, {PLAIN: 2.0, FULL: 1.6, STATIC: 1.0}, True),
        (PRUNED, {PLAIN: 2.0, FULL: 0.9, STATIC: 1.0}, False),
        (PRUNED, {PLAIN: 0.9, FULL: 1.6, STATIC: 1.0}, False),
        (KEPT, {PLAIN: 2.0, FULL: 1.0}, True),
        (KEPT, {PLAIN: 1.0, FULL: 1.0}, False),
        (REFUSED, {PLAIN: 1.0, FULL: 2.0}, True),
        (REFUSED, {PLAIN: 1.0, FULL: 0.5}, False),
    ],
)
def test_what_a_run_confirms(plan: BatchPlan, seconds: dict[str, float], confirmed: bool) -> None:
    found = verify(plan, results(seconds))
    assert found.is_confirmed is confirmed
    assert ("does not confirm" in found.remark) is not confirmed


def test_the_plans_are_what_their_names_say() -> None:
    verdicts = [plan.verdict for plan in (PRUNED, KEPT, REFUSED)]
    assert verdicts == ["prune", "keep the full vocabulary", "do not speculate"]


def test_nothing_measured_verifies_nothing() -> None:
    with pytest.raises(InputError, match="no prompt that all methods answered"):
        verify(PRUNED, results({PLAIN: 2.0, FULL: 1.6, STATIC: 1.0}, prompts=0))
