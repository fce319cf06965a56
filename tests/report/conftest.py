"""One result of each kind, with figures given by hand, and a folder that holds them all as files."""

from pathlib import Path

import numpy as np
import pytest
from records import answer, head_bench, header

from hothead.bench.schema import Answer, Header, Session, VocabIdentity, to_lines
from hothead.plan.schema import SECTIONS, BatchPlan, BatchTimes, Candidate, Limits, NearTie, Plan, Times
from hothead.ranking.ranking import Source, TokenRanking
from hothead.replay.curve import (
    AcceptanceCurve,
    AcceptanceCurves,
    Cost,
    CurveSettings,
    DynamicResult,
    Interval,
    MissedToken,
    MissedTokens,
    RankingIdentity,
    Series,
)

SIZES = (64, 96, 128, 200)
METHODS = ("plain", "full", "static", "dynamic")


def series(*values: float, spread: float | None = 0.1) -> Series:
    if spread is None:
        return Series(value=values)
    return Series(value=values, low=tuple(v - spread for v in values), high=tuple(v + spread for v in values))


def a_curve(group: str, prompts: int, spread: float | None) -> AcceptanceCurve:
    return AcceptanceCurve(
        ranking="own",
        num_steps=2,
        group=group,
        prompts=prompts,
        tokens=50,
        acceptance_length=series(1.2, 1.3, 1.4, 1.5, spread=spread),
        difference=series(-0.3, -0.2, -0.1, 0.0, spread=spread),
        kept=series(0.4, 0.6, 0.8, 1.0, spread=spread),
        acceptance_rate=((0.1, 0.2, 0.3, 0.4), (0.05, 0.1, 0.1, 0.125)),
        coverage=(0.5, 0.75, 0.875, 1.0),
    )


@pytest.fixture
def curves() -> AcceptanceCurves:
    from_header = ("versions", "machine", "target", "tokenizer_fingerprint", "dtype", "device", "prompt_set")
    found = header()
    interval = Interval(value=1.45, low=1.4, high=1.5)
    gain = Interval(value=0.05, low=-0.01, high=0.11)
    missed = MissedToken(target_id=150, text=" <script>\n", count=3, before="before & ", after="after")
    return AcceptanceCurves(
        **{name: getattr(found, name) for name in from_header},
        draft=found.target,
        settings=CurveSettings(
            num_steps=(2,),
            temperature=0.9,
            top_p=1.0,
            top_k=0,
            seed=0,
            draft_sampling="greedy",
            max_new_tokens=64,
            multiple_of=32,
        ),
        rankings=(RankingIdentity(name="own", digest="d"),),
        sizes=SIZES,
        groups=("qa", "rag", "overall"),
        curves=(a_curve("qa", 1, None), a_curve("rag", 1, None), a_curve("overall", 2, 0.1)),
        dynamic=(
            DynamicResult(
                ranking="own",
                num_steps=2,
                group="overall",
                size=128,
                slots=8,
                policy="on_miss",
                prompts=2,
                tokens=50,
                acceptance_length=interval,
                difference=gain,
                over_static=gain,
                kept=interval,
                acceptance_rate=(0.3, 0.1),
                coverage=0.96,
                rows_copied=5,
            ),
        ),
        missed=(
            MissedTokens(ranking="own", size=64, tokens=9, distinct=4, examples=(missed,)),
            MissedTokens(ranking="own", size=128, tokens=3, distinct=1, examples=(missed,)),
        ),
        skipped=("prompt 3, turn 1: too long",),
        cost=Cost(generate_s=9, pass_s=2, head_s=0.5, sizes_s=0.25, dynamic_s=0.125, answers=4, cached=1),
    )


def candidate(size: int, slots: int = 0, num_steps: int = 4, times_plain: float = 1.2) -> Candidate:
    sections = dict(zip(SECTIONS, (10.0, 1.0, 1.5, size / 50, 0.1 if slots else 0.0, 0.4), strict=True))
    total = sum(sections.values())
    return Candidate(
        size=size,
        slots=slots,
        policy="on_miss" if slots else "none",
        num_steps=num_steps,
        acceptance_length=Interval(value=1.4 + size / 1000, low=1.3, high=1.7),
        kept=0.9,
        round_ms=Interval(value=total, low=0.9 * total, high=1.1 * total),
        tokens_per_s=Interval(value=100.0),
        times_plain=Interval(value=times_plain, low=times_plain - 0.1, high=times_plain + 0.1),
        times_full=Interval(value=1.1, low=1.05, high=1.15),
        sections_ms=sections,
    )


@pytest.fixture
def plan() -> Plan:
    """10 or 20 of 100 rows, alone or with 16 slots, or all of them, at k = 4 and 2; the names are ``header``'s."""
    found = header()
    candidates = tuple(
        candidate(size, slots, k, 1.0 + k / 20 + slots / 200 - size / 1000)
        for k in (4, 2)
        for size, slots in ((10, 0), (20, 0), (10, 16), (20, 16), (100, 0))
    )
    choice, full = candidates[2], candidates[4]
    times = BatchTimes(
        batch=1,
        target_verify_ms={1: 10.0, 5: 10.0},
        draft_extend_ms=1.0,
        draft_step_ms=0.5,
        head_ms={10: 0.2, 100: 2.0},
    )
    return Plan(
        versions={"hothead": "0.1.0"},
        target=found.target,
        draft=found.draft,
        prompt_set=found.prompt_set,
        ranking=RankingIdentity(name="own", digest="d"),
        group="overall",
        temperature=0.0,
        target_vocab_size=100,
        times=Times(machine="a GPU", dtype="bfloat16", batches=(times,)),
        batches=(
            BatchPlan(
                batch=1,
                verdict="prune",
                reason="the head is most of what can be saved",
                choice=choice,
                full=full,
                plain_tokens_per_s=Interval(value=90.0),
                near_ties=(NearTie(least=10, most=20, slots=16, policy="on_miss", num_steps=4, times_plain=1.27),),
                limits=Limits(shares=choice.shares, largest="target_verify", free_head=1.4),
                candidates=candidates,
            ),
        ),
        remarks=("Nothing was left out.",),
    )


@pytest.fixture
def ranking() -> TokenRanking:
    """1,000 ids whose counts fall as Zipf has it."""
    counts = (10_000 / np.arange(1, 1001)).astype(np.int64)
    source = Source(("traffic.jsonl",), "assistant", 12, int(counts.sum()))
    return TokenRanking(counts, "f" * 64, sources=(source,))


def comparison_lines(prompts: int = 3) -> str:
    """Plain decoding takes 2 s for an answer, the draft with its full vocabulary 1.6 s, the others 1.25 s."""
    seconds = {"plain": 2.0, "full": 1.6, "static": 1.25, "dynamic": 1.25}
    about: Header = header(METHODS).model_copy(
        update={"vocab": VocabIdentity(size=10, target_vocab_size=100, digest="d" * 64)}
    )
    answers: list[Answer] = [
        answer(method, str(number), group="qa" if number % 2 else "rag", decode_s=seconds[method])
        for number in range(prompts)
        for method in METHODS
    ]
    return to_lines([about, Session(started="2026-01-01T00:00:00Z", load_1min=0.1), *answers])


@pytest.fixture
def folder(tmp_path: Path, curves: AcceptanceCurves, plan: Plan, ranking: TokenRanking) -> Path:
    """Every kind of result, in a folder with things that are none."""
    found = tmp_path / "optimized"
    ranking.save(found / "ranking.safetensors")
    curves.save(found / "curve.json")
    plan.save(found / "plan.json")
    head_bench().save(found / "head.json")
    (found / "compare").mkdir()
    (found / "compare" / "results.jsonl").write_text(comparison_lines())
    (found / "notes.json").write_text('{"format": "of another program"}')
    (found / "broken.json").write_text("{")
    (found / ".hidden.json").write_text('{"format": "hothead.curve"}')
    return found
