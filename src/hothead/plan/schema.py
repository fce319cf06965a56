"""Two files, versioned JSON that is read and written without torch: times of a machine, and the plan made with them."""

import json
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hothead.bench.schema import Machine, ModelIdentity, PromptSetIdentity, Record
from hothead.errors import InputError
from hothead.files import read_document, write_text
from hothead.replay.curve import Interval, RankingIdentity

TIMES_FORMAT = "hothead.times"
PLAN_FORMAT = "hothead.plan"
VERSION = 1

Verdict = Literal["prune", "keep the full vocabulary", "do not speculate"]
PRUNE: Verdict = "prune"
KEEP_FULL: Verdict = "keep the full vocabulary"
DO_NOT_SPECULATE: Verdict = "do not speculate"

# The parts of a round, as the engine's stopwatch names them.
SECTIONS = ("target_verify", "draft_extend", "draft_steps", "draft_head", "vocab_update", "other")


def _interval(value: Any) -> Any:
    """A bare number is an interval without bounds."""
    return {"value": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_milliseconds(found: Interval) -> None:
    low, high = (found.value if bound is None else bound for bound in (found.low, found.high))
    if not 0 <= low <= found.value <= high < float("inf"):
        raise ValueError("milliseconds are 0 or more, with low <= value <= high")


Ms = Annotated[Interval, BeforeValidator(_interval)]  # milliseconds


def _by_rows(value: Any) -> Any:
    """A single time holds for heads of any number of rows."""
    if isinstance(value, int | float | Interval) or (isinstance(value, dict) and "value" in value):
        return {1: value}
    return value


MsByRows = Annotated[dict[int, Ms], BeforeValidator(_by_rows)]


class UpdateTime(Record):
    """What a dynamic vocabulary of so many slots adds to a round: its update, and packing the rows it copied."""

    policy: str
    slots: int = Field(ge=1)
    ms: Ms


class BatchTimes(Record):
    """Times at one batch size: of one call for all its sequences.

    Attributes:
        plain_other_ms: of a plain decoding step, what is not the target's pass.
        target_verify_ms: by tokens per sequence; 1 is a plain decoding step, k + 1 verifies k drafts. Those between
            two given ones are interpolated.
        draft_extend_ms: the draft takes in what a round emitted; once a round.
        draft_step_ms: the draft's layers go on from a drafted token, k - 1 times a round; by rows of the head called
            between two steps, which may drive the layers out of the caches, or one time for all.
        head_ms: by rows of the draft's LM head, choosing a token included, k times a round; interpolated, so the
            least and the full number of rows must be there. Slots count as rows.
        verify_factor: by rows of the draft's head, the target's pass beside it over the pass beside the full head,
            for the same reason; 1 where there is none.
        updates: by policy and slots; those that are not there are not planned.
        other_ms: of a round, what none of these take.
    """

    batch: int = Field(ge=1)
    plain_other_ms: Ms = Interval(value=0.0)
    target_verify_ms: dict[int, Ms]
    draft_extend_ms: Ms
    draft_step_ms: MsByRows
    head_ms: dict[int, Ms]
    verify_factor: dict[int, Ms] = Field(default_factory=dict)
    updates: tuple[UpdateTime, ...] = ()
    other_ms: Ms = Interval(value=0.0)

    @model_validator(mode="after")
    def _check(self) -> "BatchTimes":
        if min(self.target_verify_ms, default=0) != 1 or len(self.target_verify_ms) < 2:
            raise ValueError("target_verify_ms must give the time of 1 token (plain decoding) and of more")
        if not self.head_ms or min(self.head_ms) < 1:
            raise ValueError("head_ms must give times by rows, 1 or more")
        if not self.draft_step_ms or min(*self.draft_step_ms, *self.verify_factor, 1) < 1:
            raise ValueError("draft_step_ms and verify_factor go by rows, 1 or more")
        tables = (self.target_verify_ms, self.head_ms, self.draft_step_ms, self.verify_factor)
        single = (self.plain_other_ms, self.draft_extend_ms, self.other_ms, *(u.ms for u in self.updates))
        for found in (*chain.from_iterable(table.values() for table in tables), *single):
            _check_milliseconds(found)
        if self.target_verify_ms[1].value <= 0:
            raise ValueError("target_verify_ms of 1 token must be above 0")
        return self


class Times(Record):
    """The times file: what a round costs on one machine, measured by ``hothead plan`` or written by hand.

    Attributes:
        machine: measured: what it is; by hand: its name will do.
        answers: timed answers a variant; 0 where the file was written by hand.
    """

    format: Literal["hothead.times"] = "hothead.times"
    version: Literal[1] = 1
    machine: Machine | str
    dtype: str
    device: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    target: ModelIdentity | None = None
    draft: ModelIdentity | None = None
    answers: int = 0
    batches: tuple[BatchTimes, ...] = Field(min_length=1)

    def at(self, batch: int) -> BatchTimes:
        """
        Raises:
            InputError: no times for that batch size.
        """
        for found in self.batches:
            if found.batch == batch:
                return found
        known = ", ".join(str(found.batch) for found in self.batches)
        raise InputError(
            f"no times for batch size {batch}, only for {known}; the embedded engine measures batch size 1 alone, so "
            "give a times file that has it: --times FILE"
        )

    def save(self, path: Path) -> None:
        """Write the JSON document, atomically."""
        _write(self, path)


class Candidate(Record):
    """One way to draft: rows, slots and k. Intervals are 95 %.

    Attributes:
        size: static rows; the full vocabulary has as many as the target.
        slots, policy: dynamic rows beside them and what fills them; 0 and "none": static.
        num_steps: k.
        acceptance_length: emitted tokens per round, as the curve says.
        kept: accepted drafts per round as a share of the full vocabulary's.
        round_ms: all sections.
        tokens_per_s: of the whole batch.
        times_plain: speed over plain decoding's.
        times_full: speed over that of the full-vocabulary draft at its own best k.
        sections_ms: by the names of ``SECTIONS``.
    """

    size: int
    slots: int
    policy: str
    num_steps: int
    acceptance_length: Interval
    kept: float
    round_ms: Interval
    tokens_per_s: Interval
    times_plain: Interval
    times_full: Interval
    sections_ms: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Each section's share of the round."""
        total = sum(self.sections_ms.values())
        return {name: ms / total if total else 0.0 for name, ms in self.sections_ms.items()}


class NearTie(Record):
    """Candidates of one kind whose interval reaches the best one's value: rows from ``least`` to ``most``."""

    least: int
    most: int
    slots: int
    policy: str
    num_steps: int
    times_plain: float  # the best of them


class Limits(Record):
    """What bounds the speed-up.

    Attributes:
        shares: of the choice's round, by section.
        largest: the section with the largest share.
        free_head: speed over plain decoding's if the full vocabulary's head and updates took no time: no pruning gets
            further without accepting more.
    """

    shares: dict[str, float]
    largest: str
    free_head: float


class BatchPlan(Record):
    """The plan for one batch size.

    Attributes:
        verdict, reason: what to do, and one sentence on why.
        choice: what to run: the pruned vocabulary, or the best full one where that is kept; where speculation does
            not pay, the candidate that came closest.
        full: the full vocabulary at its best k.
        plain_tokens_per_s: plain decoding of the whole batch.
        near_ties: not to be told from the best by these numbers; the choice's own kind may be among them.
        candidates: every k and kind of vocabulary, at sizes a few per cent apart.
    """

    batch: int
    verdict: Verdict
    reason: str
    choice: Candidate
    full: Candidate
    plain_tokens_per_s: Interval
    near_ties: tuple[NearTie, ...]
    limits: Limits
    candidates: tuple[Candidate, ...]

    def full_at(self, num_steps: int) -> Candidate:
        """The full vocabulary at another k."""
        rows = self.full.size
        return next(c for c in self.candidates if (c.size, c.slots, c.num_steps) == (rows, 0, num_steps))


class Plan(Record):
    """The whole file.

    Attributes:
        ranking, group, temperature, prompt_set: of the curve it is made from.
        target_vocab_size: V.
        remarks: what was left out, and why.
    """

    format: Literal["hothead.plan"] = "hothead.plan"
    version: Literal[1] = 1
    versions: dict[str, str]
    target: ModelIdentity
    draft: ModelIdentity
    prompt_set: PromptSetIdentity
    ranking: RankingIdentity
    group: str
    temperature: float
    target_vocab_size: int
    times: Times
    batches: tuple[BatchPlan, ...] = Field(min_length=1)
    remarks: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        """Write the JSON document, atomically."""
        _write(self, path)


def read_times(path: Path) -> Times:
    """Read a times file.

    Raises:
        InputError: missing, something else, of another version, or damaged.
    """
    return read_document(Path(path), Times, TIMES_FORMAT, VERSION, TIMES_FORMAT, "expected times: see docs/plan.md")


def read_plan(path: Path) -> Plan:
    """Read what ``hothead plan -o`` wrote.

    Raises:
        InputError: missing, something else, of another version, or damaged.
    """
    return read_document(Path(path), Plan, PLAN_FORMAT, VERSION, PLAN_FORMAT, "expected what hothead plan -o wrote")


def _write(document: Record, path: Path) -> None:
    write_text(path, json.dumps(document.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
