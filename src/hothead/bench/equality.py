"""Is it the same text? Answers compared token by token, and the first difference put to the target.

In exact arithmetic a greedy answer does not depend on how the target's passes are cut. In bfloat16 it can: a pass of
five tokens and five passes of one round differently, and where the two likeliest tokens are that close, either may
win. So at the first difference the common prefix goes through the target again, cut as each method cut it, and both
logits are read. A tie is: under either cut the two tokens are within a few rounding steps of each other, and no third
token is above them by more. In float32 nothing counts as a tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hothead.bench.schema import Difference, Equality
from hothead.models.target import Target

# A tie's two logits are at most this many rounding steps (eps times the largest logit) apart. Between one-token passes
# and passes of five, SmolLM2-135M's gap of its two top logits moves by 0.3 steps (median) and by 1.6 at most (516
# positions, bfloat16, CPU).
TIE_ROUNDING_STEPS = 2


class Pass(NamedTuple):
    """One of the target's: tokens that it emitted, and how many it read at once (1, and those drafted)."""

    emitted: int
    width: int = 1


@dataclass(frozen=True)
class Answered:
    """An answer and the passes that made it.

    Attributes:
        target_ids: emitted.
        passes: prefill first; they emitted at least as many.
    """

    target_ids: tuple[int, ...]
    passes: tuple[Pass, ...]

    @classmethod
    def plainly(cls, target_ids: Sequence[int]) -> "Answered":
        """One token a pass."""
        return cls(tuple(target_ids), (Pass(1),) * len(target_ids))


@dataclass(frozen=True)
class Verdict:
    """``equality`` is "equal", "tied" or "different"; the latter two say where."""

    equality: Equality
    difference: Difference | None = None


def judge(target: Target, prompt_ids: Sequence[int], plain: Answered, other: Answered) -> Verdict:
    """Compare a greedy answer with plain decoding's, and explain the first difference.

    Args:
        prompt_ids: int [P], target ids that both answered.
    """
    if plain.target_ids == other.target_ids:
        return Verdict("equal")
    position = common_length(plain.target_ids, other.target_ids)
    plain_id = plain.target_ids[position] if position < len(plain.target_ids) else None
    other_id = other.target_ids[position] if position < len(other.target_ids) else None
    if plain_id is None or other_id is None:
        # One answer goes on where the other is over: no logits decide that.
        return Verdict("different", Difference(position=position, plain_target_id=plain_id, target_id=other_id))
    by_plain = logits_at(target, prompt_ids, plain, position)
    by_other = logits_at(target, prompt_ids, other, position)
    tolerance = tie_tolerance(target.dtype, by_plain, by_other)
    difference = Difference(
        position=position,
        plain_target_id=plain_id,
        target_id=other_id,
        plain_gap=float(by_plain[plain_id] - by_plain[other_id]),
        gap=float(by_other[other_id] - by_other[plain_id]),
        tolerance=tolerance,
    )
    is_tie = tolerance > 0 and all(is_tied(logits, plain_id, other_id, tolerance) for logits in (by_plain, by_other))
    return Verdict("tied" if is_tie else "different", difference)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return min(len(first), len(second))


def tie_tolerance(dtype: torch.dtype, *logits: Tensor) -> float:
    """The largest gap between two logits that rounding explains; 0 in float32, where answers must be equal.

    The scale is that of the largest magnitude, not of the top logit, which may be near 0 while others are at -40.
    """
    if dtype == torch.float32:
        return 0.0
    largest = max(float(row.abs().max()) for row in logits)
    return TIE_ROUNDING_STEPS * torch.finfo(dtype).eps * largest


def is_tied(logits: Tensor, first_target_id: int, second_target_id: int, tolerance: float) -> bool:
    """Whether both ids are within ``tolerance`` of the largest of ``logits``, float [V]."""
    top = float(logits.max())
    return all(top - float(logits[target_id]) <= tolerance for target_id in (first_target_id, second_target_id))


@torch.inference_mode()
def logits_at(target: Target, prompt_ids: Sequence[int], answer: Answered, position: int) -> Tensor:
    """The target's logits from which ``answer`` took its token at ``position``, float32 [V], by the same passes.

    Drafted tokens that were rejected are not known any more; any token in their place gives the pass its shape, and
    what comes after a position does not reach it.
    """
    device = target.device
    widest = max(width for _, width in answer.passes)
    cache = target.new_cache(len(prompt_ids) + position + widest + 1)
    output = target.forward(torch.tensor(list(prompt_ids), device=device), cache, last=1)
    start = answer.passes[0].emitted
    if position < start:
        return output.logits[-1].float()
    for emitted, width in answer.passes[1:]:
        fed = list(answer.target_ids[start - 1 : start - 1 + emitted])
        fed += [fed[-1]] * (width - len(fed))
        committed = cache.length
        output = target.forward(torch.tensor(fed, device=device), cache)
        if position < start + emitted:
            return output.logits[position - start].float()
        cache.truncate(committed + emitted)
        start += emitted
    raise ValueError(f"the answer's passes emitted {start} tokens, and position {position} is past them")
