"""``hothead inspect``: every kind of file, in words and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Outcome, ToyFiles
from toy_drafts import ROWS, V, eagle3_config, eagle3_tensors, save_draft, save_eagle3, save_gguf, some_ids

from hothead.export.base import NAMES
from hothead.export.inspect import CONVENTIONS
from hothead.vocab import DraftVocab

Run = Callable[..., Outcome]


def test_a_draft_with_its_own_head(run_cli: Run, tmp_path: Path) -> None:
    result = run_cli("inspect", str(save_eagle3(tmp_path / "draft", some_ids())))
    assert result.status == 0
    assert "eagle3: an EAGLE-3 draft" in result.out
    assert "192 of 320 target ids (60.0%)" in result.out
    assert "target id = draft id + d2t[draft id]" in result.out
    assert "lm_head.weight BF16 [192, 32]" in result.out


def test_errors_are_status_2_and_in_the_json(run_cli: Run, tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", eagle3_tensors(some_ids()), eagle3_config(ROWS + 1))
    result = run_cli("inspect", str(draft), "--json")
    assert result.status == 2
    (problem,) = json.loads(result.out)["problems"]
    assert problem["severity"] == "error"
    assert "shape error" in problem["text"]
    assert "1 error found" in result.err


def test_what_the_vocabulary_cannot_spell(run_cli: Run, tmp_path: Path, toy_files: ToyFiles) -> None:
    path = tmp_path / "map.pt"
    torch.save(list(range(100)), path)
    result = run_cli("inspect", str(path), "--target", toy_files.target)
    assert result.status == 0, result.err
    assert "100 of 320 target ids" in result.out
    assert "byte tokens   100 of 256" in result.out
    assert "Swedish (0%)" in result.out
    assert "byte tokens are not in the map" in result.out
    assert "the map is the first 100 ids in order" in result.out
    document = json.loads(run_cli("inspect", str(path), "--target", toy_files.target, "--json").out)
    assert document["coverage"]["byte_tokens_missing"] == 156
    assert document["coverage"]["letters"]["English"] == 1
    assert (document["lowest_id"], document["highest_id"]) == (0, 99)


def test_other_kinds_of_files(run_cli: Run, tmp_path: Path, toy_files: ToyFiles) -> None:
    assert "tokens" in run_cli("inspect", toy_files.ranking).out
    assert "EAGLE-1/2 draft" in run_cli("inspect", toy_files.draft).out
    assert "a causal LM of its own" in run_cli("inspect", toy_files.target).out
    DraftVocab.from_target_ids(some_ids(), V).save(tmp_path / "vocab.safetensors")
    assert "192 of 320" in run_cli("inspect", str(tmp_path / "vocab.safetensors")).out
    torch.save({5: 2}, tmp_path / "token_freq.pt")
    result = run_cli("inspect", str(tmp_path / "token_freq.pt"), "--target-vocab-size", "9")
    assert "speculators: speculators' token_freq.pt" in result.out
    draft = save_draft(tmp_path / "bin", eagle3_tensors(some_ids()), eagle3_config(ROWS), bin=True)
    assert "192 of 320" in run_cli("inspect", str(draft)).out


def test_ggufs(run_cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    result = run_cli("inspect", str(save_gguf(tmp_path / "draft.gguf", some_ids())))
    assert (result.status, "192 of 320" in result.out, "absolute target ids" in result.out) == (0, True, True)
    result = run_cli("inspect", str(save_gguf(tmp_path / "llama.gguf", architecture="llama")))
    assert "llama.cpp reads a reduced head only of" in result.out
    ids = some_ids()
    ids[3] = ids[4]
    result = run_cli("inspect", str(save_gguf(tmp_path / "twice.gguf", ids)))
    assert (result.status, "comes 2 times" in result.out) == (2, True)


@pytest.mark.parametrize(
    ("value", "says"), [([5, 3, 5], "target id 5 comes 2 times"), ([True], "a mask of 1"), ([], "an empty list")]
)
def test_an_unusable_map_is_explained(run_cli: Run, tmp_path: Path, value: Any, says: str) -> None:
    torch.save(value, tmp_path / "map.pt")
    result = run_cli("inspect", str(tmp_path / "map.pt"), "--target-vocab-size", "9")
    assert result.status == 2
    assert says in result.out


def test_files_that_are_not_there_or_say_too_little(run_cli: Run, tmp_path: Path) -> None:
    assert "no such file or folder" in run_cli("inspect", str(tmp_path / "none")).err
    torch.save([1], tmp_path / "map.pt")
    assert "--target-vocab-size" in run_cli("inspect", str(tmp_path / "map.pt")).err


def test_every_format_has_its_convention_in_words() -> None:
    assert set(CONVENTIONS) == set(NAMES)
