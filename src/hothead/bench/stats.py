"""Statistics of a comparison: rates, ratios of rates, and how sure they are.

A rate is total tokens over total seconds, so that every token weighs the same. The prompt is the unit that is drawn:
tokens of one prompt, and repeats of it, are not independent. A ratio of two methods draws the same prompts for both
(paired), which removes what makes prompts differ. All draws are seeded: the same numbers give the same interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95% bootstrap interval; no bounds where there was nothing to draw from."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Sample:
    """What one method did, by prompt.

    Attributes:
        tokens: [P], decoded tokens (each answer's first, which prefill emits, is not counted).
        seconds: [P], that they took.
    """

    tokens: np.ndarray
    seconds: np.ndarray

    @property
    def rate(self) -> float:
        """Tokens per second over all prompts."""
        return float(self.tokens.sum() / self.seconds.sum())


def median(values: Sequence[float] | np.ndarray) -> float:
    """The middle value, or the mean of the two middle ones."""
    return float(np.median(values))


def rate(sample: Sample, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Tokens per second, with the interval over prompts."""
    draws = _draws(len(sample.tokens), resamples, seed)
    return _estimate(sample.rate, _rates(sample, draws))


def rate_ratio(sample: Sample, baseline: Sample, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """How many times ``baseline``'s rate ``sample`` reaches; entry p of both is the same prompt."""
    if len(sample.tokens) != len(baseline.tokens):
        raise ValueError(f"paired samples: {len(sample.tokens)} prompts against {len(baseline.tokens)}")
    draws = _draws(len(sample.tokens), resamples, seed)
    return _estimate(sample.rate / baseline.rate, _rates(sample, draws) / _rates(baseline, draws))


def median_ratio(
    seconds: np.ndarray, baseline_seconds: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Median over median of two series [R] timed in turn; the rounds are drawn, the same ones for both."""
    if len(seconds) != len(baseline_seconds):
        raise ValueError(f"paired series: {len(seconds)} rounds against {len(baseline_seconds)}")
    draws = _draws(len(seconds), resamples, seed)
    if draws is None:
        return Estimate(median(seconds) / median(baseline_seconds))
    drawn = np.median(seconds[draws], axis=1) / np.median(baseline_seconds[draws], axis=1)
    return _estimate(median(seconds) / median(baseline_seconds), drawn)


def median_estimate(seconds: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Median of a series [R], with the interval over its rounds."""
    return median_ratio(seconds, np.ones(len(seconds)), resamples, seed)


def _draws(count: int, resamples: int, seed: int) -> np.ndarray | None:
    """Indices [resamples, count] drawn with replacement; None if one item leaves nothing to draw."""
    if count < 2:
        return None
    return np.random.default_rng(seed).integers(count, size=(resamples, count))


def _rates(sample: Sample, draws: np.ndarray | None) -> np.ndarray:
    if draws is None:
        return np.empty(0)
    return sample.tokens[draws].sum(axis=1) / sample.seconds[draws].sum(axis=1)


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    if not drawn.size:
        return Estimate(value)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))
