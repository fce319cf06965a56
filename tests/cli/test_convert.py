"""``hothead convert``: from counts and maps to each tool's file, with SGLang's command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, ToyFiles
from engine_rules import sglang_token_map
from toy_drafts import V, save_eagle3, some_ids

from hothead.export.base import NAMES
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import fingerprint
from hothead.vocab import DraftVocab

Run = Callable[..., Outcome]


def test_counts_become_sglangs_map_in_the_order_of_frequency(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    out = tmp_path / "map.pt"
    result = run_cli(
        "convert", toy_files.ranking, str(out), "--to", "sglang", "--size", "192", "--target", toy_files.target
    )
    assert result.status == 0, result.err
    assert "192 of 320 ids, hothead -> sglang" in result.out
    ids = torch.load(out, weights_only=True)
    ranking = TokenRanking.load(toy_files.ranking)
    vocab = DraftVocab.from_ranking(ranking, size=192, target_vocab_size=320)
    assert sorted(ids) == vocab.target_ids.tolist()
    counts = [int(ranking.counts[i]) for i in ids]
    assert counts == sorted(counts, reverse=True)
    head = torch.randn(320, 4)
    rows, _ = sglang_token_map(out, head)
    assert torch.equal(rows, head[ids])
    saved = (tmp_path / "map.pt.launch.txt").read_text()
    assert f"--speculative-token-map {out}" in saved
    assert saved.splitlines()[1] in result.out


def test_the_json_document(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    arguments = ["convert", toy_files.ranking, str(tmp_path / "d2t"), "--to", "d2t", "--ratio", "0.5", "--json"]
    result = run_cli(*arguments)
    document = json.loads(result.out)
    assert (document["from"], document["to"], document["target_vocab_size"]) == ("hothead", "d2t", 259)
    d2t, t2d = (np.load(tmp_path / "d2t" / f"{name}.npy") for name in ("d2t", "t2d"))
    assert (d2t.dtype, t2d.dtype, len(d2t), len(t2d)) == (np.int64, bool, document["ids"], 259)


@pytest.mark.parametrize("to", [name for name in NAMES if name not in ("vllm-frequency", "speculators")])
def test_a_drafts_own_map_goes_to_every_format(run_cli: Run, tmp_path: Path, to: str) -> None:
    draft = save_eagle3(tmp_path / "draft", some_ids(), bin=to in ("json", "sglang"))
    out = tmp_path / "out"
    assert run_cli("convert", str(draft), str(out), "--to", to).status == 0
    back = run_cli("convert", str(out), str(tmp_path / "back.json"), "--to", "json", "--target-vocab-size", str(V))
    assert back.status == 0, back.err
    assert json.loads((tmp_path / "back.json").read_text())["target_ids"] == some_ids().tolist()


def test_an_output_that_is_there_stays_without_force(run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("3\n1\n")
    arguments = ["convert", str(tmp_path / "ids.txt"), str(tmp_path / "out.json"), "--target-vocab-size", "9"]
    assert run_cli(*arguments, "--to", "json").status == 0
    result = run_cli(*arguments, "--to", "text")
    assert (result.status, "--force" in result.err) == (2, True)
    assert (tmp_path / "out.json").read_text().startswith("{")
    assert run_cli(*arguments, "--to", "text", "--force").status == 0
    assert run_cli("convert", str(tmp_path), str(tmp_path / "d"), "--to", "d2t").status == 2


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ([], "--to is missing"),
        (["--to", "elsewhere"], "no file format is called"),
        (["--to", "sglang"], "--target-vocab-size"),
        (["--to", "speculators", "--target-vocab-size", "9"], "does not know how often"),
        (["--to", "sglang", "--target-vocab-size", "9", "--size", "2"], "--size goes with counts"),
        (["--to", "sglang", "--target-vocab-size", "9", "--algorithm", "EAGLE3"], "SGLang ignores"),
        (["--to", "sglang", "--target-vocab-size", "9", "--algorithm", "STANDALONE"], "another token"),
        (["--to", "sglang", "--target-vocab-size", "9", "--tp", "2"], "issue 4328"),
        (["--to", "sglang", "--target-vocab-size", "3"], "past the target's 3 ids"),
        (["--to", "json", "--from", "gguf", "--target-vocab-size", "9"], "not a GGUF file"),
    ],
)
def test_refusals(run_cli: Run, tmp_path: Path, extra: list[str], says: str) -> None:
    (tmp_path / "ids.txt").write_text("3\n1\n")
    out = tmp_path / "out"
    result = run_cli("convert", str(tmp_path / "ids.txt"), str(out), *extra)
    assert result.status == 2
    assert says in result.err
    assert result.err.count("\n") == 1
    assert not out.exists()


def test_the_draft_says_which_algorithm_it_is(run_cli: Run, toy_files: ToyFiles, tmp_path: Path) -> None:
    arguments = ["convert", toy_files.ranking, str(tmp_path / "map.pt"), "--to", "sglang", "--size", "192"]
    eagle3 = save_eagle3(tmp_path / "eagle3")
    result = run_cli(*arguments, "--draft", str(eagle3))
    assert (result.status, "SGLang ignores" in result.err) == (2, True)
    result = run_cli(*arguments, "--draft", toy_files.draft)
    assert result.status == 0, result.err
    assert f"--speculative-algorithm EAGLE --speculative-draft-model-path {toy_files.draft}" in result.out


def test_a_ranking_of_another_tokenizer(run_cli: Run, toy_files: ToyFiles, tmp_path: Path, toy_tokenizer: Any) -> None:
    TokenRanking(np.ones(260, dtype=np.int64), fingerprint(toy_tokenizer)).save(tmp_path / "other.safetensors")
    arguments = ["--to", "sglang", "--size", "64", "--target", toy_files.target]
    result = run_cli("convert", str(tmp_path / "other.safetensors"), str(tmp_path / "map.pt"), *arguments)
    assert (result.status, "the same ids mean other tokens" in result.err) == (2, True)
