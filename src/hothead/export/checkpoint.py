"""Checkpoint folders, tensor by tensor: read by header, written as a stream, never loaded whole."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import DraftMismatch, InputError
from hothead.export.arrays import checkpoint_files, read_config
from hothead.export.streams import Piece, read_all, read_pieces, read_rows
from hothead.files import atomic_path, safetensors_metadata

# Names of torch's types in safetensors.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
WIDTH = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
NUMPY = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its bytes are at ``start``; for a ``.bin``, torch maps them and ``data`` holds them."""

    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    path: Path
    start: int
    size: int
    data: np.ndarray | None = None  # uint8, of a .bin

    @property
    def row_bytes(self) -> int:
        return self.size // self.shape[0]


@dataclass(frozen=True)
class Checkpoint:
    """A draft's folder: config, tensors by name, and which file each is in."""

    folder: Path
    config: dict[str, Any]
    shards: dict[Path, tuple[str, ...]]
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())

    def named(self, *endings: str) -> StoredTensor | None:
        """The tensor whose name is, or ends in a dot and, one of ``endings``; None if there is none."""
        for ending in endings:
            for name, tensor in self.tensors.items():
                if name == ending or name.endswith(f".{ending}"):
                    return tensor
        return None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of a checkpoint folder: safetensors (whole or sharded) or ``pytorch_model.bin``.

    Raises:
        InputError: no weights there, or files that are unreadable or damaged.
        DraftMismatch: two files hold a tensor of the same name, or a file of the index is missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; a draft is a folder with config.json and its weights, or a .gguf")
    config = read_config(folder)
    index = folder / "model.safetensors.index.json"
    files = checkpoint_files(folder)
    if index.is_file():
        files = _indexed(index, files)
    stored: list[StoredTensor] = []
    metadata: dict[str, str] = {}
    if files:
        for file in files:
            metadata.update(safetensors_metadata(file))
            stored += _safetensors_table(file)
    else:
        files = sorted(folder.glob("pytorch_model*.bin"))
        for file in files:
            stored += _bin_table(file)
    if not stored:
        raise InputError(f"{folder}: no weights in it (expected *.safetensors or pytorch_model.bin)")
    tensors: dict[str, StoredTensor] = {}
    for tensor in stored:
        if tensor.name in tensors:
            found = f"{tensors[tensor.name].path.name} and {tensor.path.name}"
            raise DraftMismatch(f"{folder}: the tensor {tensor.name} is in both {found}")
        tensors[tensor.name] = tensor
    shards = {file: tuple(tensor.name for tensor in stored if tensor.path == file) for file in files}
    return Checkpoint(folder, config, shards, tensors, metadata)


def _indexed(index: Path, files: list[Path]) -> list[Path]:
    try:
        named = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index}: not a readable index ({error})") from error
    there = {file.name: file for file in files}
    if missing := sorted(named - there.keys()):
        raise DraftMismatch(f"{index.parent}: {missing[0]} is in the index and not in the folder")
    return [there[name] for name in sorted(named)]


def _safetensors_table(path: Path) -> list[StoredTensor]:
    """The tensors of a file whose header the safetensors library has already accepted."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    table = []
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
        start, end = about["data_offsets"]
        table.append(StoredTensor(name, about["dtype"], tuple(about["shape"]), path, 8 + length + start, end - start))
    return table


def _bin_table(path: Path) -> list[StoredTensor]:
    import torch

    try:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of the time before archives cannot be mapped
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle or archive fails in as many ways as it has bytes
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{path}: damaged, or holds more than tensors, which could run code; not read ({first[:120]})"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path}: expected a dict of tensors; found {type(found).__name__}")
    table = []
    for name, tensor in found.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise InputError(f"{path}: {name} is of type {dtype}, which safetensors has no name for")
        flat = tensor.detach().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, dtype=np.uint8)
        table.append(StoredTensor(name, DTYPES[dtype], tuple(tensor.shape), path, 0, data.size, data))
    return table


def pieces(tensor: StoredTensor) -> Iterator[Piece]:
    """All bytes of a tensor."""
    if tensor.data is not None:
        yield tensor.data.tobytes()
        return
    with tensor.path.open("rb", buffering=0) as file:
        yield from read_pieces(file, tensor.start, tensor.size)


def row_pieces(tensor: StoredTensor, rows: np.ndarray) -> Iterator[Piece]:
    """The bytes of the rows ``rows``, int64 [n], of a tensor's first dimension."""
    if tensor.data is not None:
        table = tensor.data.reshape(tensor.shape[0], -1)
        for some in np.array_split(rows, max(1, len(rows) // 1024)):
            yield table[some].tobytes()
        return
    with tensor.path.open("rb", buffering=0) as file:
        yield from read_rows(file, tensor.start, tensor.row_bytes, rows)


def array_of(tensor: StoredTensor) -> np.ndarray:
    """A small tensor of plain numbers, such as d2t.

    Raises:
        InputError: of a type that is not plain numbers.
    """
    if tensor.dtype not in NUMPY:
        raise InputError(f"{tensor.name} is {tensor.dtype}; expected whole numbers")
    if tensor.data is not None:
        data = tensor.data.tobytes()
    else:
        with tensor.path.open("rb") as file:
            data = read_all(file, tensor.start, tensor.size)
    return np.frombuffer(data, NUMPY[tensor.dtype]).reshape(tensor.shape)


@dataclass(frozen=True)
class TensorToWrite:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    pieces: Callable[[], Iterator[Piece]]


def write_tensors(
    path: Path, tensors: list[TensorToWrite], metadata: dict[str, str], moved: Callable[[int], None]
) -> None:
    """Write a safetensors file as a stream, atomically. ``moved`` hears of each piece's bytes.

    Raises:
        InputError: it cannot be written, or a source turned out to be shorter than its header says.
    """
    # Wide types first: every tensor then starts at a multiple of its own width, as readers that map the file need.
    tensors = sorted(tensors, key=lambda tensor: -WIDTH.get(tensor.dtype, 1))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary, temporary.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            written = 0
            for piece in tensor.pieces():
                out.write(piece)
                written += len(piece)
                moved(len(piece))
            if written != tensor.size:
                raise InputError(f"{tensor.name}: {written} bytes written and {tensor.size} promised")
