"""``hothead report``: the page and what is said about it."""

import json
from collections.abc import Callable
from pathlib import Path

from conftest import Outcome
from records import head_bench

Run = Callable[..., Outcome]


def test_the_page_and_its_plots(run_cli: Run, tmp_path: Path) -> None:
    head_bench().save(tmp_path / "head.json")
    page, plots = tmp_path / "out" / "page.html", tmp_path / "plots"
    outcome = run_cli("report", str(tmp_path), "-o", str(page), "--plots", str(plots))
    assert outcome.status == 0, outcome.err
    assert outcome.out == f"{page}: head.json (head times)\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (plots / "roofline.svg").exists()


def test_the_json_document(run_cli: Run, tmp_path: Path) -> None:
    head_bench().save(tmp_path / "head.json")
    outcome = run_cli("report", str(tmp_path / "head.json"), "-o", str(tmp_path / "page.html"), "--json")
    found = json.loads(outcome.out)
    assert found["files"][0]["kind"] == "head times"
    assert found["output"] == str(tmp_path / "page.html")


def test_what_cannot_be_reported_on_is_said_in_a_line(run_cli: Run, tmp_path: Path) -> None:
    outcome = run_cli("report", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert outcome.status == 2
    assert "nothing to report on" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
    assert run_cli("report", str(tmp_path), "-o", str(tmp_path)).status == 2
