"""DraftVocab: which target ids the draft may propose, and every form of that mapping.

Two id spaces meet here. ``target_ids`` are ids of the target's tokenizer; ``draft_ids`` are row numbers of the
pruned head. ``DraftVocab.target_ids[draft_id]`` is the only place where the mapping is stored; all other forms
(offsets, masks, inverse maps) are derived from it.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hothead.errors import InputError, TokenizerMismatch
from hothead.files import read_safetensors, write_safetensors
from hothead.ranking.ranking import TokenRanking, refuse_pickle

FORMAT = "hothead.draft_vocab"
FORMAT_VERSION = "1"
ROW_MULTIPLE = 64  # GEMM kernels work on blocks of rows; a ragged last block costs as much as a full one.
NEXT_IDS_KEPT = 8192  # how many runners-up a vocabulary remembers, to fill dynamic slots with


@dataclass(frozen=True, eq=False)
class DraftVocab:
    """The target ids that a pruned draft head keeps.

    Attributes:
        target_ids: int64 [Vd], unique and ascending; position is the draft id.
        target_vocab_size: V, the rows of the target's LM head (``config.vocab_size``, padding included).
        tokenizer_fingerprint: of the tokenizer whose ids these are; empty if unknown.
        next_target_ids: int64 [R], the ids that would have come next, most frequent first; dynamic slots
            start with them. Never overlaps ``target_ids``.
        unseen: how many of ``target_ids`` the corpus never saw, so that they were filled in by id.
        source: a word on where the choice came from.

    Raises:
        InputError: ids that are not integers, not unique, not ascending, out of range or none at all.
    """

    target_ids: np.ndarray
    target_vocab_size: int
    tokenizer_fingerprint: str = ""
    next_target_ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    unseen: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("target_ids", "next_target_ids"):
            object.__setattr__(self, name, _checked_ids(getattr(self, name), self.target_vocab_size, name))
        if not len(self.target_ids):
            raise InputError("a draft vocabulary needs at least one target id; found none")
        if np.any(np.diff(self.target_ids) <= 0):
            raise InputError(
                "target_ids must be unique and ascending; sort them (draft id = position), or read them with "
                "DraftVocab.from_target_ids, which accepts any order"
            )
        if np.intersect1d(self.target_ids, self.next_target_ids).size:
            raise InputError("next_target_ids repeats ids that are in target_ids already")

    # Making one

    @classmethod
    def full(cls, target_vocab_size: int, tokenizer_fingerprint: str = "") -> "DraftVocab":
        """Every row of the target's head: the unpruned draft, as a baseline on the same code path."""
        return cls(np.arange(target_vocab_size), target_vocab_size, tokenizer_fingerprint, source="full")

    @classmethod
    def from_target_ids(
        cls,
        target_ids: np.ndarray,
        target_vocab_size: int,
        tokenizer_fingerprint: str = "",
        source: str = "ids",
    ) -> "DraftVocab":
        """From unique target ids in any order (a published token map is in frequency order)."""
        ids = _checked_ids(target_ids, target_vocab_size, "target_ids")
        unique, first = np.unique(ids, return_index=True)
        if len(unique) != len(ids):
            duplicate = int(np.delete(ids, first)[0])
            raise InputError(f"target_ids holds id {duplicate} more than once; each target id gets one draft row")
        return cls(unique, target_vocab_size, tokenizer_fingerprint, source=source)

    @classmethod
    def from_ranking(
        cls,
        ranking: TokenRanking,
        *,
        size: int | None = None,
        ratio: float | None = None,
        pruning_ratio: float | None = None,
        coverage: float | None = None,
        target_vocab_size: int | None = None,
        byte_tokens: bool = True,
        multiple_of: int = ROW_MULTIPLE,
    ) -> "DraftVocab":
        """The most frequent ids of ``ranking``, with special, end-of-turn and chat-template tokens always in.

        Exactly one of these says how many:
            size: rows to keep.
            ratio: share of the target's rows to keep, in (0, 1].
            pruning_ratio: share of the target's rows to drop, in [0, 1).
            coverage: share of the corpus's tokens that must be in the vocabulary, in (0, 1].

        Args:
            target_vocab_size: rows of the target's head, where it is padded past the tokenizer's size.
            byte_tokens: keep the byte-level fallback tokens, without which rare scripts cannot be spelt.
            multiple_of: round the number of rows up to a multiple of this (1: leave it exact).

        Raises:
            InputError: no or several sizes given, one out of range, or one too small for the required ids.
        """
        total = target_vocab_size if target_vocab_size is not None else ranking.vocab_size
        selection = SelectionOrder.of(ranking, total, byte_tokens)
        order, required = selection.target_ids, selection.target_ids[: selection.num_required]
        rows = _rows_wanted(ranking, order, total, size, ratio, pruning_ratio, coverage)
        rows = min(total, math.ceil(rows / multiple_of) * multiple_of)
        if rows < len(required):
            raise InputError(
                f"size {rows} is too small: {len(required)} special, chat-template and byte-level tokens must be in. "
                f"Ask for at least {len(required)}" + (", or pass byte_tokens=False" if byte_tokens else "")
            )
        chosen = np.sort(order[:rows])
        seen = np.zeros(total, dtype=bool)
        seen[: ranking.vocab_size] = ranking.counts > 0
        seen[required] = True
        upcoming = order[rows : rows + NEXT_IDS_KEPT]
        return cls(
            chosen,
            total,
            ranking.tokenizer_fingerprint,
            next_target_ids=upcoming[seen[upcoming]],
            unseen=int((~seen[chosen]).sum()),
            source=f"{rows} of {total} ids, by counts of {ranking.token_total} tokens",
        )

    # Reading it

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def is_full(self) -> bool:
        """Whether every target id is in."""
        return len(self) == self.target_vocab_size

    @cached_property
    def draft_id_of(self) -> np.ndarray:
        """int64 [V]: the draft id of each target id, -1 where it has none."""
        inverse = np.full(self.target_vocab_size, -1, dtype=np.int64)
        inverse[self.target_ids] = np.arange(len(self))
        return inverse

    @property
    def d2t(self) -> np.ndarray:
        """int64 [Vd], EAGLE-3 offsets: ``target_id = draft_id + d2t[draft_id]``."""
        return self.target_ids - np.arange(len(self))

    @property
    def t2d(self) -> np.ndarray:
        """bool [V]: whether each target id is in the draft vocabulary."""
        return self.draft_id_of >= 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DraftVocab)
            and self.target_vocab_size == other.target_vocab_size
            and self.tokenizer_fingerprint == other.tokenizer_fingerprint
            and np.array_equal(self.target_ids, other.target_ids)
            and np.array_equal(self.next_target_ids, other.next_target_ids)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside: not hashable

    def __contains__(self, target_id: int) -> bool:
        return 0 <= target_id < self.target_vocab_size and bool(self.draft_id_of[target_id] >= 0)

    # Checking and keeping it

    def check_target(self, target_vocab_size: int, tokenizer_fingerprint: str) -> None:
        """Refuse a target that this vocabulary was not made for.

        Raises:
            TokenizerMismatch: another number of head rows, or another tokenizer.
        """
        if target_vocab_size != self.target_vocab_size:
            raise TokenizerMismatch(
                f"the draft vocabulary maps into {self.target_vocab_size} target ids and the target's head has "
                f"{target_vocab_size} rows; make it again with target_vocab_size={target_vocab_size}"
            )
        if self.tokenizer_fingerprint and tokenizer_fingerprint != self.tokenizer_fingerprint:
            raise TokenizerMismatch(
                f"the draft vocabulary was made with tokenizer {self.tokenizer_fingerprint[:12]} and the target's is "
                f"{tokenizer_fingerprint[:12]}: the same ids mean other tokens. Rank with the target's tokenizer"
            )

    def save(self, path: Path) -> None:
        """Write a safetensors file, atomically."""
        arrays = {"target_ids": self.target_ids, "next_target_ids": self.next_target_ids}
        metadata = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "target_vocab_size": str(self.target_vocab_size),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "unseen": str(self.unseen),
            "source": self.source,
        }
        write_safetensors(path, arrays, metadata)

    @classmethod
    def load(cls, path: Path) -> "DraftVocab":
        """Read what :meth:`save` wrote.

        Raises:
            InputError: not a readable draft vocabulary.
        """
        refuse_pickle(Path(path))
        arrays, metadata = read_safetensors(path)
        if metadata.get("format") != FORMAT or metadata.get("version") != FORMAT_VERSION:
            found = f"{metadata.get('format', 'no format')} version {metadata.get('version', '?')}"
            raise InputError(f"{path}: expected {FORMAT} version {FORMAT_VERSION}, found {found}")
        try:
            return cls(
                arrays["target_ids"],
                int(metadata["target_vocab_size"]),
                metadata["tokenizer_fingerprint"],
                arrays["next_target_ids"],
                int(metadata["unseen"]),
                metadata["source"],
            )
        except (KeyError, ValueError) as error:
            raise InputError(f"{path}: a draft vocabulary without a readable {error}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def _checked_ids(ids: np.ndarray, target_vocab_size: int, name: str) -> np.ndarray:
    """``ids`` as a read-only int64 array, or an error that says what they look like instead of target ids."""
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype == bool or not np.issubdtype(array.dtype, np.integer):
        looks_like = "a mask" if array.dtype == bool else f"{array.dtype} of shape {list(array.shape)}"
        raise InputError(f"{name} must be a list of integer target ids; found {looks_like}")
    if array.size and (array.min() < 0 or array.max() >= target_vocab_size):
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise InputError(f"{name} holds {wrong}, outside the target's ids 0..{target_vocab_size - 1}")
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class SelectionOrder:
    """The order in which a ranking's ids enter a vocabulary: one of m rows holds the first m.

    Attributes:
        target_ids: int64 [V], every target id once: required ones, then by rank, then ids past the tokenizer's.
        num_required: how many of them must be in any vocabulary.
    """

    target_ids: np.ndarray
    num_required: int

    @classmethod
    def of(cls, ranking: TokenRanking, target_vocab_size: int, byte_tokens: bool = True) -> "SelectionOrder":
        """
        Raises:
            InputError: the head has fewer rows than the ranking has ids.
        """
        total = target_vocab_size
        if total < ranking.vocab_size:
            raise InputError(
                f"the ranking counts {ranking.vocab_size} ids and the target's head has only {total} rows: "
                "it was made for another tokenizer"
            )
        required = ranking.special_target_ids
        if byte_tokens:
            required = np.union1d(required, ranking.byte_target_ids)
        by_rank = np.concatenate([ranking.target_ids, np.arange(ranking.vocab_size, total)])
        is_required = np.zeros(total, dtype=bool)
        is_required[required] = True
        return cls(np.concatenate([required, by_rank[~is_required[by_rank]]]), len(required))

    def sizes(self, multiple_of: int = ROW_MULTIPLE) -> np.ndarray:
        """int64 [S], ascending: every number of rows that a vocabulary of this ranking can have, V included."""
        total = len(self.target_ids)
        least = max(1, math.ceil(self.num_required / multiple_of)) * multiple_of
        return np.append(np.arange(least, total, multiple_of), total)


def _rows_wanted(
    ranking: TokenRanking,
    order: np.ndarray,
    total: int,
    size: int | None,
    ratio: float | None,
    pruning_ratio: float | None,
    coverage: float | None,
) -> int:
    given = {"size": size, "ratio": ratio, "pruning_ratio": pruning_ratio, "coverage": coverage}
    asked = [name for name, value in given.items() if value is not None]
    if len(asked) != 1:
        found = " and ".join(asked) or "none"
        raise InputError(f"give exactly one of size, ratio, pruning_ratio and coverage; found {found}")
    if size is not None:
        if not 1 <= size <= total:
            raise InputError(f"size must be between 1 and the target's {total} ids; found {size}")
        return size
    if ratio is not None:
        if not 0 < ratio <= 1:
            raise InputError(f"ratio is the share of ids kept, above 0 and at most 1; found {ratio}")
        return math.ceil(total * ratio)
    if pruning_ratio is not None:
        if not 0 <= pruning_ratio < 1:
            raise InputError(
                f"pruning_ratio is the share of ids dropped, at least 0 and below 1; found {pruning_ratio}"
            )
        return math.ceil(total * (1 - pruning_ratio))
    assert coverage is not None
    if not 0 < coverage <= 1:
        raise InputError(f"coverage is the share of the corpus covered, above 0 and at most 1; found {coverage}")
    counts = np.zeros(total, dtype=np.int64)
    counts[: ranking.vocab_size] = ranking.counts
    covered = np.cumsum(counts[order])
    return int(np.searchsorted(covered, coverage * ranking.token_total)) + 1
