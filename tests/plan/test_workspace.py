"""Artefacts are kept exactly as long as they and what they were made from are unchanged."""

from pathlib import Path

import pytest

from hothead.errors import InputError
from hothead.plan.workspace import MANIFEST, Workspace


def made(folder: Path, inputs: dict[str, object], text: str = "text") -> bool:
    """Whether the artefact was made anew, by a workspace that knows only what is on disk."""
    path, is_new = Workspace(folder).artefact("a.json", inputs, lambda path: path.write_text(text))
    assert path == folder / "a.json"
    return is_new


def test_kept_until_its_inputs_change(tmp_path: Path) -> None:
    assert made(tmp_path, {"size": 1})
    assert not made(tmp_path, {"size": 1}, "other")
    assert (tmp_path / "a.json").read_text() == "text"
    assert made(tmp_path, {"size": 2}, "other")
    assert (tmp_path / "a.json").read_text() == "other"


def test_made_again_when_gone_changed_or_unknown(tmp_path: Path) -> None:
    assert made(tmp_path, {})
    (tmp_path / "a.json").write_text("edited")
    assert made(tmp_path, {})
    (tmp_path / "a.json").unlink()
    assert made(tmp_path, {})
    (tmp_path / MANIFEST).write_text("{")
    assert made(tmp_path, {})
    (tmp_path / MANIFEST).write_text("[]")
    assert made(tmp_path, {})


def test_a_failed_stage_is_not_kept(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workspace(tmp_path).artefact("a.json", {}, fail)
    assert made(tmp_path, {})


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write into"):
        Workspace(tmp_path / "file")
