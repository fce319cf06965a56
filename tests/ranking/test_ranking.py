"""TokenRanking: its order, merging, coverage and file."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hothead import files
from hothead.errors import InputError, TokenizerMismatch
from hothead.ranking.ranking import FORMAT, Source, TokenRanking
from hothead.tokenizer import byte_target_ids, fingerprint, special_target_ids

SIZE = 50
Sequences = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=30), min_size=1, max_size=10).filter(any)


def rank(sequences: list[list[int]], **options: Any) -> TokenRanking:
    return TokenRanking.from_token_ids(sequences, vocab_size=SIZE, tokenizer_fingerprint="f", **options)


@given(Sequences)
def test_order_is_by_count_then_id(sequences: list[list[int]]) -> None:
    ranking = rank(sequences)
    keys = [(-ranking.counts[i], i) for i in ranking.target_ids]
    assert keys == sorted(keys)
    assert sorted(ranking.target_ids) == list(range(SIZE))


@given(Sequences, Sequences, Sequences)
def test_merging_is_counting_together(a: list[list[int]], b: list[list[int]], c: list[list[int]]) -> None:
    together = rank(a + b + c)
    for merged in (
        TokenRanking.merge(rank(a), rank(b), rank(c)),
        TokenRanking.merge(TokenRanking.merge(rank(c), rank(a)), rank(b)),
    ):
        assert np.array_equal(merged.counts, together.counts)
        assert merged.token_total == together.token_total


def test_weights_multiply_counts() -> None:
    a, b = rank([[0, 1, 1]], name="a"), rank([[1, 2]], name="b")
    merged = TokenRanking.merge(a, b, weights=[2, 0.5])
    assert merged.counts[:3].tolist() == [2, 4, 0]  # 4.5 and 0.5 round to even
    assert [(source.names, source.weight) for source in merged.sources] == [(("a",), 2.0), (("b",), 0.5)]
    with pytest.raises(InputError, match="as many weights, found 1"):
        TokenRanking.merge(a, b, weights=[1])
    with pytest.raises(InputError, match="not negative"):
        TokenRanking.merge(a, b, weights=[1, -1])
    with pytest.raises(InputError, match="no tokens were counted"):
        TokenRanking.merge(a, b, weights=[0, 0])
    with pytest.raises(InputError, match="at least one"):
        TokenRanking.merge()


@given(Sequences)
def test_coverage_rises_from_nothing_to_all(sequences: list[list[int]]) -> None:
    ranking = rank(sequences)
    curve = ranking.coverage_curve()
    assert curve.shape == (SIZE,) and np.all(np.diff(curve) >= 0) and curve[-1] == 1
    assert np.all(np.diff(curve, 2) <= 1e-12)  # most frequent first
    assert ranking.coverage(0) == 0 and ranking.coverage(SIZE + 5) == 1
    assert [ranking.coverage(size) for size in range(1, SIZE + 1)] == pytest.approx(curve)


def test_from_texts_counts_real_tokens(smollm2_tokenizer: Any) -> None:
    ranking = TokenRanking.from_texts(["the cat and the hat"] * 3, smollm2_tokenizer)
    top = smollm2_tokenizer.convert_ids_to_tokens(ranking.target_ids[:5].tolist())
    assert set(top) == {"the", "Ġcat", "Ġand", "Ġthe", "Ġhat"}
    assert ranking.vocab_size == len(smollm2_tokenizer) == 49152 and ranking.token_total == 15
    assert ranking.tokenizer_fingerprint == fingerprint(smollm2_tokenizer)
    assert np.array_equal(ranking.special_target_ids, special_target_ids(smollm2_tokenizer))
    assert np.array_equal(ranking.byte_target_ids, byte_target_ids(smollm2_tokenizer))


def test_ids_of_the_tokenizer_and_ids_alone_agree(toy_tokenizer: Any) -> None:
    ids = [[3, 4], [4]]
    with_tokenizer = TokenRanking.from_token_ids(ids, toy_tokenizer)
    alone = TokenRanking.from_token_ids(
        ids, vocab_size=with_tokenizer.vocab_size, tokenizer_fingerprint=fingerprint(toy_tokenizer)
    )
    assert np.array_equal(alone.counts, with_tokenizer.counts)
    assert TokenRanking.merge(with_tokenizer, alone).token_total == 6
    with pytest.raises(InputError, match="needs the tokenizer, or vocab_size"):
        TokenRanking.from_token_ids(ids)


def test_another_tokenizer_is_refused(toy_tokenizer: Any, other_tokenizer: Any) -> None:
    mine, other = (TokenRanking.from_texts(["abc"], t) for t in (toy_tokenizer, other_tokenizer))
    assert mine.vocab_size == other.vocab_size
    with pytest.raises(TokenizerMismatch, match="rank again"):
        TokenRanking.merge(mine, other)
    with pytest.raises(TokenizerMismatch):
        mine.check_tokenizer(fingerprint(other_tokenizer))
    mine.check_tokenizer(fingerprint(toy_tokenizer))


def test_a_ranking_cannot_be_changed() -> None:
    ranking = rank([[1, 2]])
    for array in (ranking.counts, ranking.target_ids, ranking.special_target_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (np.zeros(5, dtype=np.int64), "no tokens were counted"),
        (np.array([1, -1]), "negative"),
        (np.array([0.5]), "whole numbers"),
        (np.ones((2, 2), dtype=np.int64), r"whole numbers \[V\], found int64 \[2, 2\]"),
    ],
)
def test_counts_that_are_no_counts(counts: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said):
        TokenRanking(counts, "f")
    with pytest.raises(InputError, match="outside the vocabulary"):
        TokenRanking(np.ones(3, dtype=np.int64), "f", special_target_ids=np.array([3]))


# --- the file -------------------------------------------------------------------------------------


@given(Sequences)
def test_a_saved_ranking_loads_the_same(tmp_path_factory: pytest.TempPathFactory, sequences: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("file")
    ranking = rank(sequences, name="naïve")
    ranking.save(folder / "a")
    loaded = TokenRanking.load(folder / "a")
    assert np.array_equal(loaded.counts, ranking.counts) and loaded.sources == ranking.sources
    assert loaded.tokenizer_fingerprint == "f"
    loaded.save(folder / "b")
    rank(sequences, name="naïve").save(folder / "c")
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == (folder / "c").read_bytes()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "ranking.safetensors"
    rank([[1, 2, 2]]).save(path)
    return path


@given(data=st.data())
def test_a_damaged_file_never_loads_as_something_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damage") / "r"
    rank([[1, 2, 2]]).save(path)
    good = path.read_bytes()
    if data.draw(st.booleans(), "cut"):
        path.write_bytes(good[: data.draw(st.integers(0, len(good) - 1), "length")])
    else:
        at = data.draw(st.integers(0, len(good) - SIZE * 8 - 1), "at")  # header and metadata
        byte = data.draw(st.integers(0, 255), "byte")
        path.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
    try:
        loaded = TokenRanking.load(path)
    except InputError as error:
        assert str(path) in str(error)
    else:  # a changed name or fingerprint is still a ranking of the same counts
        assert loaded.counts.tolist() == rank([[1, 2, 2]]).counts.tolist()


def test_a_pickle_is_refused_and_its_code_does_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    for protocol in range(6):
        path = tmp_path / f"p{protocol}.safetensors"
        path.write_bytes(pickle.dumps(Payload(), protocol=protocol))
        with pytest.raises(InputError, match=r"pickle" if protocol >= 2 else "not a readable safetensors"):
            TokenRanking.load(path)
    import zipfile

    with zipfile.ZipFile(tmp_path / "t.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload()))
    with pytest.raises(InputError, match="pickle"):
        TokenRanking.load(tmp_path / "t.pt")
    assert not (tmp_path / "ran").exists()


def test_a_header_that_begins_like_a_pickle_is_none(tmp_path: Path) -> None:
    """A header of 0x0380 bytes starts with the bytes of a protocol-3 pickle."""
    for pad in range(2000):
        source = Source(("x" * pad,), "all", 1, 1)
        ranking = TokenRanking(np.ones(3, dtype=np.int64), "f", sources=(source,))
        ranking.save(tmp_path / "r")
        if (tmp_path / "r").read_bytes()[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04"):
            assert TokenRanking.load(tmp_path / "r").sources == (source,)
            return
    raise AssertionError("no header of that length was made")


def test_other_files_are_named(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(InputError, match="no such file"):
        TokenRanking.load(path)
    save_file({"counts": np.ones(3, dtype=np.int64)}, path)
    with pytest.raises(InputError, match=r"not a token ranking .it names no hothead format"):
        TokenRanking.load(path)
    save_file({"counts": np.ones(3, dtype=np.int64)}, path, {"format": "hothead.draft_vocab"})
    with pytest.raises(InputError, match=r"it is hothead.draft_vocab"):
        TokenRanking.load(path)
    save_file({"counts": np.ones(3, dtype=np.int64)}, path, {"format": FORMAT, "version": "99"})
    with pytest.raises(InputError, match="version 99, and this hothead reads 1"):
        TokenRanking.load(path)
    save_file({"counts": np.ones(3, dtype=np.int64)}, path, {"format": FORMAT, "version": "1"})
    with pytest.raises(InputError, match="a damaged token ranking"):
        TokenRanking.load(path)


def test_a_full_disk_leaves_the_earlier_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(InputError, match=r"No space left on device.*unchanged"):
        rank([[7]]).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_reading_takes_no_code_path_through_pickle(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    assert TokenRanking.load(saved).token_total == 3
    assert io.BytesIO(saved.read_bytes()).read(9)[8:] == b"{"
