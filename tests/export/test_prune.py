"""Pruning draft checkpoints: the rows that are kept, the map that goes with them, and everything else untouched."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rules import sglang_eagle3, vllm_eagle3
from safetensors import safe_open
from toy_drafts import ROWS, H, V, eagle3_config, eagle3_tensors, save_draft, save_eagle3, some_ids

from hothead.errors import DraftMismatch, InputError, TokenizerMismatch
from hothead.export.base import Known, TokenMap, read_map
from hothead.export.checkpoint import open_checkpoint
from hothead.export.drafts import Draft, problems_of
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab


def ranking(special: tuple[int, ...] = (), fingerprint: str = "fp") -> TokenRanking:
    counts = np.random.default_rng(5).permutation(V) + 1
    return TokenRanking(counts, fingerprint, np.array(special, dtype=np.int64))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    return found


def assert_pruned(out: Path, original: dict[str, torch.Tensor], vocab: DraftVocab, rows: np.ndarray) -> None:
    """``out`` holds ``original``'s tensors, its head cut to ``rows``, and both engines propose ``vocab``'s ids."""
    after = tensors_of(out)
    assert after.keys() == original.keys() | {"d2t", "t2d"}
    for name, tensor in original.items():
        if name not in ("lm_head.weight", "d2t", "t2d"):
            assert after[name].dtype == tensor.dtype
            assert torch.equal(after[name], tensor)
    assert after["lm_head.weight"].dtype == torch.bfloat16
    assert torch.equal(after["lm_head.weight"], original["lm_head.weight"][torch.from_numpy(rows)])
    assert after["d2t"].dtype == torch.int64
    assert after["t2d"].dtype == torch.bool
    for engine in (vllm_eagle3, sglang_eagle3):
        head, targets = engine(out)
        assert targets.tolist() == vocab.target_ids.tolist()
        assert torch.equal(head, after["lm_head.weight"])


@pytest.mark.parametrize(("shards", "bin"), [(1, False), (4, False), (1, True)])
@pytest.mark.parametrize("ids", [None, some_ids()], ids=["full vocabulary", "reduced before"])
def test_the_head_is_cut_and_the_map_composed(tmp_path: Path, ids: np.ndarray | None, shards: int, bin: bool) -> None:
    draft = save_eagle3(tmp_path / "draft", ids, shards=shards, bin=bin)
    pruned = prune(draft, ranking(), tmp_path / "out", sizes={"size": 128})
    has = np.arange(V) if ids is None else ids
    wanted = [i for i in ranking().target_ids.tolist() if i in set(has.tolist())][:128]
    assert pruned.vocab.target_ids.tolist() == sorted(wanted)
    assert (pruned.rows_before, pruned.left_out) == (len(has), 0)
    rows = np.searchsorted(has, pruned.vocab.target_ids)
    assert_pruned(tmp_path / "out", eagle3_tensors(ids), pruned.vocab, rows)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config == {**eagle3_config(len(has)), "draft_vocab_size": 128}
    about = json.loads((tmp_path / "out/hothead.json").read_text())
    assert (about["tokenizer_fingerprint"], about["rows"], about["pruned_from"]) == ("fp", 128, "draft")
    assert (tmp_path / "out/README.md").read_text() == "A toy."
    assert read_map(tmp_path / "out").content.vocab.target_ids.tolist() == sorted(wanted)  # type: ignore[union-attr]
    assert problems_of(Draft(open_checkpoint(tmp_path / "out"))) == []
    if shards > 1:
        index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
        for name, file in index["weight_map"].items():
            with safe_open(tmp_path / "out" / file, framework="pt") as opened:
                assert name in opened.keys()  # noqa: SIM118 - not a dict
        assert index["weight_map"].keys() == tensors_of(tmp_path / "out").keys()


def test_pruning_twice_is_pruning_once(tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "draft")
    prune(draft, ranking(), tmp_path / "twice-a", sizes={"size": 192})
    prune(tmp_path / "twice-a", ranking(), tmp_path / "twice-b", sizes={"size": 64})
    prune(draft, ranking(), tmp_path / "once", sizes={"size": 64})
    once, twice = tensors_of(tmp_path / "once"), tensors_of(tmp_path / "twice-b")
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_rows_in_any_order_come_out_ascending(tmp_path: Path) -> None:
    ids = np.random.default_rng(3).permutation(some_ids())
    draft = save_eagle3(tmp_path / "draft", ids)
    pruned = prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    rows = np.array([np.flatnonzero(ids == i)[0] for i in pruned.vocab.target_ids])
    assert any("order" in note for note in pruned.notes)
    assert_pruned(tmp_path / "out", eagle3_tensors(ids), pruned.vocab, rows)


def test_a_map_instead_of_a_ranking_keeps_the_ids_the_draft_has(tmp_path: Path) -> None:
    ids = some_ids()
    draft = save_eagle3(tmp_path / "draft", ids)
    without = np.setdiff1d(np.arange(V), ids)[:3]
    made = TokenMap(DraftVocab.from_target_ids(np.concatenate([ids[:10], without]), V))
    pruned = prune(draft, made, tmp_path / "out")
    assert pruned.vocab.target_ids.tolist() == ids[:10].tolist()
    assert pruned.left_out == 3
    with pytest.raises(InputError, match="a row for none"):
        prune(draft, TokenMap(DraftVocab.from_target_ids(without, V)), tmp_path / "out2")
    with pytest.raises(InputError, match="says its own size"):
        prune(draft, made, tmp_path / "out2", sizes={"size": 3})


def test_special_and_end_ids_stay_in_whether_one_or_a_list(tmp_path: Path) -> None:
    rare = ranking().target_ids[-4:].tolist()
    config = eagle3_config(V, eos_token_id=rare[:2])
    draft = save_draft(tmp_path / "draft", eagle3_tensors(), config)
    pruned = prune(draft, ranking(special=(rare[2], rare[2])), tmp_path / "out", sizes={"size": 64})
    assert set(rare[:3]) <= set(pruned.vocab.target_ids.tolist())
    assert rare[3] not in pruned.vocab


def test_speculators_layout(tmp_path: Path) -> None:
    layer = {key: value for key, value in eagle3_config(None).items() if key != "architectures"}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": ROWS,
        "transformer_layer_config": layer,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/target"}},
    }
    ids = some_ids()
    tensors = eagle3_tensors(ids, prefix="layers.0.")
    tensors["embed_tokens.weight"] = torch.randn(V, H).bfloat16()
    draft = save_draft(tmp_path / "draft", tensors, config)
    prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    after = json.loads((tmp_path / "out/config.json").read_text())
    assert after == {**config, "draft_vocab_size": 64}
    head, targets = vllm_eagle3(tmp_path / "out")
    assert head.shape == (64, H)
    assert set(targets.tolist()) <= set(ids.tolist())
    assert tensors_of(tmp_path / "out")["embed_tokens.weight"].shape == (V, H)


def test_a_stale_map_beside_the_checkpoint_is_noticed_and_not_copied(tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "draft", some_ids())
    np.save(draft / "d2t.npy", some_ids(seed=9) - np.arange(ROWS))
    found = [problem.text for problem in problems_of(Draft(open_checkpoint(draft)))]
    assert len(found) == 1
    assert "stale" in found[0]
    prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    assert not (tmp_path / "out/d2t.npy").exists()


def test_nothing_is_overwritten_without_force_and_never_the_draft(tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "draft")
    out = tmp_path / "out"
    prune(draft, ranking(), out, sizes={"size": 64})
    before = sorted((file.name, file.read_bytes()) for file in out.iterdir())
    with pytest.raises(InputError, match="--force"):
        prune(draft, ranking(), out, sizes={"size": 128})
    for force in (False, True):
        with pytest.raises(InputError, match="never changed"):
            prune(draft, ranking(), draft, sizes={"size": 128}, force=force)
    with pytest.raises(InputError, match="at most the draft's 320"):
        prune(draft, ranking(), out, sizes={"size": 321}, force=True)
    assert sorted((file.name, file.read_bytes()) for file in out.iterdir()) == before
    prune(draft, ranking(), out, sizes={"size": 128}, force=True)
    assert len(tensors_of(out)["d2t"]) == 128
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "out"]


def test_a_failure_half_way_leaves_the_earlier_output(tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "draft")
    out = tmp_path / "out"
    prune(draft, ranking(), out, sizes={"size": 64})
    before = sorted((file.name, file.read_bytes()) for file in out.iterdir())

    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(draft, ranking(), out, sizes={"size": 128}, force=True, moved=fail)
    assert sorted((file.name, file.read_bytes()) for file in out.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "out"]


def test_a_ranking_for_another_tokenizer_or_size_is_refused(tmp_path: Path) -> None:
    draft = save_eagle3(tmp_path / "draft")
    with pytest.raises(TokenizerMismatch, match="their ids mean other tokens"):
        prune(draft, ranking(), tmp_path / "out", sizes={"size": 64}, fingerprint="another")
    with pytest.raises(DraftMismatch, match="counts 320 target ids and the target has 400"):
        prune(draft, ranking(), tmp_path / "out", sizes={"size": 64}, known=Known(400))
    large = TokenRanking(np.ones(V + 5, dtype=np.int64), "")
    with pytest.raises(InputError, match="another tokenizer"):
        prune(draft, large, tmp_path / "out", sizes={"size": 64})


@pytest.mark.parametrize(
    ("tensors", "config", "says"),
    [
        ({"fc.weight": torch.ones(H, 2 * H), "layers.0.mlp.up_proj.weight": torch.ones(H, H)}, {}, "token map"),
        ({"model.layers.61.shared_head.head.weight": torch.ones(V, H)}, {}, "MTP layer"),
        ({"mtp.fc.weight": torch.ones(H, 2 * H)}, {}, "MTP layer"),
        ({"model.layers.0.mlp.up_proj.weight": torch.ones(H, H), "lm_head.weight": torch.ones(V, H)}, {}, "standalone"),
        ({"thing": torch.ones(3)}, {}, "no draft of a known kind"),
    ],
)
def test_drafts_that_no_stock_engine_loads_smaller_say_what_to_do(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], says: str
) -> None:
    draft = save_draft(tmp_path / "draft", tensors, {"vocab_size": V, "hidden_size": H, **config})
    with pytest.raises(DraftMismatch, match=says):
        prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    assert not (tmp_path / "out").exists()


def test_a_quantized_head_of_unknown_layout_is_refused(tmp_path: Path) -> None:
    tensors = {**eagle3_tensors(), "lm_head.weight_scale": torch.ones(V)}
    draft = save_draft(tmp_path / "draft", tensors, eagle3_config(V))
    with pytest.raises(DraftMismatch, match="quantized head"):
        prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        prune(tmp_path / "none", ranking(), tmp_path / "out", sizes={"size": 64})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no weights"):
        prune(tmp_path / "empty", ranking(), tmp_path / "out", sizes={"size": 64})
    draft = save_eagle3(tmp_path / "draft", shards=3)
    (draft / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(DraftMismatch, match="in the index and not in the folder"):
        prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    cut = save_eagle3(tmp_path / "cut")
    data = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(InputError, match="not a readable safetensors"):
        prune(cut, ranking(), tmp_path / "out", sizes={"size": 64})


def test_a_dflash_checkpoint_keeps_the_names_of_its_map(tmp_path: Path) -> None:
    ids = some_ids()
    tensors = {f"model.{name}" if name in ("d2t", "t2d") else name: t for name, t in eagle3_tensors(ids).items()}
    table = torch.randn(ROWS, 8)
    tensors |= {"markov_head.markov_w1.weight": torch.randn(V, 8), "markov_head.markov_w2.weight": table}
    draft = save_draft(tmp_path / "draft", tensors, eagle3_config(ROWS, architectures=["DFlashDraftModel"]))
    pruned = prune(draft, ranking(), tmp_path / "out", sizes={"size": 64})
    assert pruned.kind == "dflash"
    after = tensors_of(tmp_path / "out")
    assert after.keys() == tensors.keys()
    rows = torch.from_numpy(np.searchsorted(ids, pruned.vocab.target_ids))
    assert torch.equal(after["markov_head.markov_w2.weight"], table[rows])
    assert after["markov_head.markov_w1.weight"].shape == (V, 8)
    assert (after["model.d2t"] + torch.arange(64)).tolist() == pruned.vocab.target_ids.tolist()
