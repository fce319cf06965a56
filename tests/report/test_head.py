"""Tables and plots of the head benchmark, from figures given by hand."""

from pathlib import Path

import pytest
from records import head_bench

from hothead.bench.stats import Estimate
from hothead.errors import InputError
from hothead.report import head as report


def test_the_table_says_what_a_call_achieves() -> None:
    (table,) = report.tables(head_bench())
    assert table.title == "LM head 1000 x 100, bfloat16; a CPU, 2 threads"
    assert all(len(row) == len(table.columns) for row in table.rows)
    full, _, slots, update = table.rows[:4]
    # 2BHR = 200,000 operations and 2(HR + BH + BR) = 202,200 bytes, which take 5.055 us at 40 GB/s.
    assert full == ("full", "1", "1000", "5 5-6", "1.000 0.900-1.100", "40.0", "39.6", "0.99 (1.00)", "80")
    assert slots[:3] == ("static+slots 250+50", "1", "300")
    assert update[:3] == ("slot update 250+50", "1", "4")
    assert update[5:] == ("-", "-", "-", "-")


def test_remarks_say_what_the_machine_can_do() -> None:
    text = " ".join(report.remarks(head_bench()))
    assert "bfloat16: reads 50.0 GB/s (512 MiB), multiplies 1024 x 1024 matrices at 200 GFLOP/s." in text
    assert "Rounds ended" not in text
    assert len(report.remarks(head_bench(with_ceiling=False))) == 1


def test_rounds_cut_short_are_said() -> None:
    bench = head_bench()
    cut = bench.model_copy(update={"config": bench.config.__class__(sizes=(250,), slots=50, repeats=100)})
    assert "Rounds ended after 30 s a batch: 20 to 20 of 100." in report.remarks(cut)


def test_which_plots_there_are() -> None:
    names = [figure.name for figure in report.figures(head_bench())]
    assert names == ["head_time", "head_speedup", "head_speedup_by_batch", "roofline"]
    names = [figure.name for figure in report.figures(head_bench(batches=(1,), with_ceiling=False))]
    assert names == ["head_time", "head_speedup"]
    (head,) = head_bench().heads
    two = head_bench().model_copy(update={"heads": (head, head.model_copy(update={"dtype": "float32"}))})
    names = [figure.name for figure in report.figures(two)]
    assert len(set(names)) == 8


def test_a_ratio_turned_round() -> None:
    assert report.inverse(Estimate(0.5, 0.4, 0.8)) == Estimate(2.0, 1.25, 2.5)
    assert report.inverse(Estimate(0.5)) == Estimate(2.0)


def test_the_roofline_holds_what_was_measured() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    next(f for f in report.figures(head_bench()) if f.name == "roofline").draw(axes)
    roof, full, static = axes.get_lines()
    assert roof.get_ydata()[1:] == pytest.approx([200, 200])
    assert roof.get_xdata()[1] == pytest.approx(4)  # 200 GFLOP/s over 50 GB/s
    assert full.get_ydata()[0] == pytest.approx(200_000 / 5.055e-6 / 1e9)
    assert (full.get_label(), static.get_label()) == ("full", "static 250")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_it_is_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"head{suffix}"
    report.plot(head_bench(), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"found \.bmp"):
        report.plot(head_bench(), tmp_path / "head.bmp")
