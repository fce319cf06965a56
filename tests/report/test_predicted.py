"""A plan beside a comparison: like with like, from figures given by hand."""

from pathlib import Path

import pytest

from hothead.bench.schema import Results, read_results
from hothead.plan.schema import Plan
from hothead.report import predicted as report


@pytest.fixture
def results(folder: Path) -> Results:
    return read_results(folder / "compare" / "results.jsonl")


def test_predictions_stand_beside_what_was_measured(plan: Plan, results: Results) -> None:
    """Measured: 2 s of plain decoding over 1.6 s and 1.25 s; predicted: what the candidates of ``plan`` say."""
    shown = report.table(plan, results)
    assert shown is not None
    found = {row[0].partition(":")[0]: row[1:4] for row in shown.rows}
    assert found == {
        "full": ("1.10 1.00-1.20", "1.25 1.25-1.25", "-12.0"),
        "static": ("1.19 1.09-1.29", "1.60 1.60-1.60", "-25.6"),
        "dynamic": ("1.27 1.17-1.37", "1.60 1.60-1.60", "-20.6"),
    }


def test_only_like_is_compared_with_like(plan: Plan, results: Results) -> None:
    other = plan.model_copy(update={"target": plan.target.model_copy(update={"name": "another"})})
    assert report.table(other, results) is None
    assert report.figure(other, results) is None
    deeper = results.header.settings.model_copy(update={"num_steps": 7})
    header = results.header.model_copy(update={"settings": deeper})
    found = Results(header, results.sessions, results.blocks)
    assert report.table(plan, found) is None


def test_the_plot_holds_both(plan: Plan, results: Results) -> None:
    from matplotlib.figure import Figure

    found = report.figure(plan, results)
    assert found is not None
    axes = Figure().subplots()
    found.draw(axes)
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([1.10, 1.19, 1.27, 1.25, 1.6, 1.6])  # predicted, then measured
