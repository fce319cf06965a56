"""Tables, remarks and plots: made from result files alone, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from records import header

from hothead.bench.schema import Answer, Failure, Results, Session
from hothead.bench.stats import Estimate
from hothead.bench.summary import summarize
from hothead.errors import InputError
from hothead.report import compare as report
from hothead.spans import LAYER_PARTS, PROFILE_LABELS

METHODS = ("plain", "full", "dynamic")


def answer(method: str, prompt_id: str, repeat: int = 0, equality: str = "equal") -> Answer:
    seconds = {"plain": 3.0, "full": 2.0, "dynamic": 1.5}[method]
    return Answer(
        prompt_id=prompt_id,
        group="qa" if prompt_id < "2" else "rag",
        turn=0,
        repeat=repeat,
        method=method,
        equality="reference" if method == "plain" else equality,
        finish_reason="length",
        prompt_tokens=9,
        new_tokens=61,
        rounds=60 if method == "plain" else 30,
        misses=0 if method != "dynamic" else 3,
        rows_copied=0 if method != "dynamic" else 6,
        prefill_s=0.1,
        decode_s=seconds,
        sections_s={"target_verify": seconds},
        ids_digest="a",
    )


def results(repeats: int = 1, sessions: int = 1, load: float = 0.1, equality: str = "equal") -> Results:
    blocks = {
        (str(n), 0, r): tuple(answer(m, str(n), r, equality) for m in METHODS) for n in range(4) for r in range(repeats)
    }
    started = tuple(Session(started="2026-01-01T00:00:00Z", load_1min=load) for _ in range(sessions))
    return Results(header(METHODS, repeats), started, blocks)


def test_the_speed_table_has_every_group_and_method() -> None:
    table = report.speed_table(summarize(results()))
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [row[0].strip() for row in table.rows] == [
        *("qa (2)", *METHODS),
        *("rag (2)", *METHODS),
        *("overall (4)", *METHODS),
    ]
    plain, full, dynamic = table.rows[-3:]
    assert plain[1:] == ("20.0", "-", "0.67 0.67-0.67", "-", "-", "-")
    assert full[1:] == ("30.0", "1.50 1.50-1.50", "-", "2.00", "0.0", "0")
    assert dynamic[1:] == ("40.0", "2.00 2.00-2.00", "1.33 1.33-1.33", "2.00", "5.0", "10")


def test_repeats_have_a_line_of_their_own() -> None:
    line = report.spread(summarize(results(repeats=3))[-1])
    assert line == "Single repeats (overall), times plain: full 1.50-1.50, dynamic 2.00-2.00."
    assert line in report.remarks(results(repeats=3))
    assert report.spread(summarize(results())[-1]) is None


def test_the_breakdown_adds_up() -> None:
    table = report.breakdown_table(summarize(results())[-1])
    assert table.columns == ("", *METHODS)
    rows = {row[0]: [cell.strip() for cell in row[1:]] for row in table.rows}
    assert rows["target verify"] == rows["round"] == ["50.00 100%", "66.67 100%", "50.00 100%"]
    assert rows["draft head"] == ["-"] * 3
    assert rows["prefill"] == ["100"] * 3


def test_layers_that_are_one_call_are_one_part() -> None:
    split = dict.fromkeys(PROFILE_LABELS, 1.0)
    whole = split | dict.fromkeys(LAYER_PARTS, 0.0)
    labels = lambda ms: [row[0] for row in report.round_table({"full": ms}, "qa").rows]  # noqa: E731
    assert labels(split) == [*PROFILE_LABELS.values(), "round"]
    assert [label for label in labels(whole) if label.startswith("target")] == ["target layers", "target head"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (results(), "Texts: 8 of 8 answers equal plain decoding's token by token; 0 leave"),
        (results(equality="tied"), "0 of 8 answers equal plain decoding's token by token; 8 leave it at a tie"),
        (results(equality="sampled"), "so not compared"),
        (results(sessions=2), "Run in 2 sessions"),
        (results(load=1.5), "The machine was busy before the run (load 1.5 on 2 cores)"),
    ],
)
def test_remarks_say_what_a_table_does_not(found: Results, said: str) -> None:
    assert said in " ".join(report.remarks(found))


def test_a_quiet_whole_run_has_no_warnings() -> None:
    assert len(report.remarks(results())) == 2  # the legend and the texts


def test_errors_are_named() -> None:
    failed = tuple(
        Failure(prompt_id="9", group="qa", turn=1, repeat=0, method=m, error="ContextOverflow: too long")
        for m in METHODS
    )
    found = Results(header(METHODS), (), {("9", 1, 0): failed})
    assert report.remarks(found) == [
        "Errors: 3 answers failed; first plain, prompt 9, turn 2, repeat 1: ContextOverflow: too long"
    ]


def test_cells() -> None:
    assert report.estimate(None) == "-"
    assert report.estimate(Estimate(1.234)) == "1.23"
    assert report.estimate(Estimate(1.234, 1.1, 1.3)) == "1.23 1.10-1.30"


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plots_are_drawn(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"plot{suffix}"
    report.plot(results(), path)
    assert path.read_bytes().startswith(start)


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf file; found \.bmp"):
        report.plot(results(), tmp_path / "plot.bmp")
    with pytest.raises(InputError, match="nothing to plot"):
        report.plot(Results(header(METHODS), (), {}), tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_reading_and_drawing_need_no_torch() -> None:
    code = "import sys, hothead.report.compare, hothead.cli.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
