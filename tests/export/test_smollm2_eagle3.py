"""The committed EAGLE-3 draft, pruned: what stock engines make of its files, by their own loading rules."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rules import checkpoint, sglang_eagle3, vllm_eagle3

from hothead.export.checkpoint import open_checkpoint
from hothead.export.drafts import Draft, problems_of
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking

DRAFTS = Path(__file__).parents[2] / "drafts"
DRAFT = DRAFTS / "smollm2-135m-instruct-eagle3"
V = 49152


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ranking = TokenRanking.load(DRAFTS / "smollm2-135m-instruct-eagle" / "ranking.safetensors")
    return prune(DRAFT, ranking, tmp_path_factory.mktemp("pruned") / "draft", sizes={"size": 4096}).output


@pytest.mark.parametrize("loads", [sglang_eagle3, vllm_eagle3])
def test_engines_put_each_kept_row_on_the_id_it_had(pruned: Path, loads: object) -> None:
    assert callable(loads)
    (rows, ids), (kept_rows, kept_ids) = loads(DRAFT), loads(pruned)
    assert (len(ids), len(kept_ids)) == (16384, 4096)
    place = np.searchsorted(ids.numpy(), kept_ids.numpy())
    assert torch.equal(ids[place], kept_ids)
    assert torch.equal(rows[place], kept_rows)


def test_config_and_maps_are_what_engines_expect(pruned: Path) -> None:
    for folder, size in ((DRAFT, 16384), (pruned, 4096)):
        config, tensors = checkpoint(folder)
        assert config["architectures"] == ["LlamaForCausalLMEagle3"]
        assert config["draft_vocab_size"] == size
        assert config["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]
        assert not config["tie_word_embeddings"]
        d2t, t2d = tensors["d2t"], tensors["t2d"]
        assert (d2t.dtype, t2d.dtype, len(t2d)) == (torch.int64, torch.bool, V)
        assert torch.equal(torch.arange(size) + d2t, t2d.nonzero()[:, 0])
        assert not problems_of(Draft(open_checkpoint(folder)), V)


def test_all_but_the_head_and_its_map_is_left_as_it_was(pruned: Path) -> None:
    _, before = checkpoint(DRAFT)
    config, after = checkpoint(pruned)
    assert before.keys() == after.keys()
    for name in before.keys() - {"lm_head.weight", "d2t", "t2d"}:
        assert torch.equal(before[name], after[name]), name
    assert {**json.loads((DRAFT / "config.json").read_text()), "draft_vocab_size": 4096} == config
