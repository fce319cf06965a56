"""Tables and plots of acceptance curves, from figures given by hand."""

from pathlib import Path

import pytest
from records import header

from hothead.errors import InputError
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
from hothead.report import curve as report

SIZES = (64, 96, 128, 200)


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
        skipped=("prompt 3, turn 1: too long",),
        cost=Cost(generate_s=9, pass_s=2, head_s=0.5, sizes_s=0.25, dynamic_s=0.125, answers=4, cached=1),
    )


def test_the_size_table_shows_powers_of_two_and_the_full_vocabulary(curves: AcceptanceCurves) -> None:
    assert report.standard_sizes(curves) == [64, 128, 200]
    table = report.size_table(curves, curves.curve())
    assert table.title == "own, k = 2, overall: 2 prompts, 50 tokens"
    assert table.rows[1] == (
        *("128", "64.0", "1.400 1.300-1.500", "-0.100 -0.200 to +0.000", "80.0", "12.5", "0.30 0.10"),
    )
    assert table.columns[-1] == "p1 p2"


def test_one_prompt_has_no_interval(curves: AcceptanceCurves) -> None:
    table = report.size_table(curves, curves.curve(group="qa"))
    assert table.rows[0][2:4] == ("1.200", "-0.300")


def test_groups_and_slots_have_tables_of_their_own(curves: AcceptanceCurves) -> None:
    assert report.group_table(curves, "own", 2).rows[-1] == ("overall (2)", "1.20", "1.40", "1.50")
    (row,) = report.dynamic_table(curves).rows
    assert row[1:5] == ("128+8", "on_miss", "1.450 1.400-1.500", "+0.050 -0.010 to +0.110")
    assert row[-2:] == ("4.0", "10")


def test_what_is_printed(curves: AcceptanceCurves) -> None:
    titles = [table.title for table in report.tables(curves)]
    assert [title.split(",")[0] for title in titles] == [
        "own", "Acceptance length", "Dynamic vocabularies (overall)"
    ]  # fmt: skip
    assert report.steps_table(curves, "own").rows[0] == ("64", "1.200 1.100-1.300")


def test_remarks_say_what_it_cost_and_what_is_missing(curves: AcceptanceCurves) -> None:
    text = " ".join(report.remarks(curves))
    assert "answering 9.0 s, target and draft 2.0 s, their logits 0.5 s, all sizes 0.2 s, dynamic 0.1 s" in text
    assert "Skipped: 1 turns without an answer; first prompt 3, turn 1: too long." in text
    assert "temperature 0.9, greedy drafts" in report.headline(curves)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_it_is_drawn(curves: AcceptanceCurves, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curve{suffix}"
    report.plot(curves, path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"found \.bmp"):
        report.plot(curves, tmp_path / "curve.bmp")


def test_a_file_gives_back_what_was_saved(curves: AcceptanceCurves, tmp_path: Path) -> None:
    from hothead.replay.curve import read_curves

    curves.save(tmp_path / "curve.json")
    assert read_curves(tmp_path / "curve.json") == curves
