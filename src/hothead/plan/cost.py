"""The cost model: what a round emits over what it takes, and how sure that is. Numbers only; no randomness but seeded.

    round = verify(k + 1) factor(rows) + extend + (k - 1) step(rows) + k head(rows) + update + other
    times plain = acceptance length x (verify(1) + plain's other) / round

Every interval is drawn from: acceptance of the full vocabulary, a size's paired difference to it, and each time, all
independent of each other, with the halves of their 95 % intervals as the halves of a split normal distribution. A time
that two candidates share is the same number in each draw, so that it cancels where they are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hothead.errors import InputError
from hothead.plan.schema import BatchTimes
from hothead.replay.curve import AcceptanceCurves, Interval, Series

DRAWS = 2000
BOUND = 1.959964  # standard deviations from the middle of a normal distribution to the bound of its 95 % interval
STEP = 1.05  # sizes closer than this to each other are not told apart
NONE = "none"


@dataclass(frozen=True)
class Kind:
    """Vocabularies that differ in their size only.

    Attributes:
        sizes: int64 [S], static rows.
        length, difference: acceptance length and its difference to the full vocabulary's, a value a size.
        kept: float64 [S].
        full: acceptance length of the full vocabulary at this k.
    """

    num_steps: int
    slots: int
    policy: str
    sizes: np.ndarray
    length: Series
    difference: Series
    kept: np.ndarray
    full: Interval


def kinds_of(curves: AcceptanceCurves, num_steps: int, ranking: str, group: str) -> list[Kind]:
    """What the curve knows of one k: static vocabularies at sizes a few per cent apart, then each kind of slots."""
    curve = curves.curve(ranking, num_steps, group)
    full, wanted = curve.acceptance_length.at(-1), (ranking, num_steps, group)
    at = _spaced(curves.sizes)
    sizes = np.array(curves.sizes)[at]
    length, difference = _at(curve.acceptance_length, at), _at(curve.difference, at)
    found = [Kind(num_steps, 0, NONE, sizes, length, difference, np.array(curve.kept.value)[at], full)]
    dynamic = [d for d in curves.dynamic if d.slots and (d.ranking, d.num_steps, d.group) == wanted]
    for slots, policy in dict.fromkeys((d.slots, d.policy) for d in dynamic):
        of_kind = sorted((d for d in dynamic if (d.slots, d.policy) == (slots, policy)), key=lambda d: d.size)
        found.append(
            Kind(
                num_steps,
                slots,
                policy,
                np.array([d.size for d in of_kind]),
                _series([d.acceptance_length for d in of_kind]),
                _series([d.difference for d in of_kind]),
                np.array([d.kept.value for d in of_kind]),
                full,
            )
        )
    return found


@dataclass(frozen=True)
class Cost:
    """One kind at every size, in row 0 as measured and in N rows drawn.

    Attributes:
        length: float64 [N + 1, S], emitted tokens per round.
        round_ms: float64 [N + 1, S].
        sections_ms: float64 [S] of each section, as measured.
    """

    kind: Kind
    length: np.ndarray
    round_ms: np.ndarray
    sections_ms: dict[str, np.ndarray]


class CostModel:
    """Times of one batch size, drawn once for all candidates.

    Args:
        target_vocab_size: V.

    Raises:
        InputError: no time for a head of V rows.
    """

    def __init__(self, times: BatchTimes, target_vocab_size: int, draws: int = DRAWS, seed: int = 0) -> None:
        if target_vocab_size not in times.head_ms:
            raise InputError(
                f"head_ms has no time for the full vocabulary of {target_vocab_size} rows, only for "
                f"{', '.join(map(str, sorted(times.head_ms)))}: times of another model"
            )
        self._rng = np.random.default_rng(seed)
        self._draws = draws
        self.full_rows = target_vocab_size
        self.batch = times.batch
        # In a fixed order: the same times give the same draws.
        self.most_tokens = max(times.target_verify_ms)
        self._verify = self._table(times.target_verify_ms)
        self._head = self._table(times.head_ms)
        self._step, self._extend = self._table(times.draft_step_ms), self._time(times.draft_extend_ms)
        self._other, plain_other = self._time(times.other_ms), self._time(times.plain_other_ms)
        self._updates = {(update.policy, update.slots): self._time(update.ms) for update in times.updates}
        self._factor = self._table(times.verify_factor or {1: Interval(value=1.0)})
        self._for_length, self._for_difference = self._normal(), self._normal()
        self.plain_ms = self._verify.at(1) + plain_other  # [N + 1]

    def knows(self, kind: Kind) -> bool:
        """Whether what its slots cost is known."""
        return kind.slots == 0 or (kind.policy, kind.slots) in self._updates

    def cost(self, kind: Kind) -> Cost:
        """Lengths and round times of every size of ``kind``, whose k and slots must be known."""
        k = kind.num_steps
        full = _spread(kind.full.value, kind.full.low, kind.full.high, self._for_length)[:, None]
        differences = np.stack(
            [
                _spread(found.value, found.low, found.high, self._for_difference)
                for found in (kind.difference.at(index) for index in range(len(kind.sizes)))
            ],
            axis=1,
        )
        length = np.maximum(1.0, full * (1 + differences / kind.full.value))
        rows = np.minimum(kind.sizes + kind.slots, self.full_rows)
        update = self._updates.get((kind.policy, kind.slots), np.zeros(self._draws + 1))
        drawn = {  # [N + 1, S], or [N + 1, 1] for what does not depend on rows
            "target_verify": self._verify.at(k + 1)[:, None] * self._factor.at_each(rows),
            "draft_extend": self._extend[:, None],
            "draft_steps": (k - 1) * self._step.at_each(rows),
            "draft_head": k * self._head.at_each(rows),
            "vocab_update": update[:, None],
            "other": self._other[:, None],
        }
        round_ms = sum(drawn.values(), np.zeros((self._draws + 1, len(rows))))
        return Cost(kind, length, round_ms, {name: np.broadcast_to(ms[0], len(rows)) for name, ms in drawn.items()})

    def _time(self, found: Interval) -> np.ndarray:
        return np.maximum(0.0, _spread(found.value, found.low, found.high, self._normal()))

    def _table(self, times: Mapping[int, Interval]) -> "_Table":
        keys = sorted(times)
        return _Table(np.array(keys), np.stack([self._time(times[key]) for key in keys], axis=1))

    def _normal(self) -> np.ndarray:
        """[N + 1], the first 0: the value itself."""
        return np.append(0.0, self._rng.standard_normal(self._draws))


@dataclass(frozen=True)
class _Table:
    """A time by a number, linear between two known ones; below the least, the least one's."""

    keys: np.ndarray  # int64 [K], ascending
    drawn: np.ndarray  # float64 [N + 1, K]

    def at_each(self, keys: np.ndarray) -> np.ndarray:
        """[K] -> [N + 1, K]."""
        return np.stack([self.at(int(key)) for key in keys], axis=1)

    def at(self, key: int) -> np.ndarray:
        right = int(np.searchsorted(self.keys, key).clip(0, len(self.keys) - 1))
        left = max(0, right - 1)
        if key >= self.keys[right] or left == right:
            return self.drawn[:, right]
        share = max(0.0, (key - self.keys[left]) / (self.keys[right] - self.keys[left]))
        return (1 - share) * self.drawn[:, left] + share * self.drawn[:, right]


def interval(drawn: np.ndarray) -> Interval:
    """From [N + 1], its first as measured: with bounds, unless nothing was drawn apart."""
    value, rest = float(drawn[0]), drawn[1:]
    if not rest.size or np.all(rest == value):
        return Interval(value=_rounded(value))
    low, high = np.quantile(rest, [0.025, 0.975])
    return Interval(value=_rounded(value), low=_rounded(min(low, value)), high=_rounded(max(high, value)))


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _spread(value: float, low: float | None, high: float | None, normal: np.ndarray) -> np.ndarray:
    """A value with the noise of its interval, [N + 1]."""
    if low is None or high is None:
        return np.full(len(normal), value)
    return value + normal / BOUND * np.where(normal > 0, high - value, value - low)


def _spaced(sizes: Sequence[int]) -> np.ndarray:
    """Indices of sizes at least a few per cent apart, the least and the full one included."""
    kept = [0]
    for index, size in enumerate(sizes):
        if size >= STEP * sizes[kept[-1]]:
            kept.append(index)
    last = len(sizes) - 1
    return np.array(kept if kept[-1] == last else [*kept, last])


def _at(series: Series, at: np.ndarray) -> Series:
    return _series([series.at(int(index)) for index in at])


def _series(found: Sequence[Interval]) -> Series:
    lows = [one.low for one in found if one.low is not None]
    highs = [one.high for one in found if one.high is not None]
    has_bounds = len(lows) == len(highs) == len(found)
    return Series(
        value=tuple(one.value for one in found),
        low=tuple(lows) if has_bounds else None,
        high=tuple(highs) if has_bounds else None,
    )
