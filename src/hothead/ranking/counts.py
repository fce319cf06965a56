"""Counting target_ids over a stream of records: bounded memory, mergeable, and resumable after an interruption.

A count is the pair (occurrences of each target_id, records consumed). It is replaced whole after each batch, never
changed in place, so an interruption at any point leaves a count that some prefix of the stream really has.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from hothead.errors import InputError
from hothead.files import read_safetensors, write_safetensors
from hothead.ranking.records import ChatRecord, IdsRecord, PromptRecord, Record, TextRecord
from hothead.tokenizer import Tokenizer, chat_text, render_chat

Counted = Literal["assistant", "all"]

BATCH_RECORDS = 1024
BATCH_CHARS = 1 << 20
SAVE_EVERY_S = 60.0
PARTIAL_FORMAT = "hothead.partial_count"


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each target_id occurred in the first ``records`` records of a stream."""

    counts: np.ndarray  # int64 [V_tok], indexed by target_id
    records: int = 0

    @classmethod
    def zeros(cls, vocab_size: int) -> "Counts":
        return cls(np.zeros(vocab_size, dtype=np.int64))

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.counts + other.counts, self.records + other.records)


def count_ids(sequences: Iterable[Sequence[int] | np.ndarray], vocab_size: int) -> Counts:
    """Count sequences of target_ids.

    Raises:
        InputError: an id is not an integer in [0, vocab_size).
    """
    arrays = [np.asarray(sequence) for sequence in sequences]
    filled = [array.ravel() for array in arrays if array.size]
    if not filled:
        return Counts(np.zeros(vocab_size, dtype=np.int64), len(arrays))
    target_ids = np.concatenate(filled)
    if target_ids.dtype.kind not in "iu":
        raise InputError(f"token ids must be integers, found {target_ids.dtype}")
    for found in (int(target_ids.min()), int(target_ids.max())):
        if not 0 <= found < vocab_size:
            raise InputError(
                f"token id {found} is outside the tokenizer's vocabulary (0 to {vocab_size - 1}): "
                "the ids were made with another tokenizer"
            )
    return Counts(np.bincount(target_ids, minlength=vocab_size).astype(np.int64), len(arrays))


def count_batch(batch: Sequence[Record], tokenizer: Tokenizer, vocab_size: int, counted: Counted) -> Counts:
    """Count one batch of records, tokenised on all cores.

    Raises:
        InputError: a chat does not fit the chat template, or an id is outside the vocabulary; names the record.
    """
    texts: list[str] = []  # counted whole
    chats = []  # only the assistant's spans are counted
    ids = []
    for record in batch:
        try:
            match record:
                case TextRecord():
                    texts.append(record.text)
                case ChatRecord() if counted == "all":
                    texts.append(chat_text(tokenizer, record.messages, add_generation_prompt=False))
                case ChatRecord():
                    chats.append(render_chat(tokenizer, record.messages))
                case PromptRecord():  # an assistant emitted none of it
                    texts += record.turns if counted == "all" else ()
                case IdsRecord():
                    ids.append(count_ids([record.target_ids], vocab_size).counts)
        except InputError as error:
            raise InputError(f"{record.where}: {error}") from error
    sequences: list[Sequence[int] | np.ndarray] = list(encode_batch(tokenizer, texts))
    if chats:
        encoded = _encodings(tokenizer, [chat.text for chat in chats], offsets=True)
        for chat, (target_ids, offsets) in zip(chats, encoded, strict=True):
            sequences.append(np.array(target_ids, dtype=np.int64)[chat.mask(offsets)])
    counts = count_ids(sequences, vocab_size).counts
    return Counts(sum(ids, start=counts), len(batch))


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise texts as they are (no special tokens added) on all cores; TOKENIZERS_PARALLELISM is respected."""
    return [target_ids for target_ids, _ in _encodings(tokenizer, texts, offsets=False)]


def _encodings(
    tokenizer: Tokenizer, texts: Sequence[str], offsets: bool
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    if not texts:
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        if offsets:
            raise InputError("this tokenizer has no fast version, which counting chats needs; count all (--count all)")
        for text in texts:
            yield tokenizer.encode(text, add_special_tokens=False), []
        return
    backend.no_truncation()
    backend.no_padding()
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    for encoding in encode(list(texts), add_special_tokens=False):
        yield encoding.ids, encoding.offsets if offsets else []


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records so that a batch keeps every core busy and memory stays bounded."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size
        if size >= BATCH_CHARS or len(batch) >= BATCH_RECORDS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class PartialCount:
    """A count saved beside the output while a run is under way, so that an interrupted run can go on.

    It belongs to one set of inputs and options: ``key`` is a hash of them, and a file of another key is ignored.
    """

    def __init__(self, output: Path, identity: object):
        self.path = output.with_name(output.name + ".partial")
        text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        self.key = hashlib.sha256(text.encode()).hexdigest()

    def load(self) -> Counts | None:
        """The saved count, or None if there is none of these inputs."""
        if not self.path.is_file():
            return None
        try:
            arrays, metadata = read_safetensors(self.path)
            if metadata["format"] != PARTIAL_FORMAT or metadata["key"] != self.key:
                return None
            return Counts(arrays["counts"], int(metadata["records"]))
        except (InputError, KeyError, ValueError):
            return None

    def save(self, counts: Counts) -> None:
        metadata = {"format": PARTIAL_FORMAT, "key": self.key, "records": str(counts.records)}
        write_safetensors(self.path, {"counts": counts.counts}, metadata)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def count_records(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    vocab_size: int,
    counted: Counted = "assistant",
    partial: PartialCount | None = None,
    on_batch: Callable[[Counts], None] | None = None,
) -> Counts:
    """Count a stream of records.

    Args:
        records: the stream, from its beginning; the part that ``partial`` already holds is read but not tokenised.
        vocab_size: V_tok, the length of the count.
        counted: of chats, only what the assistant emitted, or everything. Texts and ids are always counted whole.
        partial: where to keep the count while running; saved every minute and on any failure.
        on_batch: called with the count so far, at the start (what ``partial`` holds) and after each batch.
    """
    total = (partial.load() if partial else None) or Counts.zeros(vocab_size)
    saved_at = time.monotonic()
    if on_batch:
        on_batch(total)
    try:
        for batch in batches(islice(records, total.records, None)):
            total = total + count_batch(batch, tokenizer, vocab_size, counted)
            if on_batch:
                on_batch(total)
            if partial and time.monotonic() - saved_at > SAVE_EVERY_S:
                partial.save(total)
                saved_at = time.monotonic()
    except BaseException:  # Ctrl-C included
        if partial and total.records:
            partial.save(total)
        raise
    return total
