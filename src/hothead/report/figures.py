"""Plots as values: each names itself and draws into one matplotlib axes, to stand alone in a page or with others.

matplotlib is imported only when something is drawn.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import InputError
from hothead.files import atomic_path

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which stay apart for colour-blind readers and in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
GREY = "#999999"
SIZE_INCHES = (4.8, 3.7)  # small enough that letters stay legible when a phone shrinks it
SALT = {"svg.hashsalt": "hothead"}  # equal plots give equal bytes
# Letters as text, in the reader's own font: they can be searched, and the file is smaller.
STYLE: dict[Any, Any] = {**SALT, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
# What would hold for the whole page (a style), and what no reader of the page needs.
NOT_FOR_A_PAGE = re.compile(r"<(style|metadata).*?</\1>", re.DOTALL)
XML_NAME = re.compile(r'( id="|url\(#|href="#)')


@dataclass(frozen=True)
class Figure:
    """One plot.

    Attributes:
        name: of its file, without suffix.
        title: what it shows, in a line.
        draw: puts it into matplotlib axes.
    """

    name: str
    title: str
    draw: Callable[[Any], None]


def as_svg(figure: Figure) -> str:
    """An ``<svg>`` element to put into a page; its ids start with the figure's name: several can stand there."""
    buffer = io.StringIO()
    _render(figure, buffer, "svg")
    text = buffer.getvalue()
    text = NOT_FOR_A_PAGE.sub("", text[text.index("<svg") :].rstrip())
    return XML_NAME.sub(rf"\g<1>{figure.name}-", text)


def save(figure: Figure, path: Path) -> None:
    """Draw it into a picture file of its own.

    Raises:
        InputError: another kind of file, or one that cannot be written.
    """
    check_plot_path(path)
    with atomic_path(path) as temporary:
        _render(figure, temporary, path.suffix[1:])


def save_together(figures: Sequence[Figure], heading: str, path: Path) -> None:
    """Draw them side by side, under one line, into a picture file.

    Raises:
        InputError: nothing to draw, another kind of file, or one that cannot be written.
    """
    check_plot_path(path)
    if not figures:
        raise InputError("nothing was measured yet: nothing to plot")
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(4.7 * len(figures), 4.4), layout="constrained")
    for figure, axes in zip(figures, canvas.subplots(1, len(figures), squeeze=False)[0], strict=True):
        figure.draw(axes)
        axes.set_title(figure.title, fontsize=9)
    canvas.suptitle(heading, fontsize=7)
    with atomic_path(path) as temporary:
        canvas.savefig(temporary, format=path.suffix[1:], dpi=160)


def check_plot_path(path: Path) -> None:
    """
    Raises:
        InputError: a kind of file that is not drawn.
    """
    if path.suffix not in PLOT_SUFFIXES:
        raise InputError(f"{path}: a plot is a {', '.join(PLOT_SUFFIXES)} file; found {path.suffix or 'no suffix'}")


def spread_indices(count: int, most: int = 400) -> list[int]:
    """Indices 0 ... count - 1, thinned to about ``most`` of them, evenly on a logarithmic axis."""
    if count <= most:
        return list(range(count))
    return np.unique(np.geomspace(1, count, most).round().astype(int) - 1).tolist()


def legend(axes: Any, columns: int = 3, below: float = 0.18) -> None:
    """Names of the lines, that share of the axes' height below them; none where nothing has a name."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -below))


def log_scale(axes: Any, which: str) -> None:
    """Make ``x`` or ``y`` of what was drawn logarithmic; numbers are written out, as exponents are tiny on a phone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    low, high = getattr(axes, f"get_{which}lim")()
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def plain_axes(axes: Any) -> None:
    """Without the frame's upper and right lines."""
    axes.spines[["top", "right"]].set_visible(False)


def _render(figure: Figure, file: Any, form: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=SIZE_INCHES, layout="constrained")
        figure.draw(canvas.subplots())
        metadata = {"Date": None} if form == "svg" else None
        canvas.savefig(file, format=form, dpi=160, metadata=metadata)
