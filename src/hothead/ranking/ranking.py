"""TokenRanking: how often each token of a tokenizer occurs, the first artefact of the chain."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from hothead.errors import InputError, TokenizerMismatch
from hothead.files import read_safetensors, write_safetensors
from hothead.ranking.counts import Counts, count_ids, count_records
from hothead.ranking.records import TextRecord
from hothead.tokenizer import (
    Tokenizer,
    byte_target_ids,
    fingerprint,
    special_target_ids,
    tokenizer_size,
)

FORMAT = "hothead.token_ranking"
FORMAT_VERSION = "1"


@dataclass(frozen=True)
class Source:
    """What one run counted."""

    names: tuple[str, ...]  # file names, without their folders
    counted: str  # "assistant", "all" or "output"
    records: int
    tokens: int
    made_by: str = ""  # the model and settings that wrote the text, if hothead had it written
    weight: float = 1.0  # what merging multiplied its counts by


@dataclass(frozen=True, eq=False)
class TokenRanking:
    """How often each token occurs; immutable.

    Args:
        counts: int64 [V_tok], occurrences indexed by target_id.
        tokenizer_fingerprint: of the tokenizer whose ids these are.
        special_target_ids: int64, ascending; tokens every draft vocabulary must hold.
        byte_target_ids: int64, ascending; tokens that spell any text, one byte each.
        sources: what was counted.

    Raises:
        InputError: nothing was counted, or the arrays are not what they should be.
    """

    counts: np.ndarray
    tokenizer_fingerprint: str
    special_target_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    byte_target_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        counts = np.array(self.counts)
        if counts.ndim != 1 or counts.dtype.kind not in "iu":
            raise InputError(f"counts must be whole numbers [V], found {counts.dtype} {list(counts.shape)}")
        if counts.size and counts.min() < 0:
            raise InputError(f"counts must not be negative, found {counts.min()}")
        if not counts.any():
            raise InputError("no tokens were counted: the input is empty, or holds nothing to count")
        self._freeze("counts", counts)
        for name in ("special_target_ids", "byte_target_ids"):
            target_ids = np.unique(np.asarray(getattr(self, name), dtype=np.int64))
            if target_ids.size and not (target_ids[0] >= 0 and target_ids[-1] < counts.size):
                raise InputError(f"{name} are outside the vocabulary of {counts.size} tokens")
            self._freeze(name, target_ids)

    def _freeze(self, name: str, array: np.ndarray) -> None:
        array = array.astype(np.int64)
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    # --- making one ---------------------------------------------------------------------------

    @classmethod
    def from_counts(cls, counts: Counts, tokenizer: Tokenizer, source: Source) -> "TokenRanking":
        """The ranking of what ``counts`` counted with ``tokenizer``."""
        return cls(
            counts.counts,
            fingerprint(tokenizer),
            special_target_ids(tokenizer),
            byte_target_ids(tokenizer),
            (source,),
        )

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Tokenizer, name: str = "texts") -> "TokenRanking":
        """Count the tokens of ``texts``, each tokenised as it is, without special tokens.

        Raises:
            InputError: there is nothing to count.
        """
        records = (TextRecord(text, f"{name} {index}") for index, text in enumerate(texts))
        counts = count_records(records, tokenizer, tokenizer_size(tokenizer))
        source = Source((name,), "all", counts.records, counts.tokens)
        return cls.from_counts(counts, tokenizer, source)

    @classmethod
    def from_token_ids(
        cls,
        sequences: Iterable[Sequence[int] | np.ndarray],
        tokenizer: Tokenizer = None,
        *,
        vocab_size: int = 0,
        tokenizer_fingerprint: str = "",
        name: str = "token ids",
    ) -> "TokenRanking":
        """Count target_ids that are already there, such as a model's recorded output.

        Give the tokenizer whose ids they are or, to work without one, ``vocab_size`` and its fingerprint; a ranking
        made without one knows no special or byte tokens.

        Raises:
            InputError: an id is outside the vocabulary, or there is nothing to count.
        """
        if tokenizer is not None:
            counts = count_ids(sequences, tokenizer_size(tokenizer))
        elif vocab_size > 0:
            counts = count_ids(sequences, vocab_size)
        else:
            raise InputError("from_token_ids needs the tokenizer, or vocab_size and tokenizer_fingerprint")
        source = Source((name,), "all", counts.records, counts.tokens)
        if tokenizer is not None:
            return cls.from_counts(counts, tokenizer, source)
        return cls(counts.counts, tokenizer_fingerprint, sources=(source,))

    @classmethod
    def merge(cls, *rankings: "TokenRanking", weights: Sequence[float] | None = None) -> "TokenRanking":
        """Add counts up: the ranking of all the inputs together.

        Args:
            weights: one for each ranking, multiplying its counts (default 1 each). Sums are rounded to whole counts.

        Raises:
            TokenizerMismatch: the rankings are of different tokenizers.
            InputError: no rankings, or weights that are not one non-negative number each.
        """
        if not rankings:
            raise InputError("merge needs at least one ranking")
        factors = [1.0] * len(rankings) if weights is None else [float(weight) for weight in weights]
        if len(factors) != len(rankings):
            raise InputError(f"{len(rankings)} rankings need as many weights, found {len(factors)}")
        if not all(np.isfinite(factor) and factor >= 0 for factor in factors):
            raise InputError(f"weights must be finite and not negative, found {factors}")
        first = rankings[0]
        for other in rankings[1:]:
            other.check_tokenizer(first.tokenizer_fingerprint, first.vocab_size)
        if all(factor.is_integer() for factor in factors):
            counts = sum(int(f) * r.counts for f, r in zip(factors, rankings, strict=True))
        else:
            counts = np.rint(sum(f * r.counts for f, r in zip(factors, rankings, strict=True))).astype(np.int64)
        sources = tuple(
            replace(source, weight=source.weight * factor)
            for factor, ranking in zip(factors, rankings, strict=True)
            for source in ranking.sources
        )
        special, byte = (
            np.concatenate([getattr(r, name) for r in rankings]) for name in ("special_target_ids", "byte_target_ids")
        )
        return cls(np.asarray(counts), first.tokenizer_fingerprint, special, byte, sources)

    # --- reading it ---------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """V_tok: ids of the tokenizer; the target's head may have more rows."""
        return len(self.counts)

    @cached_property
    def token_total(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def target_ids(self) -> np.ndarray:
        """Every target_id, most frequent first, equal counts by id: int64 [V_tok]."""
        order = np.argsort(-self.counts, kind="stable")
        order.setflags(write=False)
        return order

    def coverage_curve(self) -> np.ndarray:
        """Share of the counted tokens that the 1, 2, ... V_tok most frequent ones make up: float64 [V_tok]."""
        return np.cumsum(self.counts[self.target_ids]) / self.token_total

    def coverage(self, size: int) -> float:
        """Share of the counted tokens that the ``size`` most frequent ones make up (1 past the vocabulary)."""
        if size < 0:
            raise InputError(f"a vocabulary has no negative size ({size})")
        return int(self.counts[self.target_ids[:size]].sum()) / self.token_total

    def check_tokenizer(self, tokenizer_fingerprint: str, vocab_size: int | None = None) -> None:
        """
        Raises:
            TokenizerMismatch: this ranking is not of the tokenizer with that fingerprint (and size).
        """
        size = self.vocab_size if vocab_size is None else vocab_size
        if self.tokenizer_fingerprint != tokenizer_fingerprint or self.vocab_size != size:
            raise TokenizerMismatch(
                f"the ranking is of a tokenizer of {self.vocab_size} tokens "
                f"(fingerprint {self.tokenizer_fingerprint[:12]}), not of the other one, of {size} tokens "
                f"({tokenizer_fingerprint[:12]}): their ids mean other tokens; rank again with the right one"
            )

    # --- its file -----------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the ranking (safetensors), atomically; equal rankings give equal bytes.

        Raises:
            InputError: the file cannot be written.
        """
        arrays = {name: getattr(self, name) for name in ("counts", "special_target_ids", "byte_target_ids")}
        metadata = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "sources": json.dumps([asdict(source) for source in self.sources], ensure_ascii=False),
        }
        write_safetensors(Path(path), arrays, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "TokenRanking":
        """Read a ranking that ``save`` wrote.

        Raises:
            InputError: the file is missing, truncated, a pickle, or not a token ranking of a known version.
        """
        path = Path(path)
        refuse_pickle(path)
        arrays, metadata = read_safetensors(path)
        if (found := metadata.get("format")) != FORMAT:
            kind = f"it is {found}" if found else "it names no hothead format"
            raise InputError(f"{path}: not a token ranking ({kind}); make one with `hothead rank`")
        if (version := metadata.get("version")) != FORMAT_VERSION:
            raise InputError(f"{path}: token ranking of version {version}, and this hothead reads {FORMAT_VERSION}")
        try:
            sources = tuple(
                Source(**{**source, "names": tuple(source["names"])}) for source in json.loads(metadata["sources"])
            )
            return cls(
                arrays["counts"],
                metadata["tokenizer_fingerprint"],
                arrays["special_target_ids"],
                arrays["byte_target_ids"],
                sources,
            )
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise InputError(f"{path}: a damaged token ranking ({error})") from error


def refuse_pickle(path: Path) -> None:
    """
    Raises:
        InputError: the file is a pickle or a torch.save archive; loading these can run any code.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError:
        return  # the reader proper says what is wrong
    safetensors = start[8:] == b"{"  # eight bytes of length, which may look like a pickle's, then JSON
    if (start[:1] == b"\x80" and not safetensors) or start[:4] == b"PK\x03\x04":
        raise InputError(
            f"{path}: a pickle (or torch.save) file, not a token ranking; it can hold code, so it was not opened"
        )
