"""Accidents that happened to people with these files, each made small: what hothead says or does about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_toy_tokenizer
from engine_rules import sglang_eagle3, sglang_token_map, vllm_eagle3
from toy_drafts import ROWS, H, V, eagle3_config, eagle3_tensors, save_draft, save_eagle3, some_ids

from hothead.errors import DraftMismatch, InputError, TokenizerMismatch
from hothead.export.base import Known, read_map
from hothead.export.checkpoint import open_checkpoint
from hothead.export.coverage import coverage_of, token_bytes
from hothead.export.drafts import Draft, problems_of
from hothead.export.inspect import inspect_path, tokenizer_problems
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import fingerprint
from hothead.vocab import DraftVocab

RANKING = TokenRanking(np.random.default_rng(5).permutation(V) + 1, "")


def says(folder: Path, vocab_size: int | None = None) -> str:
    return "; ".join(problem.text for problem in problems_of(Draft(open_checkpoint(folder)), vocab_size))


def test_a_corpus_of_6054_distinct_ids_and_32000_asked() -> None:
    counts = np.zeros(128_256, dtype=np.int64)
    counts[np.random.default_rng(0).choice(128_256, 6054, replace=False)] = 3
    vocab = DraftVocab.from_ranking(TokenRanking(counts, ""), size=32_000)
    assert len(vocab) == 32_000
    assert vocab.unseen == 32_000 - 6054
    assert np.isin(np.flatnonzero(counts), vocab.target_ids).all()


def test_zero_offsets_are_right_for_a_full_vocabulary_and_wrong_for_less(tmp_path: Path) -> None:
    full = save_draft(tmp_path / "full", eagle3_tensors(np.arange(V)), eagle3_config(V))
    assert not problems_of(Draft(open_checkpoint(full)))
    pruned = prune(full, RANKING, tmp_path / "out", sizes={"size": 64})
    assert vllm_eagle3(tmp_path / "out")[1].tolist() == pruned.vocab.target_ids.tolist()
    tensors = eagle3_tensors(some_ids())
    tensors["d2t"] = torch.zeros(ROWS, dtype=torch.int64)
    less = save_draft(tmp_path / "less", tensors, eagle3_config(ROWS))
    assert vllm_eagle3(less)[1].tolist() == list(range(ROWS))  # what the engine silently makes of it
    assert "all zeros for 192 of 320" in says(less)
    with pytest.raises(DraftMismatch, match="all zeros"):
        prune(less, RANKING, tmp_path / "out2", sizes={"size": 64})


def test_d2t_missing_from_the_checkpoint(tmp_path: Path) -> None:
    tensors = eagle3_tensors(some_ids())
    del tensors["d2t"], tensors["t2d"]
    draft = save_draft(tmp_path / "draft", tensors, eagle3_config(ROWS))
    assert sglang_eagle3(draft)[1].tolist() == list(range(ROWS))
    assert "has no d2t: engines take the rows for ids 0 to 191" in says(draft)
    with pytest.raises(DraftMismatch, match="no d2t"):
        prune(draft, RANKING, tmp_path / "out", sizes={"size": 64})


def test_d2t_of_int32_is_read_and_written_as_int64(tmp_path: Path) -> None:
    tensors = eagle3_tensors(some_ids())
    tensors["d2t"] = tensors["d2t"].int()
    draft = save_draft(tmp_path / "draft", tensors, eagle3_config(ROWS))
    assert "int32; engines expect int64" in says(draft)
    prune(draft, RANKING, tmp_path / "out", sizes={"size": 64})
    assert says(tmp_path / "out") == ""


def test_several_draft_rows_on_one_target_id(tmp_path: Path) -> None:
    tensors = eagle3_tensors(some_ids())
    tensors["d2t"][10] = tensors["d2t"][9] - 1
    draft = save_draft(tmp_path / "draft", tensors, eagle3_config(ROWS))
    assert f"2 draft rows to target id {some_ids()[9]}" in says(draft)
    with pytest.raises(DraftMismatch, match="2 draft rows"):
        prune(draft, RANKING, tmp_path / "out", sizes={"size": 64})


@pytest.mark.parametrize("value", [0, -1, "32000", 1.5, True])
def test_a_draft_vocab_size_that_is_none(tmp_path: Path, value: Any) -> None:
    draft = save_draft(tmp_path / "draft", eagle3_tensors(some_ids()), eagle3_config(value))
    assert f"draft_vocab_size={value!r}; expected a number" in says(draft)
    with pytest.raises(DraftMismatch, match="expected a number of rows above 0"):
        prune(draft, RANKING, tmp_path / "out", sizes={"size": 64})


def test_a_reduced_head_that_is_replaced_at_load(tmp_path: Path) -> None:
    tied = save_draft(
        tmp_path / "tied",
        {**eagle3_tensors(some_ids()), "embed_tokens.weight": torch.randn(V, H).bfloat16()},
        eagle3_config(ROWS, tie_word_embeddings=True),
    )
    assert len(sglang_eagle3(tied)[0]) == V  # the whole embedding
    assert "SGLang drops the draft's own head" in says(tied)
    prune(tied, RANKING, tmp_path / "out", sizes={"size": 64})
    assert len(sglang_eagle3(tmp_path / "out")[0]) == 64
    unnamed = save_draft(tmp_path / "unnamed", eagle3_tensors(some_ids()), eagle3_config(None))
    assert "names no draft_vocab_size" in says(unnamed)
    with pytest.raises(AssertionError, match="size mismatch"):
        sglang_eagle3(unnamed)
    headless = eagle3_tensors(some_ids())
    del headless["lm_head.weight"]
    folder = save_draft(tmp_path / "headless", headless, eagle3_config(ROWS))
    assert "draft with the target's full head" in says(folder)


def test_a_map_made_for_another_tokenizer_of_the_same_size(
    tmp_path: Path, toy_tokenizer: Any, other_tokenizer: Any
) -> None:
    one, other = fingerprint(toy_tokenizer), fingerprint(other_tokenizer)
    vocab = DraftVocab.from_target_ids(np.arange(0, 200, 2), 260, one)
    vocab.save(tmp_path / "map.safetensors")
    read_map(tmp_path / "map.safetensors", Known(260, one))
    with pytest.raises(TokenizerMismatch, match="the same ids mean other tokens"):
        read_map(tmp_path / "map.safetensors", Known(260, other))
    found = inspect_path(tmp_path / "map.safetensors", Known(260), other_tokenizer)
    assert found.has_errors
    draft = save_eagle3(tmp_path / "draft")
    made = TokenRanking(np.ones(V, dtype=np.int64), one)
    with pytest.raises(TokenizerMismatch):
        prune(draft, made, tmp_path / "out", sizes={"size": 64}, known=Known(V, other))


def test_a_draft_whose_map_was_regenerated_after_pruning(tmp_path: Path) -> None:
    """Every row now stands for another token, and nothing in shapes or types tells."""
    prune(save_eagle3(tmp_path / "draft"), RANKING, tmp_path / "out", sizes={"size": ROWS})
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(tmp_path / "out/model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        metadata = file.metadata()
    regenerated = eagle3_tensors(some_ids(seed=8))
    tensors |= {name: regenerated[name] for name in ("d2t", "t2d")}
    save_file(tensors, tmp_path / "out/model.safetensors", metadata)
    vllm_eagle3(tmp_path / "out")  # loads
    assert "every row now stands for another token" in says(tmp_path / "out")
    with pytest.raises(DraftMismatch, match="map was regenerated"):
        prune(tmp_path / "out", RANKING, tmp_path / "again", sizes={"size": 64})


@pytest.mark.parametrize(("total", "rows"), [(128_256, 32_000), (248_320, 32_768)])
def test_shape_errors_are_told_before_the_engine_meets_them(tmp_path: Path, total: int, rows: int) -> None:
    def tensors(head: int) -> dict[str, torch.Tensor]:
        return {
            "fc.weight": torch.zeros(2, 6),
            "midlayer.hidden_norm.weight": torch.zeros(2),
            "lm_head.weight": torch.zeros(head, 2),
            "d2t": torch.arange(rows) * 2,
        }

    config = eagle3_config(rows, vocab_size=total, hidden_size=2)
    whole_head = save_draft(tmp_path / "a", tensors(total), config)
    assert f"lm_head.weight has {total} rows and the config says draft_vocab_size={rows}" in says(whole_head)
    with pytest.raises(AssertionError, match="size mismatch"):
        vllm_eagle3(whole_head)
    other_target = save_draft(tmp_path / "b", tensors(rows), config)
    assert f"counts {total} target ids and the target has 151936" in says(other_target, 151_936)


def test_eos_as_a_list(tmp_path: Path, toy_tokenizer: Any) -> None:
    eos = [toy_tokenizer.eos_token_id, 100]
    ids = np.setdiff1d(np.arange(260), eos)
    draft = save_draft(tmp_path / "draft", eagle3_tensors(ids), eagle3_config(len(ids), eos_token_id=eos))
    found = inspect_path(draft, Known(V), toy_tokenizer)
    assert found.coverage is not None
    assert len(found.coverage.special_missing) == 2
    assert any("2 special tokens are not in the map" in problem.text for problem in found.problems)


def test_bos_twice(tmp_path: Path) -> None:
    torch.save([256, 5, 9, 256], tmp_path / "map.pt")
    with pytest.raises(InputError, match="target id 256 comes 2 times"):
        read_map(tmp_path / "map.pt", Known(260))
    tokenizer = make_toy_tokenizer()
    assert tokenizer_problems(tokenizer) == []
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{bos} $A", None, [(bos, tokenizer.bos_token_id)])
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id
    (problem,) = tokenizer_problems(tokenizer)
    assert "adds another" in problem.text


def test_byte_tokens_lost_from_a_chat_corpus(tmp_path: Path, toy_tokenizer: Any) -> None:
    """A map of English chats alone: Spanish and Swedish letters take two byte tokens, which it no longer has."""
    written = token_bytes(toy_tokenizer)
    assert sorted(written[i] for i in written if len(written[i]) == 1) == [bytes([byte]) for byte in range(256)]
    # Byte tokens of the lower half, and of the upper all but 90, among them the lead byte of å, ä, ö, ñ, á.
    lost = set(range(0xA0, 0xA0 + 90)) | {0xC3}
    ids = np.array([i for i, text in written.items() if len(text) == 1 and text[0] not in lost] + [256, 257, 258])
    vocab = DraftVocab.from_target_ids(ids, 260, fingerprint(toy_tokenizer))
    coverage = coverage_of(vocab, toy_tokenizer)
    assert coverage.byte_tokens_missing == len(lost)
    assert coverage.letters["English"] == 1
    assert {"Spanish", "Swedish", "Russian", "Chinese"} <= set(coverage.unspelt)
    vocab.save(tmp_path / "map.safetensors")
    found = inspect_path(tmp_path / "map.safetensors", Known(260), toy_tokenizer)
    (problem,) = [problem for problem in found.problems if "byte tokens" in problem.text]
    assert f"{len(lost)} of 256 byte tokens are not in the map: letters it can spell:" in problem.text
    assert coverage_of(DraftVocab.full(260), toy_tokenizer).unspelt == []


def test_a_map_read_as_what_it_is_not_by_sglang(tmp_path: Path) -> None:
    """Offsets pass SGLang's loading and pick wrong rows; hothead does not let them through."""
    ids = some_ids()
    torch.save((ids - np.arange(ROWS)).tolist(), tmp_path / "offsets.pt")
    head = torch.randn(V, H)
    rows, _ = sglang_token_map(tmp_path / "offsets.pt", head)
    assert not torch.equal(rows, head[torch.from_numpy(ids)])
    with pytest.raises(InputError, match="look like EAGLE-3 offsets"):
        read_map(tmp_path / "offsets.pt", Known(V))
