"""The result file of ``hothead curve``: versioned JSON that tables, plots, plan and report read, without torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hothead.bench.schema import Machine, ModelIdentity, PromptSetIdentity, Record
from hothead.errors import InputError
from hothead.files import read_document, write_text
from hothead.replay.tally import OVERALL, Bands, GroupTally

FORMAT = "hothead.curve"
VERSION = 1
DIGITS = 6


class Interval(Record):
    """A value with its 95 % bootstrap interval over prompts; no bounds where there was one prompt only."""

    value: float
    low: float | None = None
    high: float | None = None


class Series(Record):
    """A value a size, in the order of ``AcceptanceCurves.sizes``, with 95 % intervals (none: one prompt only)."""

    value: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @classmethod
    def of(cls, bands: Bands) -> "Series":
        low, high = (None if bound is None else _rounded(bound) for bound in (bands.low, bands.high))
        return cls(value=_rounded(bands.value), low=low, high=high)

    def at(self, index: int) -> Interval:
        """The value of the size with that index."""
        bound = (None if bounds is None else bounds[index] for bounds in (self.low, self.high))
        return Interval(value=self.value[index], low=next(bound), high=next(bound))


class RankingIdentity(Record):
    """Where the order of ids came from: a file's name, and a digest of the order."""

    name: str
    digest: str


class CurveSettings(Record):
    """What was asked for."""

    num_steps: tuple[int, ...]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    draft_sampling: Literal["probabilistic", "greedy"]
    max_new_tokens: int
    multiple_of: int


class AcceptanceCurve(Record):
    """One ranking, one k, one task group: every size.

    Attributes:
        tokens: on the paths, the prefill's excluded.
        acceptance_length: emitted tokens per verify pass, bonus included.
        difference: to the full vocabulary's acceptance length, paired.
        kept: accepted drafts per round as a share of the full vocabulary's, (L - 1) / (L_full - 1).
        acceptance_rate: k lists; the i-th is the share of rounds whose first i drafts were accepted, a value a size.
        coverage: share of the tokens that are in the vocabulary; misses are the others.
    """

    ranking: str
    num_steps: int
    group: str
    prompts: int
    tokens: int
    acceptance_length: Series
    difference: Series
    kept: Series
    acceptance_rate: tuple[tuple[float, ...], ...]
    coverage: tuple[float, ...]

    @classmethod
    def of(cls, ranking: str, num_steps: int, group: str, tally: GroupTally) -> "AcceptanceCurve":
        """From what was counted; the last size is the full vocabulary."""
        length, difference, kept = (Series.of(bands) for bands in tally.compare(tally.rounds[:, -1]))
        return cls(
            ranking=ranking,
            num_steps=num_steps,
            group=group,
            prompts=len(tally.tokens),
            tokens=int(tally.tokens.sum()),
            acceptance_length=length,
            difference=difference,
            kept=kept,
            acceptance_rate=tuple(_rounded(row) for row in tally.acceptance_rate),
            coverage=_rounded(tally.coverage),
        )


class DynamicResult(Record):
    """One vocabulary of ``size`` static rows and ``slots`` more, on the same paths; fields as in AcceptanceCurve.

    Attributes:
        over_static: acceptance length less that of the ``size`` static rows alone, paired.
        rows_copied: LM head rows copied to follow the traffic, in all.
    """

    ranking: str
    num_steps: int
    group: str
    size: int
    slots: int
    policy: str
    prompts: int
    tokens: int
    acceptance_length: Interval
    difference: Interval
    over_static: Interval
    kept: Interval
    acceptance_rate: tuple[float, ...]
    coverage: float
    rows_copied: int

    @classmethod
    def of(
        cls,
        about: dict[str, Any],
        group: str,
        tally: GroupTally,
        full_rounds: np.ndarray,
        static_rounds: np.ndarray,
    ) -> "DynamicResult":
        """From what was counted; float64 [P] each, rounds of the full vocabulary and of the static rows alone."""
        length, difference, kept = (Series.of(bands).at(0) for bands in tally.compare(full_rounds))
        over_static = Series.of(tally.compare(static_rounds)[1]).at(0)
        return cls(
            **about,
            group=group,
            prompts=len(tally.tokens),
            tokens=int(tally.tokens.sum()),
            acceptance_length=length,
            difference=difference,
            over_static=over_static,
            kept=kept,
            acceptance_rate=_rounded(tally.acceptance_rate[:, 0]),
            coverage=round(float(tally.coverage[0]), DIGITS),
            rows_copied=tally.rows_copied,
        )


class MissedToken(Record):
    """A token of the answers that a vocabulary lacks, with the text around its first occurrence."""

    target_id: int
    text: str
    count: int
    before: str
    after: str


class MissedTokens(Record):
    """What the first ``size`` ids of a ranking lack: ``tokens`` of the answers, ``distinct`` ids, examples."""

    ranking: str
    size: int
    tokens: int
    distinct: int
    examples: tuple[MissedToken, ...]


class Cost(Record):
    """What the measurement took, models loaded.

    Attributes:
        generate_s: answering.
        pass_s, head_s: the pass of target and draft, and its full-vocabulary logits.
        sizes_s, dynamic_s: what all sizes, and all dynamic vocabularies, cost on top.
        wall_s, cpu_s: all of it, by the clock and summed over cores; None in a file of an earlier hothead, as is
        peak_memory_gib: the most that the process ever held.
    """

    generate_s: float
    pass_s: float
    head_s: float
    sizes_s: float
    dynamic_s: float
    answers: int
    cached: int  # answers whose pass was on disk
    wall_s: float | None = None
    cpu_s: float | None = None
    peak_memory_gib: float | None = None


class AcceptanceCurves(Record):
    """The whole file.

    Attributes:
        sizes: rows, ascending; the last is the full vocabulary.
        missed: examples at a handful of sizes; none in a file of an earlier hothead.
        skipped: prompts without an answer, and why.
    """

    format: str = FORMAT
    version: int = VERSION
    versions: dict[str, str]
    machine: Machine
    target: ModelIdentity
    draft: ModelIdentity
    tokenizer_fingerprint: str
    dtype: str
    device: str
    prompt_set: PromptSetIdentity
    settings: CurveSettings
    rankings: tuple[RankingIdentity, ...]
    sizes: tuple[int, ...]
    groups: tuple[str, ...]
    curves: tuple[AcceptanceCurve, ...]
    dynamic: tuple[DynamicResult, ...] = ()
    missed: tuple[MissedTokens, ...] = ()
    skipped: tuple[str, ...] = ()
    cost: Cost

    @property
    def overall(self) -> str:
        """The name of the group that holds all prompts."""
        return OVERALL if OVERALL in self.groups else self.groups[-1]

    def curve(
        self, ranking: str | None = None, num_steps: int | None = None, group: str | None = None
    ) -> AcceptanceCurve:
        """One curve; by default of the first ranking and k, over all prompts.

        Raises:
            InputError: there is none of that ranking, k or group.
        """
        wanted = (
            self.rankings[0].name if ranking is None else ranking,
            self.settings.num_steps[0] if num_steps is None else num_steps,
            self.overall if group is None else group,
        )
        for curve in self.curves:
            if (curve.ranking, curve.num_steps, curve.group) == wanted:
                return curve
        names = ", ".join(ranking.name for ranking in self.rankings)
        raise InputError(
            f"no curve of ranking {wanted[0]!r}, k = {wanted[1]}, group {wanted[2]!r}; there are rankings {names}, "
            f"k = {', '.join(map(str, self.settings.num_steps))}, groups {', '.join(self.groups)}"
        )

    def index(self, size: int) -> int:
        """The place of ``size`` in the series: of the least size that is not smaller, as a vocabulary is rounded up.

        Raises:
            InputError: the size is outside the curve.
        """
        if not 1 <= size <= self.sizes[-1]:
            raise InputError(f"size must be between 1 and {self.sizes[-1]}; found {size}")
        return int(np.searchsorted(self.sizes, size))

    @property
    def standard_sizes(self) -> list[int]:
        """A handful for tables: the powers of two that a vocabulary can have, and the full one."""
        return standard_sizes(self.sizes)

    def save(self, path: Path) -> None:
        """Write the JSON document, atomically."""
        write_text(path, json.dumps(self.model_dump(), ensure_ascii=False, allow_nan=False) + "\n")


def standard_sizes(sizes: Sequence[int]) -> list[int]:
    """Of ``sizes``, ascending: the powers of two, and the last."""
    powers = (1 << exponent for exponent in range(int(sizes[-1]).bit_length()))
    return [*(size for size in powers if size in sizes[:-1]), int(sizes[-1])]


def read_curves(path: Path) -> AcceptanceCurves:
    """Read what ``hothead curve -o`` wrote.

    Raises:
        InputError: missing, something else, of another version, or damaged.
    """
    return read_document(Path(path), AcceptanceCurves, FORMAT, VERSION, "curve", "not a result of hothead curve -o")


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple((np.round(values, DIGITS) + 0.0).tolist())  # no -0.0
