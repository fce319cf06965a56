"""DraftVocab: what goes in, exact sizes, derived forms, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hothead.errors import InputError, TokenizerMismatch
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab, SelectionOrder

V = 500


def ranking(counts: np.ndarray | None = None, special: tuple[int, ...] = (7, 499)) -> TokenRanking:
    if counts is None:
        counts = np.random.default_rng(0).integers(0, 50, V)
    return TokenRanking(counts, "fp", np.array(special), np.arange(100, 120))


def test_the_most_frequent_ids_and_the_required_ones_are_in() -> None:
    made = ranking()
    vocab = DraftVocab.from_ranking(made, size=128)
    assert len(vocab) == 128
    required = {7, 499, *range(100, 120)}
    assert required <= set(vocab.target_ids.tolist())
    others = [i for i in made.target_ids.tolist() if i not in required][: 128 - len(required)]
    assert set(vocab.target_ids.tolist()) == required | set(others)


def test_byte_tokens_can_be_left_out_and_special_ones_cannot() -> None:
    counts = np.zeros(V, dtype=np.int64)
    counts[200:300] = 5
    vocab = DraftVocab.from_ranking(ranking(counts), size=64, byte_tokens=False)
    assert not set(range(100, 120)) & set(vocab.target_ids.tolist())
    assert {7, 499} <= set(vocab.target_ids.tolist())


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({"size": 64}, 64),
        ({"size": 65}, 128),
        ({"size": 65, "multiple_of": 1}, 65),
        ({"ratio": 0.25}, 128),
        ({"ratio": 0.25, "multiple_of": 1}, 125),
        ({"pruning_ratio": 0.75, "multiple_of": 1}, 125),
        ({"pruning_ratio": 0}, 500),
        ({"size": 499}, 500),  # rounded up, but never past the vocabulary
    ],
)
def test_sizes(asked: dict, rows: int) -> None:
    assert len(DraftVocab.from_ranking(ranking(), **asked)) == rows


@given(st.floats(0.01, 1.0))
def test_coverage_is_reached_with_as_few_rows_as_possible(coverage: float) -> None:
    made = ranking(special=())
    made = TokenRanking(made.counts, "fp")
    vocab = DraftVocab.from_ranking(made, coverage=coverage, multiple_of=1)
    covered = made.counts[vocab.target_ids].sum() / made.token_total
    assert covered >= coverage - 1e-9
    fewer = made.counts[made.target_ids[: len(vocab) - 1]].sum() / made.token_total
    assert fewer < coverage


@settings(deadline=None)
@given(st.sampled_from([1, 7, 64]), st.booleans(), st.sampled_from([V, V + 13]))
def test_the_selection_order_is_every_vocabulary_at_once(multiple_of: int, byte_tokens: bool, total: int) -> None:
    """Each vocabulary is the start of the order, and the numbers of rows that sizes lead to are listed."""
    made = ranking()
    selection = SelectionOrder.of(made, total, byte_tokens)
    asked = {"target_vocab_size": total, "byte_tokens": byte_tokens, "multiple_of": multiple_of}
    rows = set()
    for size in range(selection.num_required, total + 1, 3):
        vocab = DraftVocab.from_ranking(made, size=size, **asked)
        np.testing.assert_array_equal(vocab.target_ids, np.sort(selection.target_ids[: len(vocab)]))
        rows.add(len(vocab))
    sizes = selection.sizes(multiple_of).tolist()
    assert rows <= set(sizes)
    assert sizes == sorted(set(sizes)) and sizes[-1] == total
    for size in (sizes[0], sizes[len(sizes) // 2]):
        assert len(DraftVocab.from_ranking(made, size=size, **asked)) == size
    if sizes[0] > multiple_of:
        with pytest.raises(InputError, match="too small"):
            DraftVocab.from_ranking(made, size=sizes[0] - multiple_of, **asked)


def test_ids_the_corpus_never_saw_fill_up_in_id_order_and_are_counted() -> None:
    counts = np.zeros(V, dtype=np.int64)
    counts[[300, 301]] = 9
    vocab = DraftVocab.from_ranking(TokenRanking(counts, "fp"), size=10, multiple_of=1)
    assert vocab.target_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 300, 301]
    assert vocab.unseen == 8
    assert len(vocab.next_target_ids) == 0  # nothing seen is left over


def test_runners_up_come_in_rank_order() -> None:
    made = TokenRanking(np.arange(V, 0, -1), "fp")
    vocab = DraftVocab.from_ranking(made, size=64)
    assert vocab.next_target_ids[:3].tolist() == [64, 65, 66]


def test_a_padded_head_has_rows_past_the_tokenizer() -> None:
    vocab = DraftVocab.from_ranking(ranking(), size=64, target_vocab_size=512)
    assert vocab.target_vocab_size == 512
    assert vocab.target_ids.max() < V
    assert len(DraftVocab.from_ranking(ranking(), ratio=1.0, target_vocab_size=512)) == 512
    with pytest.raises(InputError, match="only 400 rows"):
        DraftVocab.from_ranking(ranking(), size=64, target_vocab_size=400)


@given(st.sets(st.integers(0, V - 1), min_size=1))
def test_every_form_is_the_same_mapping(ids: set[int]) -> None:
    vocab = DraftVocab.from_target_ids(np.array(list(ids)), V)
    draft_ids = np.arange(len(vocab))
    assert np.array_equal(vocab.draft_id_of[vocab.target_ids], draft_ids)
    assert np.array_equal(draft_ids + vocab.d2t, vocab.target_ids)
    assert np.array_equal(np.flatnonzero(vocab.t2d), vocab.target_ids)
    assert (vocab.draft_id_of >= 0).sum() == len(ids)
    assert all((i in vocab) == (i in ids) for i in range(-1, V + 1))


def test_the_arrays_are_frozen() -> None:
    vocab = DraftVocab.from_target_ids(np.array([3, 1]), V)
    with pytest.raises(ValueError, match="read-only"):
        vocab.target_ids[0] = 9


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "found none"),
        ([1, 1], "more than once"),
        ([-1, 4], "holds -1"),
        ([4, V], f"holds {V}"),
        ([0.5, 1.0], "float64"),
        ([True, False], "a mask"),
        ([[1, 2]], r"shape \[1, 2\]"),
    ],
)
def test_what_is_not_a_list_of_target_ids_is_refused_by_what_it_looks_like(ids: list, says: str) -> None:
    with pytest.raises(InputError, match=says):
        DraftVocab.from_target_ids(np.array(ids), V)


def test_the_constructor_wants_ascending_ids() -> None:
    with pytest.raises(InputError, match="ascending"):
        DraftVocab(np.array([2, 1]), V)
    with pytest.raises(InputError, match="next_target_ids"):
        DraftVocab(np.array([1, 2]), V, next_target_ids=np.array([2]))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"size": 64, "ratio": 0.5},
        {"size": 0},
        {"size": -1},
        {"size": V + 1},
        {"ratio": 0},
        {"ratio": 1.5},
        {"pruning_ratio": 1.0},
        {"coverage": 0},
        {"coverage": 1.2},
    ],
)
def test_sizes_that_make_no_sense_are_refused(asked: dict) -> None:
    with pytest.raises(InputError):
        DraftVocab.from_ranking(ranking(), **asked)


def test_too_small_for_the_required_ids() -> None:
    with pytest.raises(InputError, match="22 special"):
        DraftVocab.from_ranking(ranking(), size=16, multiple_of=1)


def test_the_right_target_is_checked() -> None:
    vocab = DraftVocab.from_ranking(ranking(), size=64)
    vocab.check_target(V, "fp")
    with pytest.raises(TokenizerMismatch, match="maps into 500"):
        vocab.check_target(512, "fp")
    with pytest.raises(TokenizerMismatch, match="other tokens"):
        vocab.check_target(V, "another")


def test_save_and_load(tmp_path: Path) -> None:
    vocab = DraftVocab.from_ranking(ranking(), size=64)
    path = tmp_path / "vocab.safetensors"
    vocab.save(path)
    assert DraftVocab.load(path) == vocab
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="not a readable safetensors"):
        DraftVocab.load(path)
    ranking().save(path)
    with pytest.raises(InputError, match=r"found hothead\.token_ranking"):
        DraftVocab.load(path)


def test_full() -> None:
    vocab = DraftVocab.full(V, "fp")
    assert vocab.is_full
    assert not vocab.d2t.any()
