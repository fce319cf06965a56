"""From records to the numbers of a report, against numbers worked out by hand."""

import pytest
from records import answer, failure, header

from hothead.bench.schema import Answer, Failure, Results
from hothead.bench.summary import OVERALL, EqualityCounts, count_equality, summarize, times_faster


def results(*blocks: tuple[Answer | Failure, ...], repeats: int = 1) -> Results:
    methods = tuple(outcome.method for outcome in blocks[0])
    keyed = {(block[0].prompt_id, block[0].turn, block[0].repeat): block for block in blocks}
    return Results(header(methods, repeats), (), keyed)


def test_numbers_of_one_group() -> None:
    (group, overall) = summarize(
        results(
            (
                answer("plain", "1", new_tokens=11, rounds=10, decode_s=2.0, sections_s={"target_verify": 2.0}),
                answer("full", "1", new_tokens=11, rounds=5, decode_s=1.0, misses=1, rows_copied=2, prefill_s=0.25),
            ),
            (
                answer("plain", "2", new_tokens=31, rounds=30, decode_s=8.0, sections_s={"target_verify": 8.0}),
                answer("full", "2", new_tokens=31, rounds=15, decode_s=4.0, misses=3, rows_copied=6, prefill_s=0.75),
            ),
        )
    )
    assert (group.name, group.prompts) == ("qa", 2)
    plain, full = group.methods
    assert plain.tokens_per_s.value == 40 / 10
    assert full.tokens_per_s.value == 40 / 5
    assert plain.times_plain is None
    assert full.times_full is None
    assert full.times_plain is not None
    assert (full.times_plain.value, full.times_plain.low, full.times_plain.high) == (2, 2, 2)
    assert plain.times_full is not None and plain.times_full.value == 0.5
    assert plain.acceptance_length is None
    assert full.acceptance_length == 40 / 20
    assert full.misses_per_100 == 10
    assert full.rows_copied_per_100 == 20
    assert full.prefill_ms == 500
    assert plain.ms_per_round == {"target_verify": 250}
    assert full.ms_per_round == {"draft_head": 1000 * 0.5 / 20, "target_verify": 1000 * 1.5 / 20}
    assert overall.name == OVERALL
    assert overall.methods == group.methods


def test_groups_keep_the_order_of_the_file_and_overall_is_a_ratio_of_totals() -> None:
    blocks = [
        (answer("plain", "1", group="rag", decode_s=1.0), answer("full", "1", group="rag", decode_s=1.0)),
        (answer("plain", "2", group="qa", decode_s=9.0), answer("full", "2", group="qa", decode_s=3.0)),
    ]
    groups = summarize(results(*blocks))
    assert [group.name for group in groups] == ["rag", "qa", OVERALL]
    ratios = [group.methods[1].times_plain for group in groups]
    assert [ratio.value for ratio in ratios if ratio] == [1, 3, 10 / 4]


def test_any_two_methods_are_compared_over_all_groups() -> None:
    blocks = [
        tuple(answer(name, prompt, group=prompt, decode_s=seconds) for name, seconds in times.items())
        for prompt, times in (
            ("rag", {"plain": 1.0, "full k=1": 1.0, "static k=2": 0.5}),
            ("qa", {"plain": 9.0, "full k=1": 3.0, "static k=2": 1.5}),
        )
    ]
    found = times_faster(results(*blocks), "static k=2", "full k=1")
    assert found is not None
    assert (found.value, found.low, found.high) == (2, 2, 2)
    assert times_faster(results(*blocks), "static k=2", "dynamic") is None


def test_turns_and_repeats_of_a_prompt_are_one_draw() -> None:
    blocks = [
        (answer("plain", "1", turn, repeat), answer("full", "1", turn, repeat)) for turn in (0, 1) for repeat in (0, 1)
    ]
    group = summarize(results(*blocks, repeats=2))[0]
    assert group.prompts == 1
    assert group.methods[1].answers == 4
    assert group.methods[1].times_plain is not None
    assert group.methods[1].times_plain.low is None  # one prompt: nothing to draw from


def test_each_repeat_has_its_own_ratio() -> None:
    blocks = [
        (answer("plain", "1", 0, 0, decode_s=4.0), answer("full", "1", 0, 0, decode_s=2.0)),
        (answer("plain", "1", 0, 1, decode_s=4.0), answer("full", "1", 0, 1, decode_s=1.0)),
    ]
    full = summarize(results(*blocks, repeats=2))[0].methods[1]
    assert full.times_plain_by_repeat == (2, 4)
    assert full.times_full_by_repeat == ()


def test_a_block_with_an_error_counts_for_no_method() -> None:
    good = (answer("plain", "1"), answer("full", "1", decode_s=0.5))
    bad = (answer("plain", "2", decode_s=100.0), failure("full", "2"))
    with_bad, without = summarize(results(good, bad)), summarize(results(good))
    assert with_bad == without


def test_answers_of_one_token_say_nothing_about_decoding() -> None:
    good = (answer("plain", "1"), answer("full", "1"))
    short = (answer("plain", "2", new_tokens=1, rounds=0), answer("full", "2", new_tokens=1, rounds=0))
    assert summarize(results(good, short))[0].prompts == 1
    assert summarize(results(short)) == ()


def test_verdicts_are_counted() -> None:
    answers = [answer("plain"), *(answer("full", equality=e) for e in ("equal", "equal", "tied", "different"))]
    counts = count_equality(answers)
    assert counts == EqualityCounts(equal=2, tied=1, different=1)
    assert counts.compared == 4
    assert count_equality([answer("full", equality="sampled")]).compared == 0


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_summary_does_not_depend_on_when_it_is_made(repeats: int) -> None:
    blocks = [
        (answer("plain", str(n), 0, r, decode_s=1 + n), answer("full", str(n), 0, r, decode_s=1 + n / 3))
        for n in range(5)
        for r in range(repeats)
    ]
    assert summarize(results(*blocks, repeats=repeats)) == summarize(results(*blocks, repeats=repeats))
