"""Replayed answers added up by prompt, and how sure the sums are. Numbers only.

The acceptance length of several answers is the total of their tokens over the total of their expected rounds, so that
every token weighs the same. Its 95 % interval draws prompts, whose answers are not independent of each other. All
vocabularies share the draws (paired), so a difference between two of them is not blurred by what makes prompts differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hothead.bench.stats import CONFIDENCE, RESAMPLES
from hothead.replay.law import Replayed

OVERALL = "overall"
_COLUMNS = 4096  # vocabularies whose draws exist at one time


@dataclass(frozen=True)
class Bands:
    """A value for each of S vocabularies with its 95 % interval; no interval where there was one prompt only.

    Attributes:
        value, low, high: float64 [S].
    """

    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Tally:
    """What S vocabularies did, by prompt.

    Args:
        groups: the task group of each prompt, [P].
        num_steps: k.
        vocabularies: S.

    Attributes:
        tokens: float64 [P], path tokens.
        rounds: float64 [P, S], expected.
        rows_copied: int64 [P].
    """

    def __init__(self, groups: Sequence[str], num_steps: int, vocabularies: int) -> None:
        self._groups = np.array(groups)
        self.tokens = np.zeros(len(groups))
        self.rounds = np.zeros((len(groups), vocabularies))
        self.rows_copied = np.zeros(len(groups), dtype=np.int64)
        names = dict.fromkeys(groups)
        self._accepted = {name: np.zeros((num_steps, vocabularies)) for name in names}
        self._missed = {name: np.zeros(vocabularies) for name in names}

    @property
    def group_names(self) -> tuple[str, ...]:
        """In order of appearance, then ``overall`` where there are several."""
        names = tuple(dict.fromkeys(self._groups.tolist()))
        return names if len(names) == 1 else (*names, OVERALL)

    def add(self, prompt: int, tokens: int, replayed: Replayed) -> None:
        """Add one answer of the prompt with that number."""
        self.tokens[prompt] += tokens
        self.rounds[prompt] += replayed.rounds
        self.rows_copied[prompt] += replayed.rows_copied
        group = self._groups[prompt]
        self._accepted[group] += replayed.accepted
        self._missed[group] += replayed.missed

    def of(self, group: str) -> "GroupTally":
        """The prompts of one group (``overall``: all) that have anything to count."""
        is_in = self.tokens > 0
        if group in self._accepted:
            is_in &= self._groups == group
        wanted = [group] if group in self._accepted else list(self._accepted)
        return GroupTally(
            self.tokens[is_in],
            self.rounds[is_in],
            np.sum([self._accepted[name] for name in wanted], axis=0),
            np.sum([self._missed[name] for name in wanted], axis=0),
            int(self.rows_copied[is_in].sum()),
        )


@dataclass(frozen=True)
class GroupTally:
    """What S vocabularies did on the P prompts of one group.

    Attributes:
        tokens: float64 [P]; rounds: float64 [P, S]; accepted: float64 [k, S]; missed: float64 [S].
    """

    tokens: np.ndarray
    rounds: np.ndarray
    accepted: np.ndarray
    missed: np.ndarray
    rows_copied: int

    @property
    def acceptance_length(self) -> np.ndarray:
        """float64 [S]: emitted tokens per verify pass."""
        return self.tokens.sum() / self.rounds.sum(axis=0)

    @property
    def acceptance_rate(self) -> np.ndarray:
        """float64 [k, S]: share of the rounds whose first i + 1 drafts were accepted."""
        return self.accepted / self.rounds.sum(axis=0)

    @property
    def coverage(self) -> np.ndarray:
        """float64 [S]: share of the tokens that could have been drafted."""
        return 1.0 - self.missed / self.tokens.sum()

    def compare(self, full_rounds: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> tuple[Bands, Bands, Bands]:
        """Acceptance length, its difference to a full vocabulary's, and the share of that one's gain that is kept.

        Args:
            full_rounds: float64 [P], the full vocabulary's on the same prompts.

        Returns:
            Acceptance length L, L - L_full, and (L - 1) / (L_full - 1): accepted drafts per round against the full
            vocabulary's (1 if that has none).
        """
        prompts = len(self.tokens)
        draws = None
        if prompts > 1:
            drawn = np.random.default_rng(seed).integers(prompts, size=(resamples, prompts))
            draws = np.stack([np.bincount(row, minlength=prompts) for row in drawn]).astype(np.float64)
        whole = np.ones((1, prompts))
        values = _three(whole @ self.tokens, whole @ self.rounds, whole @ full_rounds)
        if draws is None:
            return tuple(Bands(value[0]) for value in values)  # type: ignore[return-value]
        bounds: list[list[np.ndarray]] = [[], [], []]
        tokens, full = draws @ self.tokens, draws @ full_rounds
        for at in range(0, self.rounds.shape[1], _COLUMNS):
            drawn_values = _three(tokens, draws @ self.rounds[:, at : at + _COLUMNS], full)
            for bound, drawn_value in zip(bounds, drawn_values, strict=True):
                bound.append(np.quantile(drawn_value, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0))
        low_high = [np.concatenate(bound, axis=1) for bound in bounds]
        return tuple(Bands(v[0], b[0], b[1]) for v, b in zip(values, low_high, strict=True))  # type: ignore[return-value]


def _three(
    tokens: np.ndarray, rounds: np.ndarray, full_rounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[B], [B, S] and [B] -> length, difference and kept share, each [B, S]."""
    length, full = tokens[:, None] / rounds, (tokens / full_rounds)[:, None]
    gain = np.where(full > 1, full - 1, 1.0)
    return length, length - full, np.where(full > 1, (length - 1) / gain, 1.0)
