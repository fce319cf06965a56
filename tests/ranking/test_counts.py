"""A count is of a prefix of the stream: batches, interruptions and resumption do not change the end result."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hothead.errors import InputError
from hothead.ranking import counts as counts_module
from hothead.ranking.corpus import _pieces
from hothead.ranking.counts import PartialCount, count_ids, count_records, encode_batch
from hothead.ranking.records import ChatRecord, IdsRecord, PromptRecord, TextRecord
from hothead.tokenizer import chat_ids, chat_ids_and_mask, tokenizer_size

CHAT = ChatRecord(
    (
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "2+2 is 4."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ),
    "chat",
)
STREAM = [
    TextRecord("Some plain text.", "a"),
    CHAT,
    IdsRecord([5, 5, 9], "b"),
    PromptRecord(("Asked only",), "c"),
    TextRecord("", "d"),
    TextRecord("Übermäßig.\n", "e"),
]


def count(records: Any, tokenizer: Any, **options: Any) -> Any:
    return count_records(iter(records), tokenizer, tokenizer_size(tokenizer), **options)


@given(st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=20))
def test_counting_ids_is_what_counter_counts(sequences: list[list[int]]) -> None:
    counted = count_ids(sequences, 100)
    expected = Counter(i for sequence in sequences for i in sequence)
    assert {i: int(n) for i, n in enumerate(counted.counts) if n} == dict(expected)
    assert counted.records == len(sequences) and counted.tokens == expected.total()


@pytest.mark.parametrize(
    ("ids", "said"),
    [([3, 100], "id 100 is outside"), ([-1], "id -1 is outside"), ([2**63], "outside"), ([1.5], "must be integers")],
)
def test_ids_that_are_no_ids(ids: list[Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        count_ids([ids], 100)


def test_chats_count_what_the_assistant_emits(smollm2_tokenizer: Any) -> None:
    chat = chat_ids_and_mask(smollm2_tokenizer, CHAT.messages)
    size = tokenizer_size(smollm2_tokenizer)
    emitted = count([CHAT], smollm2_tokenizer).counts
    assert np.array_equal(emitted, np.bincount(chat.target_ids[chat.assistant_mask], minlength=size))
    assert emitted[smollm2_tokenizer.eos_token_id] == 2
    everything = count([CHAT], smollm2_tokenizer, counted="all").counts
    whole = chat_ids(smollm2_tokenizer, CHAT.messages, add_generation_prompt=False)
    assert np.array_equal(everything, np.bincount(whole, minlength=size))


def test_prompts_count_only_when_all_is_asked_for(toy_tokenizer: Any) -> None:
    prompt = PromptRecord(("ab", "c"), "p")
    assert count([prompt], toy_tokenizer).tokens == 0
    assert count([prompt], toy_tokenizer, counted="all").tokens == 3


def test_counting_is_tokenising_each_text(smollm2_tokenizer: Any) -> None:
    texts = ["Hello world", "  spaces", "naïve café 北京 🙂", "<|im_end|>", ""]
    expected = [smollm2_tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert encode_batch(smollm2_tokenizer, texts) == expected
    counted = count([TextRecord(text, "t") for text in texts], smollm2_tokenizer)
    assert counted.tokens == sum(map(len, expected)) and counted.records == len(texts)


def test_cutting_a_long_text_changes_no_count(smollm2_tokenizer: Any) -> None:
    paragraph = "It was the best of times,\n  it was the worst of times: 1859!\n\nIt was the age of wisdom…\n"
    text = paragraph * 2000
    pieces = list(_pieces([text]))
    assert len(pieces) > 2
    cut = count([TextRecord(piece, "t") for piece in pieces], smollm2_tokenizer)
    whole = count([TextRecord(text, "t")], smollm2_tokenizer)
    assert np.array_equal(cut.counts, whole.counts)


@given(batch_records=st.integers(1, 8), batch_chars=st.integers(1, 100), order=st.permutations(STREAM))
def test_batches_and_order_do_not_matter(
    toy_tokenizer: Any, batch_records: int, batch_chars: int, order: list[Any]
) -> None:
    expected = count(STREAM, toy_tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "BATCH_RECORDS", batch_records)
        patch.setattr(counts_module, "BATCH_CHARS", batch_chars)
        found = count(order, toy_tokenizer)
    assert np.array_equal(found.counts, expected.counts) and found.records == len(STREAM)


def test_a_record_that_fails_is_named(toy_tokenizer: Any) -> None:
    with pytest.raises(InputError, match=r"^log line 7: token id 999999 is outside"):
        count([IdsRecord([999999], "log line 7")], toy_tokenizer)
    with pytest.raises(InputError, match=r"^log line 8: the chat template refuses"):
        count([ChatRecord(({"content": "no role"},), "log line 8")], toy_tokenizer)


# --- interruption ---------------------------------------------------------------------------------


def interrupted(records: list[Any], after: int) -> Iterator[Any]:
    yield from records[:after]
    raise KeyboardInterrupt


@given(after=st.integers(0, 40), batch=st.integers(1, 7))
def test_an_interrupted_count_goes_on_to_the_same_end(
    toy_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory, after: int, batch: int
) -> None:
    records = [TextRecord(f"record {i}", "r") for i in range(40)]
    expected = count(records, toy_tokenizer)
    partial = PartialCount(tmp_path_factory.mktemp("partial") / "out", ["these"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "BATCH_RECORDS", batch)
        with pytest.raises(KeyboardInterrupt):
            count(interrupted(records, after), toy_tokenizer, partial=partial)
        kept = partial.load()
        assert (kept.records if kept else 0) == after - after % batch
        seen: list[int] = []
        found = count(records, toy_tokenizer, partial=partial, on_batch=lambda c: seen.append(c.records))
    assert np.array_equal(found.counts, expected.counts) and found.records == 40
    resumed = kept.records if kept else 0
    assert seen == sorted({resumed, *range(resumed + batch, 40, batch), 40})


def test_a_partial_count_of_other_inputs_is_ignored(toy_tokenizer: Any, tmp_path: Path) -> None:
    mine = PartialCount(tmp_path / "out", ["mine"])
    mine.save(count(STREAM, toy_tokenizer))
    assert mine.load() is not None
    assert PartialCount(tmp_path / "out", ["other"]).load() is None
    mine.path.write_bytes(mine.path.read_bytes()[:100])
    assert mine.load() is None
    mine.remove()
    assert not mine.path.exists()
    mine.remove()
