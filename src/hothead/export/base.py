"""Token maps and token counts in every file format: one table of formats, one way in, one way out.

A file holds either a *map* (which target ids the draft keeps: :class:`TokenMap`) or *counts* (how often each target
id occurs: :class:`TokenRanking`). Whatever is read ends in the constructor of one of these, which checks it.

Adding a format is one line in ``FORMATS`` and one codec module, imported only when a file needs it.
"""

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from hothead.errors import InputError, TokenizerMismatch
from hothead.export.checks import check_vocab_size
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

Holds = Literal["map", "counts"]


@dataclass(frozen=True, eq=False)
class TokenMap:
    """Which target ids a draft keeps, as a file says it.

    Attributes:
        vocab: the ids, checked.
        ranked_ids: int64 [Vd], the same ids most frequent first, if the file keeps that order.
        row_ids: int64 [Vd], the target id of each draft row, if the file says rows and they are not ascending.
        notes: remarks on what is unusual about the file, harmless to the map itself.
    """

    vocab: DraftVocab
    ranked_ids: np.ndarray | None = None
    row_ids: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    @property
    def ordered_ids(self) -> np.ndarray:
        """int64 [Vd]: most frequent first where that is known, else ascending."""
        return self.vocab.target_ids if self.ranked_ids is None else self.ranked_ids


Content = TokenMap | TokenRanking


@dataclass(frozen=True)
class Known:
    """What the caller knows of the target, for files that do not say it and to check those that do."""

    target_vocab_size: int | None = None
    tokenizer_fingerprint: str = ""

    def size(self, said: int | None = None) -> int:
        """V, from the file (``said``) or the caller.

        Raises:
            InputError: neither says it.
            TokenizerMismatch: they differ.
        """
        if said is None and self.target_vocab_size is None:
            raise InputError(
                "the file does not say how many ids the target has, so ids past its vocabulary could not be noticed; "
                "give --target or --target-vocab-size"
            )
        if said is not None and self.target_vocab_size not in (None, said):
            raise TokenizerMismatch(
                f"the file is for a target of {said} ids and the target has {self.target_vocab_size}: "
                "made for another tokenizer or head"
            )
        size = said if self.target_vocab_size is None else self.target_vocab_size
        assert size is not None
        check_vocab_size(size)
        return size

    def fingerprint(self, said: str = "") -> str:
        """The tokenizer's fingerprint, from the file (``said``) or the caller; "" if neither knows.

        Raises:
            TokenizerMismatch: they differ: a map for another tokenizer of, maybe, the same size.
        """
        if said and self.tokenizer_fingerprint and said != self.tokenizer_fingerprint:
            raise TokenizerMismatch(
                f"the file was made with tokenizer {said[:12]} and the target's is {self.tokenizer_fingerprint[:12]}: "
                "the same ids mean other tokens; make it again with the target's tokenizer"
            )
        return said or self.tokenizer_fingerprint

    def token_map(
        self,
        ids: np.ndarray,
        *,
        vocab_size: int | None = None,
        fingerprint: str = "",
        is_ranked: bool = False,
        source: str = "",
        notes: tuple[str, ...] = (),
    ) -> TokenMap:
        """A map of ``ids``, int64 [Vd] in the file's order: of frequency (``is_ranked``) or of draft rows."""
        vocab = DraftVocab.from_target_ids(ids, self.size(vocab_size), self.fingerprint(fingerprint), source)
        is_ascending = np.array_equal(vocab.target_ids, ids)
        return TokenMap(
            vocab,
            ranked_ids=ids if is_ranked else None,
            row_ids=None if is_ranked or is_ascending else ids,
            notes=notes,
        )


@dataclass(frozen=True)
class Loaded:
    """What was read, and as which format."""

    format: str
    content: Content


class Codec(Protocol):
    """A module that reads and writes the formats of one container."""

    def read(self, path: Path, known: Known, name: str | None) -> Loaded:
        """Read ``path`` as the format ``name``, or find out which of the container's formats it is."""

    def write(self, path: Path, content: Content, name: str) -> None:
        """Write ``content`` as the format ``name``, atomically."""


@dataclass(frozen=True)
class Format:
    """One file format: what it may hold, who reads it, and the module that knows it."""

    name: str
    holds: tuple[Holds, ...]
    module: str
    about: str  # one line, for the help and the docs


FORMATS: tuple[Format, ...] = (
    Format("hothead", ("map", "counts"), "own", "hothead's draft vocabulary or token ranking (.safetensors)"),
    Format("sglang", ("map",), "torch_files", "SGLang and FR-Spec: list of ids, most frequent first (.pt)"),
    Format("vllm-frequency", ("counts",), "torch_files", "vLLM's request: frequency by id (.pt)"),
    Format("speculators", ("counts",), "torch_files", "speculators' token_freq.pt: {id: count}"),
    Format("specforge", ("map",), "torch_files", "SpecForge: {d2t, t2d} (.pt)"),
    Format("d2t", ("map",), "arrays", "d2t.npy with t2d.npy beside it"),
    Format("eagle3", ("map",), "arrays", "d2t and t2d in safetensors, a checkpoint's too"),
    Format("gguf", ("map",), "gguf", "llama.cpp: absolute ids in a GGUF tensor d2t"),
    Format("json", ("map", "counts"), "text", "a list of ids, or an object that says more (.json)"),
    Format("text", ("map",), "text", "an id a line, most frequent first (.txt)"),
)
NAMES = tuple(one.name for one in FORMATS)


def format_named(name: str) -> Format:
    """
    Raises:
        InputError: no format has that name.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    raise InputError(f"no file format is called {name!r}; expected one of {', '.join(NAMES)}")


def codec_of(name: str) -> Codec:
    """The module for a format, imported now."""
    return importlib.import_module(f"hothead.export.{format_named(name).module}")  # type: ignore[return-value]


def read_map(path: str | Path, known: Known | None = None, name: str | None = None) -> Loaded:
    """Read a token map or token counts.

    Args:
        path: a file, or a folder: a draft checkpoint, or one that holds d2t.npy.
        known: what is known of the target.
        name: the format, where the file could be several things.

    Raises:
        InputError: unreadable, damaged, or not what its format says; the message says what it looks like.
        TokenizerMismatch: made for another target than the one known.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    known = known or Known()
    try:
        return codec_of(name or container_of(path)).read(path, known, name)
    except (InputError, TokenizerMismatch) as error:
        said = str(error)
        raise type(error)(said if said.startswith(str(path)) else f"{path}: {said}") from error


def write_map(path: str | Path, content: Content, name: str) -> None:
    """Write a token map or token counts as the format ``name``, atomically.

    Raises:
        InputError: the format cannot hold that, or the file cannot be written.
    """
    form = format_named(name)
    kind: Holds = "map" if isinstance(content, TokenMap) else "counts"
    if kind not in form.holds:
        if kind == "counts":
            raise InputError(f"{name} holds a map and the input holds counts; say how many ids to keep (--size)")
        raise InputError(f"{name} holds counts and the input is a map, which does not know how often its ids occur")
    codec_of(name).write(Path(path), content, name)


def container_of(path: Path) -> str:
    """A format of the container that ``path`` is, told by its first bytes."""
    if path.is_dir():
        return "d2t" if (path / "d2t.npy").is_file() else "eagle3"
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not start:
        raise InputError(f"{path}: an empty file")
    if start[:4] == b"GGUF":
        return "gguf"
    if start[:6] == b"\x93NUMPY":
        return "d2t"
    if start[8:9] == b"{":
        return "hothead"
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        return "sglang"
    return "json" if start.lstrip()[:1] in (b"{", b"[") else "text"


def ids_digest(ids: np.ndarray, vocab_size: int) -> str:
    """SHA-256 (hex) of a map: by it, a file's own map is told from one that was exchanged or damaged."""
    digest = hashlib.sha256(f"{vocab_size}\n".encode())
    digest.update(np.ascontiguousarray(ids, dtype="<i8").tobytes())
    return digest.hexdigest()


def check_digest(ids: np.ndarray, vocab_size: int, said: str | None) -> None:
    """
    Raises:
        InputError: the file carries a digest, and it is of another map.
    """
    if said is not None and said != ids_digest(ids, vocab_size):
        raise InputError("the map is not the one that was written: damaged, or changed by hand since")
