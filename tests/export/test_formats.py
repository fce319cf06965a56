"""Map formats: exact round trips between all of them, detection, and refusals that say what a file looks like."""

import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hothead.errors import InputError, TokenizerMismatch
from hothead.export.base import FORMATS, Known, TokenMap, read_map, write_map
from hothead.export.gguf_file import I64, NewTensor, encode_key, write_gguf
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

V = 300
MAP_FORMATS = [form.name for form in FORMATS if "map" in form.holds]
COUNT_FORMATS = [form.name for form in FORMATS if "counts" in form.holds]
KEEPS_ORDER = {"sglang", "json", "text"}
SUFFIX = {
    "d2t": "",
    "gguf": ".gguf",
    "json": ".json",
    "text": ".txt",
    "hothead": ".safetensors",
    "eagle3": ".safetensors",
}

shuffled_ids = st.lists(st.integers(0, V - 1), min_size=1, max_size=V, unique=True)
counts_by_id = st.lists(st.integers(0, 2**40), min_size=V, max_size=V).filter(any)


def path_for(folder: Path, name: str, stem: str) -> Path:
    return folder / (stem + SUFFIX.get(name, ".pt"))


def named_if_ambiguous(count: int) -> str | None:
    """A full list of ids could as well be frequencies: its format must be named."""
    return "sglang" if count == V else None


@pytest.mark.parametrize(("first", "then"), list(product(MAP_FORMATS, MAP_FORMATS)))
@settings(max_examples=8, deadline=None)
@given(ids=shuffled_ids)
def test_a_map_goes_from_any_format_to_any_other_and_is_the_same(first: str, then: str, ids: list[int]) -> None:
    ranked = np.array(ids)
    made = TokenMap(DraftVocab.from_target_ids(ranked, V), ranked_ids=ranked)
    known = Known(V)
    with tempfile.TemporaryDirectory() as folder:
        one, two = path_for(Path(folder), first, "one"), path_for(Path(folder), then, "two")
        write_map(one, made, first)
        middle = read_map(one, known, named_if_ambiguous(len(ids)) if first == "sglang" else None)
        assert middle.format == first
        assert isinstance(middle.content, TokenMap)
        write_map(two, middle.content, then)
        end = read_map(two, known, named_if_ambiguous(len(ids)) if then == "sglang" else None)
    assert isinstance(end.content, TokenMap)
    assert end.content.vocab == made.vocab
    if {first, then} <= KEEPS_ORDER:
        assert np.array_equal(end.content.ordered_ids, ranked)


@pytest.mark.parametrize(("first", "then"), list(product(COUNT_FORMATS, COUNT_FORMATS)))
@settings(max_examples=8, deadline=None)
@given(counts=counts_by_id)
def test_counts_go_from_any_format_to_any_other_and_are_the_same(first: str, then: str, counts: list[int]) -> None:
    made = TokenRanking(np.array(counts), "")
    names = {"vllm-frequency": "vllm-frequency"}  # by chance a permutation of the ids, it could be a list of them
    with tempfile.TemporaryDirectory() as folder:
        one, two = path_for(Path(folder), first, "one"), path_for(Path(folder), then, "two")
        write_map(one, made, first)
        middle = read_map(one, Known(V), names.get(first))
        write_map(two, middle.content, then)
        end = read_map(two, Known(V), names.get(then)).content
    assert isinstance(end, TokenRanking)
    assert np.array_equal(end.counts, made.counts)


@pytest.mark.parametrize("name", ["hothead", "json"])
def test_these_keep_what_a_ranking_knows_of_its_tokenizer(tmp_path: Path, name: str) -> None:
    made = TokenRanking(np.arange(V), "a fingerprint", np.array([1, 2]), np.array([7]))
    write_map(tmp_path / "file", made, name)
    end = read_map(tmp_path / "file").content
    assert isinstance(end, TokenRanking)
    assert (end.tokenizer_fingerprint, end.special_target_ids.tolist(), end.byte_target_ids.tolist()) == (
        "a fingerprint",
        [1, 2],
        [7],
    )


def test_a_map_does_not_know_counts_and_counts_need_a_size(tmp_path: Path) -> None:
    made = TokenMap(DraftVocab.from_target_ids(np.array([1]), V))
    with pytest.raises(InputError, match="does not know how often"):
        write_map(tmp_path / "out.pt", made, "speculators")
    with pytest.raises(InputError, match="--size"):
        write_map(tmp_path / "out.pt", TokenRanking(np.ones(V, dtype=np.int64), ""), "sglang")
    with pytest.raises(InputError, match="expected one of hothead, sglang"):
        write_map(tmp_path / "out.pt", made, "nonsense")


# What SGLang and others would take silently and misread.


def offsets_of(ids: Any) -> np.ndarray:
    return np.array(ids) - np.arange(len(ids))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (offsets_of([3, 4, 9, 10, 50]).tolist(), "look like EAGLE-3 offsets"),
        (torch.from_numpy(offsets_of([3, 4, 9, 10, 50])), "look like EAGLE-3 offsets"),
        ([True, False, True], "a mask of 3"),
        (torch.tensor([True, False, True]), "a mask of 3"),
        ([1, 0, 0, 1], "zeros and ones: a mask"),
        ([0.5, 0.25], "floats"),
        (torch.tensor([4.0, 2.0]), "floats"),
        ([5, 3, 5], "target id 5 comes 2 times"),
        ([5, -1, 7], "found -1"),
        ([5, V], "past the target's 300 ids"),
        ([128_255], "past the target's 300 ids"),
        ([0, 0, 0, 0], "never filled in"),
        ([], "empty"),
        ([[1, 2]], "a list of list"),
        (torch.tensor([[1, 2]]), r"shape \[1, 2\]"),
        (["a"], "a list of str"),
        ([1, None], "a list of NoneType, int"),
        ({"a": 1}, "keys 'a'"),
        ("ids", "found a str"),
        (torch.tensor(3), r"shape \[\]"),
    ],
)
def test_what_is_no_token_map_is_refused_by_what_it_looks_like(tmp_path: Path, value: Any, says: str) -> None:
    torch.save(value, tmp_path / "map.pt")
    with pytest.raises(InputError, match=says):
        read_map(tmp_path / "map.pt", Known(V))


def test_an_inverse_map_is_not_a_list_of_ids(tmp_path: Path) -> None:
    torch.save(DraftVocab.from_target_ids(np.array([5, 9]), V).draft_id_of.tolist(), tmp_path / "map.pt")
    with pytest.raises(InputError, match="an inverse map"):
        read_map(tmp_path / "map.pt", Known(V), "sglang")


def test_a_file_that_could_be_two_things_must_be_named(tmp_path: Path) -> None:
    torch.save(list(range(V))[::-1], tmp_path / "map.pt")
    with pytest.raises(InputError, match="--from sglang or --from vllm-frequency"):
        read_map(tmp_path / "map.pt", Known(V))
    as_ids = read_map(tmp_path / "map.pt", Known(V), "sglang").content
    as_counts = read_map(tmp_path / "map.pt", Known(V), "vllm-frequency").content
    assert isinstance(as_ids, TokenMap) and as_ids.vocab.is_full
    assert isinstance(as_counts, TokenRanking) and as_counts.counts[0] == V - 1


def test_a_list_alone_does_not_say_how_many_ids_there_are(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "map.pt")
    with pytest.raises(InputError, match="--target-vocab-size"):
        read_map(tmp_path / "map.pt")


def test_frequencies_are_told_from_ids_and_are_whole_numbers(tmp_path: Path) -> None:
    torch.save(torch.arange(V) % 7, tmp_path / "freq.pt")
    assert read_map(tmp_path / "freq.pt", Known(V)).format == "vllm-frequency"
    torch.save((torch.arange(V) % 7).float(), tmp_path / "freq.pt")
    assert read_map(tmp_path / "freq.pt", Known(V)).format == "vllm-frequency"
    torch.save(torch.softmax(torch.randn(V), 0), tmp_path / "freq.pt")
    with pytest.raises(InputError, match="fractions"):
        read_map(tmp_path / "freq.pt", Known(V))
    torch.save(torch.full((V,), float("nan")), tmp_path / "freq.pt")
    with pytest.raises(InputError, match="fractions"):
        read_map(tmp_path / "freq.pt", Known(V))
    with pytest.raises(InputError, match="each of the target's 400 ids; found 300"):
        read_map(tmp_path / "freq.pt", Known(400), "vllm-frequency")


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ({V: 1}, "outside the target's 300"),
        ({-1: 2}, "outside"),
        ({1: -2}, "-2 times"),
        ({1: 0.5}, "count 0.5"),
        ({}, "empty"),
    ],
)
def test_token_freq_with_wrong_entries(tmp_path: Path, pairs: dict, says: str) -> None:
    torch.save(pairs, tmp_path / "token_freq.pt")
    with pytest.raises(InputError, match=says):
        read_map(tmp_path / "token_freq.pt", Known(V), "speculators")


# d2t and t2d


def mask_of(ids: list[int]) -> np.ndarray:
    mask = np.zeros(V, dtype=bool)
    mask[ids] = True
    return mask


IDS = [3, 4, 9, 10, 50]


@pytest.mark.parametrize(
    ("d2t", "t2d", "says"),
    [
        (np.array(IDS), None, "absolute target ids"),
        (np.array(IDS), mask_of(IDS), "absolute target ids"),
        (np.zeros(5, dtype=np.int64), None, "all zeros for 5 of 300"),
        (np.zeros(5, dtype=np.int64), mask_of(IDS), "all zeros for 5 of 300"),
        (offsets_of(IDS), mask_of([3, 4, 9, 10, 51]), "One of them is stale"),
        (np.array([3, 2, 1, 0]), None, "4 draft rows to target id 3"),
        (np.array([-1, 0, 3]), None, "target id -1"),
        (np.array([7, 7, 299]), None, "target id 301"),
        (offsets_of(IDS).astype(np.float32), None, "float32"),
        (mask_of(IDS), None, "that is a t2d"),
        (np.zeros((2, 2), dtype=np.int64), None, r"shape \[2, 2\]"),
        (np.zeros(V + 1, dtype=np.int64), None, "more than the target's"),
        (offsets_of(IDS), np.arange(V), "t2d must be a mask"),
    ],
)
@pytest.mark.parametrize("name", ["d2t", "eagle3", "specforge"])
def test_a_wrong_d2t_is_refused_by_what_it_looks_like(
    tmp_path: Path, d2t: np.ndarray, t2d: np.ndarray | None, says: str, name: str
) -> None:
    arrays = {"d2t": d2t} | ({} if t2d is None else {"t2d": t2d})
    path = tmp_path / "map"
    if name == "d2t":
        path.mkdir()
        for key, array in arrays.items():
            np.save(path / f"{key}.npy", array)
    elif name == "eagle3":
        save_file(arrays, path)
    else:
        torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path)
    with pytest.raises(InputError, match=says):
        read_map(path, Known(V))


def test_int32_offsets_and_rows_out_of_order_are_read_with_a_remark(tmp_path: Path) -> None:
    np.save(tmp_path / "d2t.npy", offsets_of([9, 4, 50]).astype(np.int32))
    content = read_map(tmp_path / "d2t.npy", Known(V)).content
    assert isinstance(content, TokenMap)
    assert content.vocab.target_ids.tolist() == [4, 9, 50]
    assert content.row_ids is not None and content.row_ids.tolist() == [9, 4, 50]
    assert any("int32" in note for note in content.notes)
    assert any("order" in note for note in content.notes)


def test_a_map_for_another_size_or_tokenizer_is_refused(tmp_path: Path) -> None:
    made = TokenMap(DraftVocab.from_target_ids(np.array(IDS), V, "one tokenizer"))
    for name in ("hothead", "json", "text", "eagle3", "gguf"):
        path = path_for(tmp_path, name, name)
        write_map(path, made, name)
        with pytest.raises(TokenizerMismatch, match=r"300.*320|320.*300"):
            read_map(path, Known(320))
        with pytest.raises(TokenizerMismatch, match="the same ids mean other tokens"):
            read_map(path, Known(V, "another of the same size"))
        assert read_map(path).content.vocab == made.vocab  # type: ignore[union-attr]
    for name in ("specforge", "d2t"):
        path = path_for(tmp_path, name, name)
        write_map(path, made, name)
        with pytest.raises(TokenizerMismatch, match="300 target ids"):
            read_map(path, Known(320))


def test_a_gguf_of_offsets_is_refused(tmp_path: Path) -> None:
    data = offsets_of(IDS).astype("<i8").tobytes()
    tensors = [NewTensor("d2t", (5,), I64, lambda: iter([data]))]
    write_gguf(tmp_path / "d.gguf", 3, [encode_key("general.architecture", "eagle3")], tensors, 32)
    with pytest.raises(InputError, match="look like EAGLE-3 offsets"):
        read_map(tmp_path / "d.gguf", Known(V))


def test_text_and_json_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("# hot ones\n7\n3\n\n12\n")
    content = read_map(tmp_path / "ids.txt", Known(V)).content
    assert isinstance(content, TokenMap) and content.ordered_ids.tolist() == [7, 3, 12]
    (tmp_path / "ids.json").write_text("[7, 3, 12]")
    content = read_map(tmp_path / "ids.json", Known(V)).content
    assert isinstance(content, TokenMap) and content.ordered_ids.tolist() == [7, 3, 12]
    (tmp_path / "counts.json").write_text('{"7": 3, "1": 2}')
    counts = read_map(tmp_path / "counts.json", Known(V)).content
    assert isinstance(counts, TokenRanking) and counts.target_ids[:2].tolist() == [7, 1]
    (tmp_path / "ids.txt").write_text("7\nthe\n")
    with pytest.raises(InputError, match="line 2 is 'the'"):
        read_map(tmp_path / "ids.txt", Known(V))
    (tmp_path / "ids.json").write_text('{"target_ids": [1], "target_vocab_size": "many"}')
    with pytest.raises(InputError, match="target_vocab_size must be a whole number"):
        read_map(tmp_path / "ids.json", Known(V))


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "ran",)

    torch.save(Bomb(), tmp_path / "bomb.pt")
    with pytest.raises(InputError, match="could run code"):
        read_map(tmp_path / "bomb.pt", Known(V))
    assert not (tmp_path / "ran").exists()
    np.save(tmp_path / "d2t.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not a readable array"):
        read_map(tmp_path / "d2t.npy", Known(V))
    assert not (tmp_path / "ran").exists()


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TokenMap(DraftVocab.from_target_ids(np.array(IDS), V))
    write_map(tmp_path / "map.pt", made, "sglang")
    before = (tmp_path / "map.pt").read_bytes()

    def full(*args: Any, **settings: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="No space left"):
        write_map(tmp_path / "map.pt", made, "sglang")
    assert (tmp_path / "map.pt").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["map.pt"]
