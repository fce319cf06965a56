"""Where a round's time goes, part by part, as ``--profile`` reports it. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = "hothead.profile"
VERSION = 1


@dataclass(frozen=True)
class SpanCost:
    """What taking the times cost: it is in them.

    Attributes:
        spans_per_round: how many spans were taken.
        us_per_span: an empty one's time.
    """

    spans_per_round: float
    us_per_span: float

    @property
    def ms_per_round(self) -> float:
        return self.spans_per_round * self.us_per_span / 1000


def profile_document(
    ms_by_method: Mapping[str, Mapping[str, float]], costs: Mapping[str, SpanCost] | None = None
) -> dict[str, Any]:
    """The JSON document: per method the round and its parts, in ms and % (the names of ``PROFILE_LABELS``).

    Args:
        ms_by_method: mean time of each part in a round; they add up to it.
        costs: of the methods that were run just now.
    """
    methods = {}
    for method, ms in ms_by_method.items():
        round_ms = sum(ms.values())
        methods[method] = {
            "round_ms": round_ms,
            "ms": dict(ms),
            "percent": {name: 100 * part / round_ms for name, part in ms.items()},
            "draft_decode_ms": ms["draft_head"] + ms["draft_steps"],
        }
        if costs and method in costs:
            cost = costs[method]
            methods[method]["measuring"] = {
                "spans_per_round": cost.spans_per_round,
                "us_per_span": cost.us_per_span,
                "ms_per_round": cost.ms_per_round,
            }
    return {"format": FORMAT, "version": VERSION, "methods": methods}


def cost_remark(costs: Mapping[str, SpanCost]) -> str | None:
    """How much of the times is measuring itself, for people; None if no round was timed."""
    if not costs:
        return None
    most = max(costs.values(), key=lambda cost: cost.ms_per_round)
    return (
        f"Taking these times adds up to {most.ms_per_round:.2f} ms to a round ({most.spans_per_round:.0f} spans of "
        f"{most.us_per_span:.1f} us), most of it to the target's layers."
    )
