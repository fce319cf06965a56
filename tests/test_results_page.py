"""docs/results.md is what the generator makes of the committed result files: no number in it can be stale."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATOR = ROOT / "runs" / "reproduce" / "page.py"


def generate(results: Path, output: Path) -> str:
    subprocess.run([sys.executable, str(GENERATOR), str(results), str(output)], check=True)
    return output.read_text(encoding="utf-8")


def test_the_page_is_made_from_the_results(tmp_path: Path) -> None:
    made = generate(ROOT / "results", tmp_path / "results.md")
    assert made == (ROOT / "docs" / "results.md").read_text(encoding="utf-8"), "run runs/reproduce/run.sh --page"


def test_a_section_needs_its_files(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert "\n## " not in generate(tmp_path / "results", tmp_path / "results.md")
