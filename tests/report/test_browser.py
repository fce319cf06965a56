"""The page in a real headless Chromium: it fits a phone, loads nothing, complains of nothing, and prints.

Needs playwright (``pip install 'hothead[dev]'``) and a Chromium (Debian: ``apt-get install chromium-headless-shell``).
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hothead.report.html import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install 'hothead[dev]')")
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PHONE = 375

# Elements that reach past the right edge of the page, or scroll sideways themselves; the hidden table heads aside.
OVERFLOWING = """() => [...document.body.querySelectorAll('*')].filter(e => {
  if (e.closest('thead') || e.closest('svg') && e.tagName !== 'svg') return false;
  const box = e.getBoundingClientRect();
  return box.right > document.documentElement.clientWidth + 0.5 || box.left < -0.5
    || e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible';
}).map(e => e.outerHTML.slice(0, 120))"""
# The height of the smallest letters in a plot, in the page's pixels; some are turned.
LEAST_LETTERS = """() => Math.min(...[...document.querySelectorAll('svg text')].map(e =>
  parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine: none of {', '.join(NAMES)} is on the path")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any, folder: Path, tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    """Open the report at a width; afterwards nothing may have been loaded but the file, and nothing complained of."""
    file = tmp_path / "report.html"
    write_report([folder], file)
    loaded: list[str] = []
    said: list[str] = []
    contexts = []

    def open_at(width: int) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, is_mobile=width < 600, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: loaded.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert set(loaded) == {file.as_uri()}
    assert said == []


@pytest.mark.parametrize("width", [320, PHONE, 700, 701, 1280])
def test_nothing_scrolls_sideways(open_page: Callable[[int], Any], width: int) -> None:
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []


def test_a_phone_shows_cells_with_their_columns_and_plots_that_can_be_read(open_page: Callable[[int], Any]) -> None:
    page = open_page(PHONE)
    cell = page.locator("#choice-plan td").first
    assert cell.evaluate("e => getComputedStyle(e, '::before').content") == '"k"'
    assert page.locator("#head-head td.none").first.is_hidden()  # a block leaves out what its row has not
    assert page.locator("#coverage thead").is_visible()  # two columns fit as they are
    assert page.evaluate(LEAST_LETTERS) >= 6.5
    for box in page.locator("svg").evaluate_all("all => all.map(e => e.getBoundingClientRect().toJSON())"):
        assert 300 <= box["width"] <= PHONE
        assert box["height"] > 200


def test_a_wide_screen_shows_tables_with_heads(open_page: Callable[[int], Any]) -> None:
    page = open_page(1280)
    assert page.locator("#choice-plan thead").first.bounding_box()["height"] > 10
    left, right = (page.locator("#choice-plan svg").nth(n).bounding_box() for n in (0, 1))
    assert left["y"] == right["y"] and left["x"] < right["x"]  # plots side by side


def test_contents_lead_to_sections(open_page: Callable[[int], Any]) -> None:
    page = open_page(PHONE)
    links = page.locator("nav a")
    assert links.count() == page.locator("section").count() == 8
    links.last.click()
    assert page.locator("#provenance h2").evaluate("e => e.getBoundingClientRect().top") < 800


def test_it_prints(open_page: Callable[[int], Any]) -> None:
    """On A4 with its margins: the contents are gone, nothing is cut off, and the pages become a PDF."""
    page = open_page(680)  # 180 mm
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    assert page.evaluate(OVERFLOWING) == []
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
