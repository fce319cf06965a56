"""Plots as values: what they become in a page and as files."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hothead.errors import InputError
from hothead.report.figures import Figure, as_svg, log_scale, save, save_together, spread_indices


def draw(axes: Any) -> None:
    axes.plot([1, 2], [3, 4], label="a line")
    axes.fill_between([1, 2], [2, 3], [4, 5])
    axes.legend()


FIGURE = Figure("lines", "Some lines", draw)


def test_an_element_is_fit_for_a_page_with_others() -> None:
    text = as_svg(FIGURE)
    ElementTree.fromstring(text)
    ids = re.findall(r'id="([^"]*)"', text)
    assert ids and all(name.startswith("lines-") for name in ids)
    assert len(set(ids)) == len(ids)
    used = re.findall(r'(?:url\(|href=")#([^")]*)', text)
    assert used and set(used) <= set(ids)
    assert "<style" not in text  # it would hold for the whole page
    assert "a line</text>" in text  # letters stay letters


def test_equal_plots_give_equal_bytes() -> None:
    assert as_svg(FIGURE) == as_svg(FIGURE)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_files(tmp_path: Path, suffix: str, start: bytes) -> None:
    save(FIGURE, tmp_path / f"one{suffix}")
    save_together([FIGURE, FIGURE], "two", tmp_path / f"two{suffix}")
    assert all((tmp_path / f"{name}{suffix}").read_bytes().startswith(start) for name in ("one", "two"))


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found \.bmp"):
        save(FIGURE, tmp_path / "x.bmp")
    with pytest.raises(InputError, match="nothing to plot"):
        save_together([], "none", tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_numbers_of_a_logarithmic_axis_are_written_out() -> None:
    from matplotlib.figure import Figure as Canvas

    for most, expected in (
        (100_000, {"1", "10", "100", "1,000", "10,000", "100,000"}),
        (20, {"1", "2", "5", "10", "20"}),
    ):
        canvas = Canvas()
        axes = canvas.subplots()
        axes.plot([1, most], [1, 2])
        log_scale(axes, "x")
        canvas.draw_without_rendering()
        assert expected <= {label.get_text() for label in axes.get_xticklabels()}
        assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    assert spread_indices(400) == list(range(400))
    thin = spread_indices(49152)
    assert thin[:3] == [0, 1, 2] and thin[-1] == 49151
    assert thin == sorted(set(thin)) and len(thin) <= 400
