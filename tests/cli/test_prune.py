"""``hothead prune`` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Outcome, ToyFiles
from engine_rules import vllm_eagle3
from toy_drafts import V, save_eagle3, save_gguf, some_ids

from hothead.ranking.ranking import TokenRanking

Run = Callable[..., Outcome]


@pytest.fixture
def ranking(tmp_path: Path) -> str:
    path = tmp_path / "ranking.safetensors"
    TokenRanking(np.random.default_rng(5).permutation(V) + 1, "").save(path)
    return str(path)


def test_a_checkpoint_with_commands_for_both_engines(run_cli: Run, tmp_path: Path, ranking: str) -> None:
    draft, out = save_eagle3(tmp_path / "draft"), tmp_path / "out"
    arguments = ["prune", str(draft), "--ranking", ranking, "--size", "64", "-o", str(out)]
    result = run_cli(*arguments)
    assert result.status == 0, result.err
    assert "320 -> 64 rows" in result.out
    saved = (out / "launch.txt").read_text()
    assert '"method": "eagle3"' in saved
    assert f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {out}" in saved
    assert all(line in result.out for line in saved.splitlines() if not line.startswith("#"))
    assert len(vllm_eagle3(out)[1]) == 64
    again = run_cli(*arguments, "--json")
    assert (again.status, "--force" in again.err) == (2, True)
    document = json.loads(run_cli(*arguments, "--force", "--json").out)
    assert (document["rows_before"], document["rows"], document["target_vocab_size"]) == (320, 64, 320)
    assert document["bytes_after"] < document["bytes_before"]
    assert set(document["commands"]) == {"vllm", "sglang"}


def test_a_gguf(run_cli: Run, tmp_path: Path, ranking: str) -> None:
    pytest.importorskip("gguf")
    draft, out = save_gguf(tmp_path / "draft.gguf", some_ids()), tmp_path / "out.gguf"
    result = run_cli("prune", str(draft), "--ranking", ranking, "--size", "64", "-o", str(out), "--target", "none.gguf")
    assert result.status == 2
    result = run_cli("prune", str(draft), "--ranking", ranking, "--size", "64", "-o", str(out))
    assert result.status == 0, result.err
    assert f"-md {out} --spec-type draft-eagle3" in (tmp_path / "out.gguf.launch.txt").read_text()


def test_a_map_of_another_tool_says_what_to_keep(run_cli: Run, tmp_path: Path) -> None:
    ids = some_ids()
    torch.save([int(ids[7]), int(ids[2]), int(np.setdiff1d(np.arange(V), ids)[0])], tmp_path / "freq.pt")
    draft = save_eagle3(tmp_path / "draft", ids)
    result = run_cli("prune", str(draft), "--vocab", str(tmp_path / "freq.pt"), "-o", str(tmp_path / "out"))
    assert result.status == 0, result.err
    assert "no row for 1 of the map's ids" in result.err
    assert vllm_eagle3(tmp_path / "out")[1].tolist() == [ids[2], ids[7]]


def test_an_eagle_1_draft_is_pointed_to_the_token_map(run_cli: Run, tmp_path: Path, toy_files: ToyFiles) -> None:
    arguments = ["--ranking", toy_files.ranking, "--size", "192", "-o", str(tmp_path / "out")]
    result = run_cli("prune", toy_files.draft, *arguments)
    assert result.status == 2
    assert "hothead convert RANKING map.pt --to sglang" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["-o", "out"], "give the rows to keep"),
        (["--ranking", "RANKING", "--size", "64"], "--output is missing"),
        (["--ranking", "RANKING", "-o", "out"], "give exactly one of size"),
        (["--ranking", "RANKING", "--vocab", "RANKING", "-o", "out"], "give the rows to keep"),
        (["--vocab", "RANKING", "-o", "out"], "holds counts; give it with --ranking"),
        (["--ranking", "RANKING", "--size", "64", "-o", "out.gguf"], "a pruned checkpoint is a folder"),
        (["--ranking", "RANKING", "--size", "64", "-o", "out", "--target-vocab-size", "400"], "for another target"),
    ],
)  # fmt: skip
def test_refusals(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranking: str, extra: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    draft = save_eagle3(tmp_path / "draft")
    result = run_cli("prune", str(draft), *(ranking if word == "RANKING" else word for word in extra))
    assert result.status == 2
    assert says in result.err
    assert not (tmp_path / "out").exists()
