"""Tables and plots of acceptance curves, from figures given by hand."""

from pathlib import Path

import pytest

from hothead.errors import InputError
from hothead.replay.curve import AcceptanceCurves
from hothead.report import curve as report


def test_the_size_table_shows_powers_of_two_and_the_full_vocabulary(curves: AcceptanceCurves) -> None:
    assert curves.standard_sizes == [64, 128, 200]
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


def test_missed_tokens_are_shown_in_context_on_one_line(curves: AcceptanceCurves) -> None:
    table = report.missed_table(curves.missed[0])
    assert table.title == "Missed by 64 rows of own: 9 tokens, 4 different ones"
    assert table.rows == (('" <script>\\n"', "3", "before & [ <script>\\n]after"),)
