"""Timing the engine on toy models: every time a plan needs, from the engine's own stopwatch."""

import pytest
from conftest import ToyFiles

from hothead import SamplingParams, TokenRanking, load_draft, load_target
from hothead.bench.machine import model_identity
from hothead.bench.prompts import Prompt
from hothead.errors import InputError, TokenizerMismatch
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.plan.schema import Times
from hothead.plan.times import TimesConfig, TimesMeasurement

PROMPTS = [Prompt("1", "all", ("Hello there.",)), Prompt("2", "all", ("Why?",))]


@pytest.fixture(scope="module")
def models(toy_files: ToyFiles) -> tuple[Target, Draft, TokenRanking]:
    target = load_target(toy_files.target, "float32")
    return target, load_draft(toy_files.draft, target), TokenRanking.load(toy_files.ranking)


def measure(models: tuple[Target, Draft, TokenRanking], config: TimesConfig, prompts: list[Prompt] = PROMPTS) -> Times:
    measurement = TimesMeasurement(*models, prompts, SamplingParams(), config)
    tokens = list(measurement.run())
    assert len(tokens) == len(measurement) == len(prompts) * config.repeats
    assert min(tokens) > 0
    name = model_identity("toy")
    return measurement.times("float32", "cpu", name, name)


def test_every_time_that_a_plan_needs(models: tuple[Target, Draft, TokenRanking]) -> None:
    dynamic = ((128, 16, "on_miss"), (64, 16, "on_miss"), (64, 0, "full_refresh"))
    times = measure(models, TimesConfig((1, 3), dynamic, repeats=2, max_new_tokens=8))
    found = times.at(1)
    assert set(found.target_verify_ms) == {1, 2, 4}
    assert max(found.head_ms) == 320
    assert {64, 128, 192} <= set(found.head_ms), "64 rows and 16 slots are timed against 128 rows"
    assert [(update.policy, update.slots) for update in found.updates] == [("on_miss", 16)]
    assert set(found.draft_step_ms) == set(found.verify_factor) == set(found.head_ms)
    assert found.verify_factor[320].value == 1, "beside the full head it is the pass that was timed"
    measured = (found.plain_other_ms, found.other_ms, found.draft_extend_ms)
    tables = (found.target_verify_ms, found.head_ms, found.draft_step_ms, found.verify_factor)
    for one in (*measured, *(time for table in tables for time in table.values())):
        assert one.low is not None and one.high is not None
        assert 0 < one.low <= one.value <= one.high
    assert times.answers == 4
    assert times.machine != ""


def test_a_round_takes_what_its_parts_take(models: tuple[Target, Draft, TokenRanking]) -> None:
    """The parts of the full vocabulary's round add up to what the engine's rounds took."""
    k = 3
    measurement = TimesMeasurement(*models, PROMPTS, SamplingParams(), TimesConfig((k,), repeats=3, max_new_tokens=16))
    list(measurement.run())
    found = measurement.times("float32", "cpu", model_identity("toy"), model_identity("toy")).at(1)
    parts = found.target_verify_ms[k + 1].value + found.draft_extend_ms.value + (k - 1) * found.draft_step_ms[320].value
    parts += k * found.head_ms[320].value + found.other_ms.value
    rounds = [
        [1000 * sum(stats.sections_s.values()) / stats.rounds for stats in of_prompt]
        for variant, of_prompts in measurement._stats.items()
        if (variant.num_steps, variant.rows, variant.slots) == (k, 320, 0)
        for of_prompt in of_prompts
    ]
    lowest, highest = min(map(min, rounds)), max(map(max, rounds))
    assert lowest * 0.8 <= parts <= highest * 1.2


def test_contexts_that_all_passes_share_are_no_noise(models: tuple[Target, Draft, TokenRanking]) -> None:
    """One prompt takes three times as long as the other, plainly and verified: their ratio is certain."""
    measurement = TimesMeasurement(*models, PROMPTS, SamplingParams(), TimesConfig((1,), repeats=1, max_new_tokens=4))
    list(measurement.run())
    plain, whole = (v for v in measurement._stats if v.num_steps == 0 or v.rows == 320)
    for variant, ms in ((plain, 10.0), (whole, 12.0)):
        for number, of_prompt in enumerate(measurement._stats[variant]):
            for stats in of_prompt:
                stats.sections_s["target_verify"] = (1 + 2 * number) * ms / 1000 * stats.rounds
    found = measurement.times("float32", "cpu", model_identity("toy"), model_identity("toy")).at(1).target_verify_ms
    for tokens, ms in ((1, 20.0), (2, 24.0)):
        interval = found[tokens]
        assert (interval.low, interval.value, interval.high) == pytest.approx((ms, ms, ms))


def test_one_prompt_has_no_interval(models: tuple[Target, Draft, TokenRanking]) -> None:
    found = measure(models, TimesConfig((1,), repeats=1, max_new_tokens=4), PROMPTS[:1]).at(1)
    assert found.target_verify_ms[1].low is None
    assert found.draft_step_ms[320].value == 0, "k = 1 has no step"


def test_prompts_without_room_are_left_out(models: tuple[Target, Draft, TokenRanking]) -> None:
    long = Prompt("3", "all", ("x" * 300,))
    config = TimesConfig((1,), repeats=1, max_new_tokens=4)
    assert len(TimesMeasurement(*models, [*PROMPTS, long], SamplingParams(), config)) == 2
    with pytest.raises(InputError, match="no prompt leaves room for 4 more tokens"):
        TimesMeasurement(*models, [long], SamplingParams(), config)


def test_nonsense_is_refused(models: tuple[Target, Draft, TokenRanking]) -> None:
    with pytest.raises(InputError, match="at least 1 repeat of 2 new tokens; found 0 of 32"):
        TimesConfig((1,), repeats=0)
    with pytest.raises(InputError, match=r"at least 1; found \[\]"):
        TimesConfig(())
    target, draft, ranking = models
    with pytest.raises(TokenizerMismatch):
        TimesMeasurement(
            target, draft, TokenRanking(ranking.counts, "0" * 64), PROMPTS, SamplingParams(), TimesConfig((1,))
        )
