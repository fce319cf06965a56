"""The pages in docs/ name only options and methods that exist."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from hothead.bench.head_results import FULL, FULL_REFRESH, SLOT_UPDATE, SLOTS, STATIC
from hothead.bench.schema import METHODS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "compare": ["compare"],
    "curve": ["curve"],
    "plan": ["plan"],
    "optimize": ["optimize"],
    "generate": ["generate"],
    "chat": ["chat"],
    "bench-head": ["bench", "head"],
    "bench-engine": ["bench", "engine"],
    "report": ["report"],
    "convert": ["convert"],
    "prune": ["prune"],
    "inspect": ["inspect"],
}


@pytest.mark.parametrize("page", PAGES)
def test_options_in_a_page_exist(run_cli: Callable[..., Outcome], page: str) -> None:
    mentioned = set(re.findall(r"(?<!\w)--[a-z][a-z-]+", (DOCS / f"{page}.md").read_text(encoding="utf-8")))
    offered = run_cli(*PAGES[page], "--help").out
    assert mentioned
    assert {option for option in mentioned if not re.search(rf"{option}\b", offered)} == set()


def test_methods_and_variants_are_described() -> None:
    compare = (DOCS / "compare.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"| `{name}` |" not in compare] == []
    heads = (DOCS / "bench-head.md").read_text(encoding="utf-8")
    assert [name for name in (FULL, STATIC, SLOTS, SLOT_UPDATE, FULL_REFRESH) if f"| `{name}" not in heads] == []
