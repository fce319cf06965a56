"""Totals, intervals and what pairing does to them."""

import numpy as np
import pytest

from hothead.replay.law import Replayed
from hothead.replay.tally import OVERALL, Tally


def filled(rounds: np.ndarray, tokens: np.ndarray, groups: list[str]) -> Tally:
    """A tally of one answer a prompt: rounds [P, S], tokens [P]."""
    tally = Tally(groups, 1, rounds.shape[1])
    for prompt, row in enumerate(rounds):
        accepted = (tokens[prompt] - row)[None]  # k = 1: whatever is not a round's own token was accepted
        tally.add(prompt, int(tokens[prompt]), Replayed(row, accepted, np.full(len(row), 2.0)))
    return tally


def test_lengths_are_totals_over_totals_by_group() -> None:
    tally = filled(np.array([[10.0, 5.0], [6.0, 6.0], [2.0, 1.0]]), np.array([20, 6, 4]), ["a", "b", "a"])
    assert tally.group_names == ("a", "b", OVERALL)
    np.testing.assert_allclose(tally.of("a").acceptance_length, [24 / 12, 24 / 6])
    np.testing.assert_allclose(tally.of(OVERALL).acceptance_length, [30 / 18, 30 / 12])
    np.testing.assert_allclose(tally.of(OVERALL).acceptance_rate[0], [12 / 18, 18 / 12])
    np.testing.assert_allclose(tally.of("b").coverage, [1 - 2 / 6] * 2)


def test_prompts_without_tokens_are_not_drawn() -> None:
    tally = Tally(["a", "a"], 1, 1)
    tally.add(0, 5, Replayed(np.array([3.0]), np.array([[2.0]]), np.zeros(1)))
    tally.add(1, 0, Replayed(np.zeros(1), np.zeros((1, 1)), np.zeros(1)))
    group = tally.of("a")
    assert len(group.tokens) == 1
    length, _, _ = group.compare(group.rounds[:, -1])
    assert length.low is None and length.value.tolist() == [5 / 3]


def test_turns_of_a_prompt_add_up_to_one_unit() -> None:
    tally = Tally(["a", "a"], 1, 1)
    for rounds in (3.0, 4.0):
        tally.add(0, 8, Replayed(np.array([rounds]), np.zeros((1, 1)), np.zeros(1)))
    assert tally.tokens.tolist() == [16, 0] and tally.rounds[:, 0].tolist() == [7, 0]


def test_the_interval_of_a_difference_is_paired() -> None:
    """Prompts differ widely, vocabularies by one part in ten on each: a sure difference of unsure lengths."""
    generator = np.random.default_rng(0)
    full = generator.uniform(10, 100, 60)
    tally = filled(np.stack([1.1 * full, full], axis=1), np.full(60, 100), ["a"] * 60)
    group = tally.of("a")
    length, difference, kept = group.compare(group.rounds[:, -1])
    assert length.low is not None and difference.low is not None and kept.low is not None
    assert length.high is not None and difference.high is not None and kept.high is not None
    assert length.high[0] > length.low[1], "unpaired, the two would not be told apart"
    assert difference.high[0] < 0
    np.testing.assert_allclose([difference.low[1], difference.high[1]], 0, atol=1e-12)
    np.testing.assert_allclose([kept.low[1], kept.high[1]], 1)
    np.testing.assert_allclose(difference.value[0], length.value[0] - length.value[1])
    np.testing.assert_allclose(kept.value[0], (length.value[0] - 1) / (length.value[1] - 1))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """300 sets of 40 prompts of a known law; at 95 % the bounds are 4 standard deviations away, and a bootstrap is a
    little optimistic."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        rounds = generator.gamma(20, 1, 40)
        group = filled(rounds[:, None], np.full(40, 30), ["a"] * 40).of("a")
        length, _, _ = group.compare(group.rounds[:, 0], resamples=400)
        assert length.low is not None and length.high is not None
        held += bool(length.low[0] <= 30 / 20 <= length.high[0])
    assert 0.89 < held / 300 < 0.985


def test_a_full_vocabulary_without_gain_has_nothing_to_keep() -> None:
    group = filled(np.array([[10.0], [10.0]]), np.array([10, 10]), ["a", "a"]).of("a")
    _, _, kept = group.compare(group.rounds[:, 0])
    assert kept.value.tolist() == [1.0]


@pytest.mark.parametrize("columns", [1, 5000])
def test_many_vocabularies_give_what_each_gives_alone(columns: int) -> None:
    rounds = np.random.default_rng(2).uniform(5, 20, (8, columns))
    group = filled(rounds, np.full(8, 30), ["a"] * 8).of("a")
    length, _, _ = group.compare(rounds[:, 0], resamples=200)
    alone, _, _ = filled(rounds[:, -1:], np.full(8, 30), ["a"] * 8).of("a").compare(rounds[:, 0], resamples=200)
    assert length.low is not None and alone.low is not None
    assert length.low[-1] == pytest.approx(alone.low[0])
