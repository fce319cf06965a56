"""llama.cpp's draft GGUFs: the map they carry, and pruning them without requantizing.

llama.cpp's EAGLE-3 and DFlash graphs scatter the draft's logits to the target ids in the tensor ``d2t`` (I64 [Vd]),
which are ABSOLUTE, where EAGLE-3's checkpoints store offsets (its src/models/eagle3.cpp and dflash.cpp).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hothead.errors import DraftMismatch, InputError
from hothead.export import checks
from hothead.export.base import Content, Known, Loaded, TokenMap, check_digest, ids_digest
from hothead.export.gguf_file import (
    DEFAULT_ALIGNMENT,
    I32,
    I64,
    GGUFFile,
    GGUFTensor,
    Items,
    NewTensor,
    encode_key,
    read_gguf,
    write_gguf,
)
from hothead.export.streams import Piece, read_all, read_pieces, read_rows
from hothead.vocab import DraftVocab

MAP_TENSOR = "d2t"
HEAD = "output.weight"
# A row (or a value) of each of these stands for a draft token.
ROW_TENSORS = (HEAD, "output.bias", "markov_w2.weight")
ARCHITECTURES = ("eagle3", "dflash")  # those whose llama.cpp graph reads d2t
DIGEST_KEY = "hothead.target_ids_sha256"
SIZE_KEY = "hothead.target_vocab_size"
TOKENIZER_KEY = "hothead.tokenizer_fingerprint"


def read(path: Path, known: Known, name: str | None) -> Loaded:
    file = read_gguf(path)
    if MAP_TENSOR not in file.tensors:
        raise InputError(
            f"a GGUF of architecture {file.architecture!r} without d2t: it has no map, its head is over all ids"
        )
    ids, notes = absolute_ids(file)
    size = known.size(target_vocab_size(file))
    checked = checks.target_ids(ids, size)
    check_digest(np.sort(checked), size, file.keys.get(DIGEST_KEY))
    fingerprint = str(file.keys.get(TOKENIZER_KEY, ""))
    return Loaded(
        "gguf", known.token_map(checked, vocab_size=size, fingerprint=fingerprint, source="gguf", notes=notes)
    )


def write(path: Path, content: Content, name: str) -> None:
    """A GGUF with nothing but the map: for other tools to take it from, not for llama.cpp to load."""
    assert isinstance(content, TokenMap)
    vocab = content.vocab
    keys = [encode_key("general.architecture", "eagle3"), *_provenance(vocab, "token map without a draft").values()]
    write_gguf(path, 3, keys, [_map_tensor(vocab)], DEFAULT_ALIGNMENT)


def absolute_ids(file: GGUFFile) -> tuple[np.ndarray, tuple[str, ...]]:
    """The target id of each draft row, int64 [Vd], unchecked; and remarks.

    Raises:
        InputError: d2t is not a row of whole numbers.
    """
    tensor = file.tensors[MAP_TENSOR]
    if tensor.type not in (I32, I64) or len(tensor.shape) != 1:
        raise InputError(f"d2t is of ggml type {tensor.type}, shape {list(tensor.shape)}; llama.cpp needs I64 [Vd]")
    with file.path.open("rb") as source:
        data = read_all(source, tensor.start, tensor.size)
    if tensor.type == I32:
        return np.frombuffer(data, "<i4").astype(np.int64), ("d2t is I32; llama.cpp stops unless it is I64",)
    return np.frombuffer(data, "<i8").astype(np.int64), ()


def target_vocab_size(file: GGUFFile) -> int | None:
    """V: as many as the tokenizer's tokens, which is what llama.cpp scatters over."""
    said = file.keys.get(SIZE_KEY)
    if type(said) is int and said > 0:
        return said
    tokens = file.keys.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Items) and tokens.length:
        return tokens.length
    embedding = file.tensors.get("token_embd.weight")
    return None if embedding is None else embedding.rows


def draft_row_ids(file: GGUFFile, known: Known) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """(target id of each row of the draft's head, int64 [Vd]; V; remarks), all checked.

    Raises:
        DraftMismatch: a GGUF whose head cannot be reduced, with the reason.
        InputError: its map is damaged.
    """
    if file.architecture not in ARCHITECTURES:
        raise DraftMismatch(
            f"a GGUF of architecture {file.architecture!r}: llama.cpp reads a reduced head only of "
            f"{' and '.join(ARCHITECTURES)} drafts, so a smaller one of these could not be loaded. Its draft can be "
            "pruned in hothead's own engine"
        )
    if HEAD not in file.tensors:
        raise DraftMismatch("this draft has no output.weight: it uses the target's head, and has no rows of its own")
    size = known.size(target_vocab_size(file))
    rows = file.tensors[HEAD].rows
    if MAP_TENSOR not in file.tensors:
        if rows != size:
            raise DraftMismatch(
                f"output.weight has {rows} rows for {size} target ids and there is no d2t: which ids they are is lost. "
                "Convert the draft again"
            )
        return np.arange(rows), size, ()
    ids, notes = absolute_ids(file)
    if len(ids) != rows:
        raise DraftMismatch(f"d2t has {len(ids)} ids and output.weight {rows} rows: they do not belong together")
    checked = checks.target_ids(ids, size)
    check_digest(np.sort(checked), size, file.keys.get(DIGEST_KEY))
    return checked, size, notes


def prune(file: GGUFFile, vocab: DraftVocab, rows: np.ndarray, out: Path, source: str) -> None:
    """Write ``file`` with only the head's rows ``rows`` (int64 [Vd], one for each of ``vocab``'s ids, in its order).

    Rows are whole quantization blocks and are copied as they are; all other tensors and keys byte for byte.
    """
    head_rows = file.tensors[HEAD].rows
    with file.path.open("rb", buffering=0) as opened:

        def pieces(tensor: GGUFTensor) -> Callable[[], Iterator[Piece]]:
            if tensor.name in ROW_TENSORS and tensor.rows == head_rows:
                return partial(read_rows, opened, tensor.start, tensor.size // tensor.rows, rows)
            return partial(read_pieces, opened, tensor.start, tensor.size)

        tensors = []
        for tensor in file.tensors.values():
            if tensor.name == MAP_TENSOR:
                continue
            shape = tensor.shape
            if tensor.name in ROW_TENSORS:
                if tensor.rows != head_rows:
                    raise DraftMismatch(f"{tensor.name} has {tensor.rows} rows and output.weight {head_rows}")
                shape = (*shape[:-1], len(rows))
            tensors.append(NewTensor(tensor.name, shape, tensor.type, pieces(tensor)))
        new = _provenance(vocab, source)
        keys = [raw for key, raw in file.raw_keys.items() if key not in new]
        write_gguf(out, file.version, [*keys, *new.values()], [*tensors, _map_tensor(vocab)], file.alignment)


def _provenance(vocab: DraftVocab, source: str) -> dict[str, bytes]:
    about: dict[str, str | int] = {
        SIZE_KEY: vocab.target_vocab_size,
        TOKENIZER_KEY: vocab.tokenizer_fingerprint,
        DIGEST_KEY: ids_digest(vocab.target_ids, vocab.target_vocab_size),
        "hothead.source": source,
    }
    return {key: encode_key(key, value) for key, value in about.items()}


def _map_tensor(vocab: DraftVocab) -> NewTensor:
    data = vocab.target_ids.astype("<i8").tobytes()
    return NewTensor(MAP_TENSOR, (len(vocab),), I64, lambda: iter([data]))
