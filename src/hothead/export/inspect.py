"""What a file is: a map, counts, a draft checkpoint, a GGUF; what it holds, and what is wrong with it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import DraftMismatch, HotheadError, InputError
from hothead.export import gguf
from hothead.export.arrays import checkpoint_files
from hothead.export.base import Known, Loaded, TokenMap, container_of, format_named, read_map
from hothead.export.checkpoint import Checkpoint, open_checkpoint
from hothead.export.coverage import Coverage, coverage_of
from hothead.export.drafts import KINDS, OWN_HEAD, Draft, Problem, problems_of
from hothead.export.gguf_file import read_gguf
from hothead.export.prune import INSTEAD
from hothead.ranking.ranking import TokenRanking
from hothead.tokenizer import Tokenizer, chat_text, fingerprint, has_chat_template
from hothead.vocab import DraftVocab

CONVENTIONS = {
    "hothead": "ascending target ids; position is the draft id",
    "sglang": "target ids, most frequent first",
    "vllm-frequency": "frequencies indexed by target id",
    "speculators": "{target id: count}",
    "specforge": "d2t offsets: target id = draft id + d2t[draft id]; t2d a mask over target ids",
    "d2t": "d2t offsets: target id = draft id + d2t[draft id]; t2d a mask over target ids",
    "eagle3": "d2t offsets: target id = draft id + d2t[draft id]; t2d a mask over target ids",
    "gguf": "d2t of absolute target ids",
    "json": "target ids, or counts indexed by them",
    "text": "target ids, one a line",
}


@dataclass
class Inspection:
    """What was found out about a file or folder. ``rows`` are draft rows, ``target_vocab_size`` the target's ids."""

    path: Path
    format: str
    about: str
    convention: str = ""
    rows: int | None = None
    target_vocab_size: int | None = None
    lowest_id: int | None = None
    highest_id: int | None = None
    tokens_counted: int | None = None
    tokenizer_fingerprint: str = ""
    source: str = ""
    advice: str = ""
    tensors: list[str] = field(default_factory=list)
    coverage: Coverage | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    def error(self, text: object) -> None:
        self.problems.append(Problem("error", str(text)))


def inspect_path(path: Path, known: Known, tokenizer: Tokenizer = None, name: str | None = None) -> Inspection:
    """Explain a file or folder. What is wrong inside it goes into ``problems``.

    Args:
        tokenizer: the target's, to say what the vocabulary can spell; None leaves that out.
        name: the format, where the file could be several things.

    Raises:
        InputError: there is nothing of that name, or nothing readable.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.is_dir() and (checkpoint_files(path) or any(path.glob("pytorch_model*.bin"))):
        return _draft(open_checkpoint(path), known, tokenizer)
    if path.is_file() and container_of(path) == "gguf":
        return _gguf(path, known, tokenizer)
    if path.is_file() and path.suffix == ".bin":
        raise InputError(f"{path}: give the checkpoint's folder, which holds its config too")
    return _map(path, known, tokenizer, name)


def _map(path: Path, known: Known, tokenizer: Tokenizer, name: str | None) -> Inspection:
    try:
        loaded = read_map(path, known, name)
    except InputError as error:
        if known.target_vocab_size is None and "--target" in str(error):
            raise
        found = Inspection(path, name or container_of(path), "unusable")
        found.error(error)
        return found
    found = Inspection(path, loaded.format, format_named(loaded.format).about, CONVENTIONS[loaded.format])
    _describe(found, loaded, tokenizer)
    return found


def _describe(found: Inspection, loaded: Loaded, tokenizer: Tokenizer) -> None:
    content = loaded.content
    if isinstance(content, TokenRanking):
        found.target_vocab_size, found.tokens_counted = content.vocab_size, content.token_total
        found.rows = int((content.counts > 0).sum())
        found.tokenizer_fingerprint = content.tokenizer_fingerprint
        return
    found.problems += [Problem("warning", note) for note in content.notes]
    _describe_vocab(found, content.vocab, tokenizer)


def _describe_vocab(
    found: Inspection, vocab: DraftVocab, tokenizer: Tokenizer, configs: tuple[dict[str, Any], ...] = ()
) -> None:
    ids = vocab.target_ids
    found.rows, found.target_vocab_size = len(vocab), vocab.target_vocab_size
    found.lowest_id, found.highest_id = int(ids[0]), int(ids[-1])
    found.tokenizer_fingerprint = vocab.tokenizer_fingerprint
    found.source = found.source or (vocab.source if found.format == "hothead" else "")
    if vocab.unseen:
        text = (
            f"{vocab.unseen} of {len(vocab)} ids were filled in without having been seen in the corpus; rank more text"
        )
        found.problems.append(Problem("warning", text))
    prefix = int((ids == np.arange(len(ids))).sum())
    if not vocab.is_full and prefix == len(ids):
        text = f"the map is the first {len(ids)} ids in order: a d2t that was never filled in looks just like that"
        found.problems.append(Problem("warning", text))
    if tokenizer is None:
        return
    if vocab.tokenizer_fingerprint and vocab.tokenizer_fingerprint != fingerprint(tokenizer):
        found.error("the map was made with another tokenizer than the target's: the same ids mean other tokens")
        return
    found.coverage = coverage_of(vocab, tokenizer, configs)
    found.problems += found.coverage.problems()
    found.problems += tokenizer_problems(tokenizer)


def tokenizer_problems(tokenizer: Tokenizer) -> list[Problem]:
    """What of a tokenizer spoils counts made with it."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None or not has_chat_template(tokenizer):
        return []
    text = chat_text(tokenizer, [{"role": "user", "content": "Hi"}])
    if tokenizer.encode(text)[:2] == [bos, bos]:
        return [
            Problem(
                "warning",
                f"the chat template writes {tokenizer.bos_token} and the tokenizer adds another: counts made with both "
                "hold it twice a chat. `hothead rank` adds none",
            )
        ]
    return []


def _draft(checkpoint: Checkpoint, known: Known, tokenizer: Tokenizer) -> Inspection:
    draft = Draft(checkpoint)
    found = Inspection(checkpoint.folder, draft.kind, KINDS[draft.kind])
    found.target_vocab_size, found.rows = draft.vocab_size, draft.head_rows
    found.source = checkpoint.metadata.get("hothead_source", "")
    found.tensors = [
        f"{tensor.name} {tensor.dtype} {list(tensor.shape)}"
        for tensor in checkpoint.tensors.values()
        if tensor is draft.head or tensor.name.rpartition(".")[2] in ("d2t", "t2d") or "embed" in tensor.name
    ]
    found.problems = problems_of(draft, known.target_vocab_size)
    if draft.kind not in OWN_HEAD:
        found.advice = INSTEAD[draft.kind]
        return found
    found.convention = CONVENTIONS["eagle3"] if checkpoint.named("d2t") else "row number is target id"
    try:
        ids, size, _ = draft.row_ids(known.target_vocab_size)
    except HotheadError:
        return found  # among the problems already
    said = checkpoint.metadata.get("tokenizer_fingerprint", "")
    vocab = DraftVocab.from_target_ids(ids, size, said, found.source)
    _describe_vocab(found, vocab, tokenizer, (draft.config, draft.layer_config))
    return found


def _gguf(path: Path, known: Known, tokenizer: Tokenizer) -> Inspection:
    try:
        file = read_gguf(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    found = Inspection(path, "gguf", f"a GGUF of architecture {file.architecture!r}")
    found.target_vocab_size = gguf.target_vocab_size(file)
    found.source = str(file.keys.get("hothead.source", ""))
    found.tensors = [
        f"{tensor.name} type {tensor.type} {list(tensor.shape)}"
        for tensor in file.tensors.values()
        if tensor.name in (*gguf.ROW_TENSORS, gguf.MAP_TENSOR, "token_embd.weight")
    ]
    if gguf.MAP_TENSOR in file.tensors and gguf.HEAD not in file.tensors:
        found.convention = CONVENTIONS["gguf"]
        return _gguf_map(found, path, known, tokenizer)
    try:
        ids, size, notes = gguf.draft_row_ids(file, known)
    except DraftMismatch as error:
        found.problems.append(Problem("warning", str(error)))
        return found
    except InputError as error:
        found.error(error)
        return found
    found.convention = CONVENTIONS["gguf"] if gguf.MAP_TENSOR in file.tensors else "row number is target id"
    found.problems += [Problem("warning", note) for note in notes]
    said = str(file.keys.get(gguf.TOKENIZER_KEY, ""))
    _describe_vocab(found, DraftVocab.from_target_ids(ids, size, said, found.source), tokenizer)
    return found


def _gguf_map(found: Inspection, path: Path, known: Known, tokenizer: Tokenizer) -> Inspection:
    try:
        content = gguf.read(path, known, "gguf").content
    except InputError as error:
        found.error(error)
        return found
    assert isinstance(content, TokenMap)
    _describe_vocab(found, content.vocab, tokenizer)
    return found
