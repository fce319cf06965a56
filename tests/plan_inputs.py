"""A curve and times of made-up numbers, for the tests of plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hothead.bench.schema import Machine, ModelIdentity, PromptSetIdentity
from hothead.plan.schema import BatchTimes, Times
from hothead.replay.curve import (
    AcceptanceCurve,
    AcceptanceCurves,
    Cost,
    CurveSettings,
    DynamicResult,
    Interval,
    RankingIdentity,
    Series,
)

V = 1024
SIZES = (64, 128, 256, 512, V)
MACHINE = Machine(cpu="none", cores=1, threads=1, memory_gib=1.0)


def series(values: Sequence[float], width: float) -> Series:
    """Values with bounds ``width`` on either side; 0: without bounds."""
    if not width:
        return Series(value=tuple(values))
    return Series(
        value=tuple(values), low=tuple(value - width for value in values), high=tuple(value + width for value in values)
    )


def curve_of(lengths: Sequence[float], num_steps: int, width: float, difference_width: float) -> AcceptanceCurve:
    differences = [length - lengths[-1] for length in lengths]
    gains = [(length - 1) / (lengths[-1] - 1) if lengths[-1] > 1 else 1.0 for length in lengths]
    difference = series(differences, difference_width)
    if difference.low is not None and difference.high is not None:  # the full vocabulary is itself, surely
        difference = Series(value=difference.value, low=(*difference.low[:-1], 0.0), high=(*difference.high[:-1], 0.0))
    return AcceptanceCurve(
        ranking="own",
        num_steps=num_steps,
        group="overall",
        prompts=10,
        tokens=1000,
        acceptance_length=series(lengths, width),
        difference=difference,
        kept=series(gains, 0.0),
        acceptance_rate=tuple(tuple(0.0 for _ in lengths) for _ in range(num_steps)),
        coverage=tuple(np.linspace(0.9, 1, len(lengths)).tolist()),
    )


def dynamic_of(length: float, full: float, size: int, slots: int, num_steps: int, **changes: Any) -> DynamicResult:
    found: dict[str, Any] = {
        "ranking": "own",
        "num_steps": num_steps,
        "group": "overall",
        "size": size,
        "slots": slots,
        "policy": "on_miss",
        "prompts": 10,
        "tokens": 1000,
        "acceptance_length": Interval(value=length),
        "difference": Interval(value=length - full),
        "over_static": Interval(value=0.0),
        "kept": Interval(value=1.0),
        "acceptance_rate": (0.0,) * num_steps,
        "coverage": 1.0,
        "rows_copied": 10,
    }
    return DynamicResult(**{**found, **changes})


def curves_of(
    lengths: Mapping[int, Sequence[float]],
    sizes: Sequence[int] = SIZES,
    width: float = 0.0,
    difference_width: float = 0.0,
    dynamic: Sequence[DynamicResult] = (),
) -> AcceptanceCurves:
    """A curve file of acceptance lengths by k, one a size."""
    model = ModelIdentity(name="model")
    return AcceptanceCurves(
        versions={"hothead": "0"},
        machine=MACHINE,
        target=model,
        draft=model,
        tokenizer_fingerprint="0",
        dtype="bfloat16",
        device="cpu",
        prompt_set=PromptSetIdentity(name="prompts", prompts=10, digest="0"),
        settings=CurveSettings(
            num_steps=tuple(lengths),
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            seed=0,
            draft_sampling="probabilistic",
            max_new_tokens=64,
            multiple_of=64,
        ),
        rankings=(RankingIdentity(name="own", digest="0"),),
        sizes=tuple(sizes),
        groups=("overall",),
        curves=tuple(curve_of(found, k, width, difference_width) for k, found in lengths.items()),
        dynamic=tuple(dynamic),
        cost=Cost(generate_s=0, pass_s=0, head_s=0, sizes_s=0, dynamic_s=0, answers=10, cached=0),
    )


def times_of(head_ms: Mapping[int, Any] | None = None, **changes: Any) -> Times:
    """Times of one batch size: a target of 10 ms, a head of 2 ms when full."""
    batch: dict[str, Any] = {
        "batch": 1,
        "target_verify_ms": {1: 10.0, 5: 11.0},
        "draft_extend_ms": 0.5,
        "draft_step_ms": 0.25,
        "head_ms": {64: 0.125, V: 2.0} if head_ms is None else head_ms,
        "other_ms": 0.5,
    }
    dtype = changes.pop("dtype", "bfloat16")
    return Times(machine="none", dtype=dtype, batches=(BatchTimes.model_validate({**batch, **changes}),))
