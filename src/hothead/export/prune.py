"""Pruning a trained draft: fewer rows in its head, a new d2t and t2d, everything else as it was."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import DraftMismatch, InputError
from hothead.export import gguf
from hothead.export.base import Content, Known, TokenMap, ids_digest
from hothead.export.checkpoint import (
    Checkpoint,
    StoredTensor,
    TensorToWrite,
    open_checkpoint,
    pieces,
    row_pieces,
    write_tensors,
)
from hothead.export.drafts import KINDS, OWN_HEAD, Draft, end_ids, problems_of
from hothead.export.gguf_file import GGUFFile, read_gguf
from hothead.files import write_json
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

PROVENANCE = "hothead.json"
# Made for the unpruned head: copied along, they would be taken for the pruned draft's.
STALE_FILES = ("d2t.npy", "t2d.npy", "vocab_mapping.pt", "launch.txt", PROVENANCE)
MARKOV_ROWS = "markov_head.markov_w2.weight"  # DSpark's second table of draft tokens
INSTEAD = {
    "eagle": "no stock engine loads an EAGLE-1/2 draft with a head of fewer rows: vLLM and SGLang use the target's. In "
    "SGLang give the vocabulary as a token map (hothead convert RANKING map.pt --to sglang --size N); in vLLM "
    "use hothead's plugin; hothead's own engine takes the draft and the vocabulary as they are",
    "mtp": "no stock engine loads an MTP layer with a head of fewer rows: they use the target's. In vLLM use hothead's "
    "plugin; hothead's own engine takes the vocabulary as it is",
    "standalone": "no stock engine loads a standalone draft with a head of fewer rows: its output ids would be taken "
    "for target ids. hothead's own engine takes the draft and the vocabulary as they are",
    "unknown": "expected config.json and tensors of an EAGLE-3, DFlash, EAGLE-1/2 or MTP draft",
}


@dataclass(frozen=True)
class Pruned:
    """What pruning did."""

    output: Path
    kind: str
    rows_before: int
    vocab: DraftVocab
    left_out: int  # ids asked for that the draft has no row for
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...]


def prune(
    draft: Path,
    choice: Content,
    output: Path,
    *,
    sizes: dict[str, Any] | None = None,
    known: Known | None = None,
    fingerprint: str = "",
    force: bool = False,
    moved: Callable[[int], None] = lambda count: None,
) -> Pruned:
    """Prune a draft checkpoint folder or a draft ``.gguf``.

    Args:
        draft: what to prune; never changed.
        choice: a ranking, of which ``sizes`` picks rows among those the draft has, or a map, of which all rows the
            draft has are kept.
        output: a folder, or a ``.gguf`` for a ``.gguf``.
        sizes: one of size, ratio, pruning_ratio and coverage, for a ranking.
        known: what is known of the target.
        fingerprint: of the draft's own tokenizer, if its folder has one.
        force: replace an output that is already there.
        moved: hears how many bytes were just written.

    Raises:
        DraftMismatch: a draft that no stock engine loads with fewer rows, with what to do instead; a broken draft.
        TokenizerMismatch: a ranking or map for another tokenizer.
        InputError: unreadable files, sizes that make no sense, an output that exists.
    """
    known = known or Known()
    check_free(draft, output, force)
    if draft.is_file():
        return _prune_gguf(read_gguf(draft), choice, output, sizes or {}, known, moved)
    checkpoint = open_checkpoint(draft)
    seen = Draft(checkpoint)
    if seen.kind not in OWN_HEAD:
        raise DraftMismatch(f"{draft} is {KINDS[seen.kind]}: {INSTEAD[seen.kind]}")
    if errors := [
        problem.text for problem in problems_of(seen, known.target_vocab_size) if problem.severity == "error"
    ]:
        raise DraftMismatch(f"{draft}: {'; '.join(errors)}")
    row_ids, vocab_size, notes = seen.row_ids(known.target_vocab_size)
    known = Known(known.size(vocab_size), known.fingerprint(fingerprint))
    required = end_ids(seen.config) + end_ids(seen.layer_config)
    vocab, left_out = choose(choice, row_ids, known, sizes or {}, required)
    _write_checkpoint(checkpoint, seen, vocab, rows_of(vocab, row_ids), output, moved)
    after = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    before = checkpoint.size_bytes
    return Pruned(output, seen.kind, len(row_ids), vocab, left_out, before, after, notes)


def check_free(draft: Path, output: Path, force: bool) -> None:
    """
    Raises:
        InputError: the output is the draft itself, is there already, or is of the other kind.
    """
    if output.exists() and draft.exists() and output.resolve() == draft.resolve():
        raise InputError(f"{output} is the draft itself, which is never changed; name another output")
    if output.exists() and not force:
        raise InputError(f"{output} is there already; name another output, or replace it with --force")
    if draft.is_file() and (output.is_dir() or output.suffix != ".gguf"):
        raise InputError(f"a pruned GGUF is a .gguf file; found {output}")
    if draft.is_dir() and (output.is_file() or output.suffix in (".safetensors", ".gguf")):
        raise InputError(f"a pruned checkpoint is a folder; found {output}")


def choose(
    choice: Content, row_ids: np.ndarray, known: Known, sizes: dict[str, Any], required: list[int]
) -> tuple[DraftVocab, int]:
    """The ids to keep, all of which the draft has rows for.

    Args:
        row_ids: int64 [Vd], the target id of each row of the draft.
        required: ids that are kept whatever the ranking says, if the draft has them.

    Returns:
        (vocabulary, how many ids were asked for that the draft has no row for)
    """
    total = known.size()
    has_row = np.zeros(total, dtype=bool)
    has_row[row_ids] = True
    if isinstance(choice, TokenMap):
        if sizes:
            raise InputError(f"a map says its own size; --{next(iter(sizes)).replace('_', '-')} goes with a ranking")
        choice.vocab.check_target(total, known.tokenizer_fingerprint or choice.vocab.tokenizer_fingerprint)
        kept = choice.vocab.target_ids[has_row[choice.vocab.target_ids]]
        if not len(kept):
            raise InputError("the draft has a row for none of the map's ids: they belong to different tokenizers")
        fingerprint = choice.vocab.tokenizer_fingerprint or known.tokenizer_fingerprint
        vocab = DraftVocab.from_target_ids(kept, total, fingerprint, f"map of {len(choice.vocab)} ids")
        return vocab, len(choice.vocab) - len(kept)
    if known.tokenizer_fingerprint and choice.tokenizer_fingerprint:
        choice.check_tokenizer(known.tokenizer_fingerprint)
    return _choose_ranked(choice, row_ids, has_row, sizes, required), 0


def _choose_ranked(
    ranking: TokenRanking, row_ids: np.ndarray, has_row: np.ndarray, sizes: dict[str, Any], required: list[int]
) -> DraftVocab:
    total = len(has_row)
    wanted = sizes.get("size")
    if wanted is not None and wanted > len(row_ids):
        raise InputError(f"size must be at most the draft's {len(row_ids)} rows; found {wanted}")
    if ranking.vocab_size > total:
        raise InputError(f"the ranking counts {ranking.vocab_size} ids and the draft knows {total}: another tokenizer")
    counts = np.zeros(total, dtype=np.int64)
    counts[: ranking.vocab_size] = ranking.counts
    seen = counts > 0
    # Of the draft's rows even one that was never seen comes before any id it has no row for.
    scale = max(1, min(total, 2**62 // max(1, ranking.token_total)))
    counts = np.where(has_row, counts * scale + 1, 0)
    special = np.union1d(ranking.special_target_ids, np.array(required, dtype=np.int64))
    within = TokenRanking(
        counts,
        ranking.tokenizer_fingerprint,
        special[(special < total) & has_row[np.minimum(special, total - 1)]],
        ranking.byte_target_ids[has_row[ranking.byte_target_ids]],
    )
    multiple = 64 if len(row_ids) % 64 == 0 else 1
    chosen = DraftVocab.from_ranking(within, target_vocab_size=total, multiple_of=multiple, **sizes)
    kept = chosen.target_ids[has_row[chosen.target_ids]]
    return DraftVocab(
        kept,
        total,
        ranking.tokenizer_fingerprint,
        unseen=int((~seen[kept]).sum()),
        source=f"{len(kept)} of {len(row_ids)} rows, by counts of {ranking.token_total} tokens",
    )


def rows_of(vocab: DraftVocab, row_ids: np.ndarray) -> np.ndarray:
    """The draft's row of each id of ``vocab``, in its order: int64 [Vd]."""
    order = np.argsort(row_ids, kind="stable")
    return order[np.searchsorted(row_ids[order], vocab.target_ids)]


def _prune_gguf(
    file: GGUFFile, choice: Content, output: Path, sizes: dict[str, Any], known: Known, moved: Callable[[int], None]
) -> Pruned:
    row_ids, vocab_size, notes = gguf.draft_row_ids(file, known)
    known = Known(known.size(vocab_size), known.fingerprint(str(file.keys.get(gguf.TOKENIZER_KEY, ""))))
    eos = file.keys.get("tokenizer.ggml.eos_token_id")
    vocab, left_out = choose(choice, row_ids, known, sizes, [eos] if type(eos) is int else [])
    gguf.prune(file, vocab, rows_of(vocab, row_ids), output, vocab.source)
    before, after = file.path.stat().st_size, output.stat().st_size
    moved(before)
    return Pruned(output, f"gguf {file.architecture}", len(row_ids), vocab, left_out, before, after, notes)


def _write_checkpoint(
    checkpoint: Checkpoint,
    draft: Draft,
    vocab: DraftVocab,
    rows: np.ndarray,
    output: Path,
    moved: Callable[[int], None],
) -> None:
    """Write the pruned folder beside ``output`` and move it there once it is whole."""
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".tmp", dir=output.parent))
    try:
        _write_shards(checkpoint, draft, vocab, rows, work, moved)
        _write_config(checkpoint, draft, vocab, work)
        for file in sorted(checkpoint.folder.iterdir()):
            if file.is_file() and not (work / file.name).exists() and not _is_replaced(file):
                shutil.copy2(file, work / file.name)
        work.chmod(0o755)
        _replace(work, output)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error}; an earlier one is unchanged") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_replaced(file: Path) -> bool:
    weights = file.suffix in (".safetensors", ".bin") or file.name.endswith(".index.json")
    return weights or file.name in STALE_FILES or file.name.startswith(".")


def _replace(work: Path, output: Path) -> None:
    if not output.exists():
        work.replace(output)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".old", dir=output.parent))
    output.replace(old / "it")
    try:
        work.replace(output)
    except OSError:
        (old / "it").replace(output)
        raise
    finally:
        with suppress(OSError):
            shutil.rmtree(old)


def _write_shards(
    checkpoint: Checkpoint, draft: Draft, vocab: DraftVocab, rows: np.ndarray, work: Path, moved: Callable[[int], None]
) -> None:
    assert draft.head is not None
    metadata = {
        **checkpoint.metadata,
        "format": "pt",  # what loaders expect of a checkpoint
        "hothead_source": vocab.source,
        "tokenizer_fingerprint": vocab.tokenizer_fingerprint,
        "target_ids_sha256": ids_digest(vocab.target_ids, vocab.target_vocab_size),
    }
    weight_map: dict[str, str] = {}
    total = 0
    names = dict(zip(checkpoint.shards, _shard_names(checkpoint), strict=True))
    for path, held in checkpoint.shards.items():
        tensors = [_sliced(checkpoint.tensors[name], draft.head, rows) for name in held if not _is_map(name)]
        if draft.head.name in held:
            tensors += _map_tensors(checkpoint, vocab)
        write_tensors(work / names[path], tensors, metadata, moved)
        weight_map |= {tensor.name: names[path] for tensor in tensors}
        total += sum(tensor.size for tensor in tensors)
    if len(names) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(work / "model.safetensors.index.json", index)


def _shard_names(checkpoint: Checkpoint) -> list[str]:
    if all(path.suffix == ".safetensors" for path in checkpoint.shards):
        return [path.name for path in checkpoint.shards]
    count = len(checkpoint.shards)
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _is_map(name: str) -> bool:
    return name.rpartition(".")[2] in ("d2t", "t2d")


def _sliced(tensor: StoredTensor, head: StoredTensor, rows: np.ndarray) -> TensorToWrite:
    """The tensor as it is, or its rows ``rows`` if it belongs to the head."""
    is_row_table = tensor.name in (head.name, head.name.removesuffix("weight") + "bias") or (
        tensor.name.endswith(MARKOV_ROWS) and tensor.shape[0] == head.shape[0]
    )
    if not is_row_table:
        if tensor.name.startswith(head.name.removesuffix("weight")):
            raise DraftMismatch(
                f"{tensor.name}: a quantized head's own layout, which is not known; prune it unquantized"
            )
        return TensorToWrite(tensor.name, tensor.dtype, tensor.shape, tensor.size, partial(pieces, tensor))
    shape = (len(rows), *tensor.shape[1:])
    return TensorToWrite(
        tensor.name, tensor.dtype, shape, tensor.row_bytes * len(rows), partial(row_pieces, tensor, rows)
    )


def _map_tensors(checkpoint: Checkpoint, vocab: DraftVocab) -> list[TensorToWrite]:
    """The new map, under the names of the old one: DFlash checkpoints write ``model.d2t``."""
    names = {name: name if (old := checkpoint.named(name)) is None else old.name for name in ("d2t", "t2d")}
    d2t, t2d = vocab.d2t.astype("<i8").tobytes(), vocab.t2d.tobytes()
    return [
        TensorToWrite(names["d2t"], "I64", (len(vocab),), len(d2t), lambda: iter([d2t])),
        TensorToWrite(names["t2d"], "BOOL", (vocab.target_vocab_size,), len(t2d), lambda: iter([t2d])),
    ]


def _write_config(checkpoint: Checkpoint, draft: Draft, vocab: DraftVocab, work: Path) -> None:
    config = {**checkpoint.config, "draft_vocab_size": len(vocab)}
    for part in (config, config.get("transformer_layer_config")):
        if isinstance(part, dict) and part.get("tie_word_embeddings"):
            part["tie_word_embeddings"] = False  # or the head is dropped for the embedding, which is full
    write_json(work / "config.json", config)
    about = {
        "pruned_from": checkpoint.folder.name,
        "kind": draft.kind,
        "rows": len(vocab),
        "target_vocab_size": vocab.target_vocab_size,
        "unseen": vocab.unseen,
        "source": vocab.source,
        "tokenizer_fingerprint": vocab.tokenizer_fingerprint,
        "target_ids_sha256": ids_digest(vocab.target_ids, vocab.target_vocab_size),
    }
    write_json(work / PROVENANCE, about)
