"""The page: which sections it has, that it needs nothing else, and that what files say cannot break it."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hothead.report.html import write_report

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Elements of a page; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self) -> list[str]:
        return [found for _, attributes in self.elements if (found := attributes.get("id"))]

    def titles(self) -> list[str]:
        """Of the sections, as the contents list them."""
        return [attributes["href"] or "" for tag, attributes in self.elements if tag == "a"]


def page_of(files: list[Path], tmp_path: Path) -> Page:
    write_report(files, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_a_section_for_every_kind_of_result(folder: Path, tmp_path: Path) -> None:
    page = page_of([folder], tmp_path)
    assert page.titles() == [
        "#choice-plan",
        "#coverage",
        "#acceptance-curve",
        "#missed-curve",
        "#head-head",
        "#predicted-results",
        "#speed-results",
        "#provenance",
    ]
    labels = [a["aria-label"] for tag, a in page.elements if tag == "svg"]
    assert len(labels) == 2 + 1 + 3 + 4 + 1 + 2
    for words in (
        "Prune: the head is most of what can be saved.",
        "1.27 x plain",
        "Measured, dynamic 1.60 x plain",
        "Missed by 64 rows of own",
        "GFLOP/s",
        "target verify",
        "hothead 0.1.0",
        "a CPU, 2 cores, 2 threads",
    ):
        assert words in page.text, words


@pytest.mark.parametrize(
    ("name", "anchor"),
    [
        ("ranking.safetensors", "#coverage"),
        ("plan.json", "#choice-plan"),
        ("head.json", "#head-head"),
        ("curve.json", "#acceptance-curve"),
        ("compare/results.jsonl", "#speed-results"),
    ],
)
def test_each_kind_of_result_does_alone(folder: Path, tmp_path: Path, name: str, anchor: str) -> None:
    titles = page_of([folder / name], tmp_path).titles()
    assert titles[0] == anchor
    assert titles[-1] == "#provenance"
    assert set(titles) <= {anchor, "#missed-curve", "#provenance"}


def test_several_of_a_kind_are_told_apart(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "curve.json", folder / "other curve.json")
    page = page_of([folder / "curve.json", folder / "other curve.json"], tmp_path)
    assert page.titles()[:2] == ["#acceptance-curve", "#acceptance-other-curve"]
    assert "Acceptance of every size: other curve" in page.text
    assert len(set(page.ids())) == len(page.ids())


def test_links_and_references_lead_into_the_page(folder: Path, tmp_path: Path) -> None:
    page = page_of([folder], tmp_path)
    ids = set(page.ids())
    assert len(ids) == len(page.ids())
    assert {title.removeprefix("#") for title in page.titles()} <= ids
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', text))
    assert used <= ids


def test_it_loads_nothing(folder: Path, tmp_path: Path) -> None:
    """Nothing that names an address but namespaces, which are not loaded; and a policy that forbids the rest."""
    page = page_of([folder], tmp_path)
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in page.elements}
    assert any("default-src 'none'" in (a.get("content") or "") for tag, a in page.elements if tag == "meta")
    for _, attributes in page.elements:
        for name, value in attributes.items():
            if not name.startswith("xmlns") and value is not None:
                assert "//" not in value, f"{name}={value}"
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_what_a_file_says_is_text(folder: Path, tmp_path: Path) -> None:
    """A token ``<script>`` is shown, not run; the context of the example holds an ampersand."""
    page = page_of([folder / "curve.json"], tmp_path)
    assert "script" not in {tag for tag, _ in page.elements}
    assert '" <script>\\n"' in page.text
    assert "before & [ <script>\\n]after" in page.text


def test_cells_name_their_columns_for_narrow_screens(folder: Path, tmp_path: Path) -> None:
    page = page_of([folder], tmp_path)
    cells = [attributes for tag, attributes in page.elements if tag == "td"]
    assert cells and all("data-label" in attributes for attributes in cells)


def test_equal_files_give_equal_pages(folder: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report([folder], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_plots_as_files(folder: Path, tmp_path: Path) -> None:
    write_report([folder / "head.json", folder / "ranking.safetensors"], tmp_path / "x.html", tmp_path / "plots")
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    expected = ["coverage", "head_speedup", "head_speedup_by_batch", "head_time", "roofline"]
    assert names == sorted(f"{name}{suffix}" for name in expected for suffix in (".png", ".svg"))
    assert (tmp_path / "plots" / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_an_unfinished_comparison_is_reported(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "compare" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "begun.jsonl").write_text("".join(lines[:2]))
    page = page_of([tmp_path / "begun.jsonl"], tmp_path)
    assert "No complete block of answers yet" in page.text


def test_it_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    """In an interpreter where torch cannot be imported at all."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hothead.cli.main import run\n"
        f"run(['report', {str(folder)!r}, '-o', {str(tmp_path / 'report.html')!r}, '--plots', {str(tmp_path / 'p')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
