"""The report: one HTML file with everything in it, made from result files alone. Needs no torch and no network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hothead.files import write_text
from hothead.report.evidence import Evidence, read_evidence
from hothead.report.figures import Figure, as_svg, save
from hothead.report.sections import Section, headline, highlights, sections

PLOT_FILE_SUFFIXES = (".png", ".svg")


def write_report(files: Sequence[str | Path], output: str | Path, plots: str | Path | None = None) -> Evidence:
    """Report on result files in one self-contained HTML file; equal files give equal bytes.

    Args:
        files: rankings, and results of ``hothead curve``, ``bench head``, ``plan`` and ``compare``; folders are
            searched for them. A section appears for what is there.
        output: the HTML file.
        plots: a folder for every plot as .png and .svg too.

    Returns:
        What was reported on.

    Raises:
        InputError: no such results, a damaged one, or a file that cannot be written.
    """
    evidence = read_evidence([Path(path) for path in files])
    found = uniquely_named(sections(evidence))
    write_text(Path(output), render(evidence, found))
    if plots is not None:
        for figure in (figure for section in found for figure in section.figures):
            for suffix in PLOT_FILE_SUFFIXES:
                save(figure, Path(plots) / f"{figure.name}{suffix}")
    return evidence


def render(evidence: Evidence, found: Sequence[Section]) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("hothead.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = svg
    environment.filters["group_row"] = is_group_row
    template = environment.get_template("report.html.jinja")
    return template.render(headline=headline(evidence), highlights=highlights(evidence), sections=found) + "\n"


def svg(figure: Figure) -> Markup:
    """The plot as an element that a screen reader calls by its title."""
    label = Markup('<svg role="img" aria-label="{}" ').format(figure.title)
    return Markup(as_svg(figure).replace("<svg ", label, 1))


def is_group_row(row: tuple[str, ...]) -> bool:
    """Whether a row of a table only names the rows that follow."""
    return len(row) > 1 and not any(cell.strip() for cell in row[1:])


def uniquely_named(found: Iterable[Section]) -> list[Section]:
    """Sections whose anchors and figures have names that nothing else on the page has, fit for ids and files."""
    anchors: set[str] = set()
    names: set[str] = set()  # all ids in a figure are its name, a dash and more: none is an anchor's
    return [
        replace(
            section,
            anchor=_unused(section.anchor, anchors),
            figures=tuple(replace(figure, name=_unused(figure.name, names)) for figure in section.figures),
        )
        for section in found
    ]


def _unused(name: str, taken: set[str]) -> str:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    chosen = next(candidate for candidate in _candidates(name) if candidate not in taken)
    taken.add(chosen)
    return chosen


def _candidates(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1
