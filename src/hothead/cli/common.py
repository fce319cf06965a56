"""What every verb shares: where output goes, the ``--json`` document, progress and tables.

Results go to standard output; progress and remarks to standard error. With ``--json`` standard output holds
exactly one JSON document: do the work inside ``quiet_stdout(as_json)``, then call ``print_json`` once.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hothead.errors import InputError

# Both look up sys.stdout / sys.stderr when they print, so redirection and capture work.
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def verb_app(**settings: Any) -> typer.Typer:
    """A Typer app for a verb: plain compact help (square brackets are text), no completion options."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, **settings)


def say(line: str) -> None:
    """A remark: one line on standard error."""
    print(line, file=sys.stderr, flush=True)


def say_error(error: object) -> None:
    """What went wrong: one line on standard error."""
    say(f"hothead: error: {one_line(error)}")


def one_line(message: object) -> str:
    return " ".join(str(message).split())


def check_outputs(*files: Path | None, plot: Path | None = None) -> None:
    """:func:`check_output` of each file there is, and of a plot that it is of a kind that can be drawn."""
    for path in (*files, plot):
        if path is not None:
            check_output(path)
    if plot is not None:
        from hothead.report.figures import check_plot_path  # not for a help screen

        check_plot_path(plot)


def check_output(path: Path) -> None:
    """Find out before the work, not after it, that a file cannot be written.

    Raises:
        InputError: ``path`` is a folder or ``-``, or its folder cannot be made or written to.
    """
    if str(path) == "-":
        raise InputError("this result is a file and cannot go to standard output; name a file")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror} ({path.parent})") from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write in {path.parent}")


@contextmanager
def quiet_stdout(as_json: bool) -> Iterator[None]:
    """While working for ``--json``, send whatever is printed (by libraries too) to standard error."""
    if not as_json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def print_json(value: object) -> None:
    """Print ``value`` as the one JSON document: dataclasses, numpy values and paths included.

    Raises:
        ValueError: ``value`` holds a NaN or an infinity, which JSON has no word for.
    """
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None, out: Console = stdout
) -> None:
    """Print a table, on standard output unless said otherwise: first column left, the others right; never cut when
    piped."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = out if out.is_terminal else Console(width=10_000, highlight=False, stderr=out.stderr)
    console.print(table)


class RateColumn(ProgressColumn):
    """Units per second, such as ``1.2M tokens/s``."""

    def render(self, task: Task) -> Text:
        amount = task.fields["counted"]
        if not task.elapsed or not amount:
            return Text("")
        return Text(f"{short_number(amount / task.elapsed)} {task.fields['unit']}/s", style="progress.data.speed")


class Bar:
    """A running progress bar; ``advance`` moves it and adds to the rate's count."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, done: float, counted: float | None = None) -> None:
        """Move on by ``done`` of the total; ``counted`` (default ``done``) is what the rate shows."""
        counted_before = self._progress.tasks[0].fields["counted"]
        self._progress.update(self._task, advance=done, counted=counted_before + (done if counted is None else counted))

    def describe(self, text: str) -> None:
        self._progress.update(self._task, description=text)


@contextmanager
def progress(description: str, total: float | None = None, unit: str = "steps") -> Iterator[Bar]:
    """A bar with rate and time left on standard error; shown only on a terminal, gone when done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%") if total is not None else TextColumn(""),
        RateColumn(),
        TimeRemainingColumn(),
    )
    shown = Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
    with shown:
        yield Bar(shown, shown.add_task(description, total=total, unit=unit, counted=0))


def numbers(text: str, name: str) -> tuple[int, ...]:
    """``"4096,8192"`` as numbers.

    Raises:
        InputError: something else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name} takes whole numbers joined by commas, as in 4096,8192; found {text!r}") from None


def short_number(value: float) -> str:
    """``1234567`` as ``1.2M``: three figures at most."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{letter}" if value < 100 * size else f"{value / size:.0f}{letter}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
