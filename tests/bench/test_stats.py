"""Statistics against answers that are known."""

import numpy as np
import pytest

from hothead.bench.stats import Estimate, Sample, median, median_estimate, median_ratio, rate, rate_ratio


def sample(tokens: list[float], seconds: list[float]) -> Sample:
    return Sample(np.array(tokens), np.array(seconds))


def test_a_rate_is_a_ratio_of_totals_not_a_mean_of_rates() -> None:
    uneven = sample([90, 10], [1, 9])
    assert uneven.rate == 10  # the mean of the rates would be 45.6
    assert rate(uneven).value == 10


def test_equal_prompts_leave_no_doubt() -> None:
    estimate = rate(sample([10] * 5, [2] * 5))
    assert estimate == Estimate(5.0, 5.0, 5.0)


def test_pairing_takes_out_what_makes_prompts_differ() -> None:
    seconds = np.array([1.0, 5.0, 2.0, 40.0, 3.0])
    slow, fast = Sample(np.full(5, 100.0), seconds), Sample(np.full(5, 100.0), seconds / 2)
    ratio = rate_ratio(fast, slow)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    alone = rate(fast)
    assert alone.low is not None and alone.high is not None
    assert alone.high / alone.low > 2  # without pairing, the prompts' spread would be in it


def test_one_prompt_has_a_value_and_no_interval() -> None:
    assert rate_ratio(sample([10], [1]), sample([10], [2])) == Estimate(2.0, None, None)


def test_draws_are_seeded() -> None:
    generator = np.random.default_rng(0)
    a, b = (Sample(np.ones(30), generator.uniform(1, 2, 30)) for _ in range(2))
    assert rate_ratio(a, b) == rate_ratio(a, b)
    assert rate_ratio(a, b, seed=1) != rate_ratio(a, b, seed=2)


def test_samples_must_pair_up() -> None:
    with pytest.raises(ValueError, match="2 prompts against 1"):
        rate_ratio(sample([1, 1], [1, 1]), sample([1], [1]))
    with pytest.raises(ValueError, match="2 rounds against 1"):
        median_ratio(np.ones(2), np.ones(1))


def test_the_interval_is_as_wide_as_theory_says() -> None:
    """The mean of n times with standard deviation s has standard error s / sqrt(n); rate = 1 / mean, so
    its relative error is the same. Bootstrap with 2000 draws estimates the width to a few per cent."""
    generator = np.random.default_rng(0)
    count, deviation = 400, 0.2
    seconds = generator.normal(1.0, deviation, count)
    estimate = rate(Sample(np.ones(count), seconds))
    assert estimate.low is not None and estimate.high is not None
    expected = 2 * 1.96 * seconds.std() / np.sqrt(count) / seconds.mean() ** 2
    assert estimate.high - estimate.low == pytest.approx(expected, rel=0.1)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """200 experiments whose true ratio is 1.5. At 95% coverage fewer than 176 hits has probability below 1e-4; the
    percentile bootstrap with 40 prompts covers a little less than it says (93% or so), hence the margin to 170."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        difficulty = generator.uniform(0.5, 2, 40)
        noise = generator.normal(1, 0.1, (2, 40))
        ratio = rate_ratio(
            Sample(np.ones(40), difficulty * noise[0]), Sample(np.ones(40), 1.5 * difficulty * noise[1]), 400
        )
        assert ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 1.5 <= ratio.high
    assert hits >= 170


def test_medians() -> None:
    assert median([3, 1, 100]) == 3
    assert median(np.array([1.0, 2.0])) == 1.5
    ratio = median_ratio(np.array([2.0, 2, 2, 50]), np.array([4.0, 4, 4, 4]))
    assert ratio.value == 0.5  # one interruption moves a mean, not a median
    assert ratio.low == 0.5


def test_the_interval_of_a_median_holds_it() -> None:
    """The order statistics that bound 95% of resampled medians of 1..101 lie about 1.96 * 0.5 * sqrt(101) ranks off."""
    found = median_estimate(np.arange(1.0, 102.0))
    assert found.value == 51
    assert found.low == pytest.approx(51 - 10, abs=3)
    assert found.high == pytest.approx(51 + 10, abs=3)
    assert median_estimate(np.array([2.0])).low is None
