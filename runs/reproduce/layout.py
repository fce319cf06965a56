"""Markdown of the results page: headings, tables, figures."""

from collections.abc import Iterable, Sequence

from hothead.bench.stats import Estimate
from hothead.replay.curve import Interval
from hothead.report.compare import Table

MISSING = "-"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells; the first line names the columns."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)


def shown(found: Table) -> str:
    """A table that the command line prints."""
    return table([column.replace("\n", " ") for column in found.columns], found.rows)


def between(found: Interval | Estimate | None, form: str = ".2f") -> str:
    """``1.42 [1.38, 1.47]``; the value alone where there is no interval."""
    if found is None:
        return MISSING
    if found.low is None or found.high is None:
        return f"{found.value:{form}}"
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def percent(share: float | None, digits: int = 1) -> str:
    """``97.7``."""
    return MISSING if share is None else f"{100 * share:.{digits}f}"
