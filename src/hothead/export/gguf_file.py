"""GGUF containers: header, keys and tensor table, read strictly; tensors stay on disk.

Read here and not by the ``gguf`` package, because pruning copies all that it does not understand byte for byte, and
because a damaged count must end in an error, not in a loop of that length. Layout: the GGUF specification (ggml
docs/gguf.md), little-endian, versions 2 and 3.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hothead.errors import InputError
from hothead.export.streams import Piece
from hothead.files import atomic_path

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY, UINT32 = 8, 9, 4
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NESTING = 2
I32, I64 = 26, 27  # ggml tensor types


@dataclass(frozen=True)
class Items:
    """An array among the keys; of its contents only the length is kept."""

    length: int


@dataclass(frozen=True)
class GGUFTensor:
    """One row of the tensor table. ``shape`` is in ggml's order: the first dimension is the contiguous one."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int  # byte in the file
    size: int  # bytes

    @property
    def rows(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True)
class GGUFFile:
    path: Path
    version: int
    keys: dict[str, Any]  # numbers, strings, Items
    raw_keys: dict[str, bytes]  # each key with its value, as in the file
    tensors: dict[str, GGUFTensor]
    alignment: int

    @property
    def architecture(self) -> str:
        return str(self.keys.get("general.architecture", ""))


class _Reader:
    """Takes bytes off the front of a file and never more than it has."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self.position = file, size, 0

    def take(self, count: int) -> bytes:
        if count > self._size - self.position:
            raise InputError("a GGUF file that ends in the middle of its header")
        self.position += count
        return self._file.read(count)

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def string(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            return ""  # tokens need not be valid text

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or depth > MAX_NESTING:
            raise InputError(f"a GGUF key of the unknown type {kind}")
        item, length = self.number("I"), self.number("Q")
        if item in SCALARS:
            self.take(length * struct.calcsize(f"<{SCALARS[item]}"))
        else:
            if length * 8 > self._size:
                raise InputError(f"a GGUF key with {length} items, more than the file has room for")
            for _ in range(length):
                self.value(item, depth + 1)
        return Items(length)


def read_gguf(path: Path) -> GGUFFile:
    """The header of a GGUF file.

    Raises:
        InputError: not GGUF, truncated, damaged, or of a version or tensor type that is not known.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            reader = _Reader(file, size)
            if reader.take(4) != b"GGUF":
                raise InputError("not a GGUF file")
            version = reader.number("I")
            if version not in (2, 3):
                raise InputError(f"GGUF version {version}; expected 2 or 3 (little-endian)")
            tensor_count, key_count = reader.number("Q"), reader.number("Q")
            keys: dict[str, Any] = {}
            raw: dict[str, bytes] = {}
            spans = []
            for _ in range(key_count):
                start = reader.position
                key = reader.string()
                if key in keys:
                    raise InputError(f"the GGUF key {key!r} comes twice")
                keys[key] = reader.value(reader.number("I"))
                spans.append((key, start, reader.position))
            entries = [_tensor_entry(reader) for _ in range(tensor_count)]
            end = reader.position
            for key, start, stop in spans:
                file.seek(start)
                raw[key] = file.read(stop - start)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    alignment = keys.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise InputError(f"general.alignment is {alignment!r}; expected a multiple of 8")
    data = end + -end % alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise InputError(f"the GGUF tensor {name!r} comes twice")
        tensor = GGUFTensor(name, shape, kind, data + offset, tensor_bytes(shape, kind))
        if offset % alignment or tensor.start + tensor.size > size:
            raise InputError(f"the GGUF tensor {name!r} lies outside the file: truncated or damaged")
        tensors[name] = tensor
    return GGUFFile(path, version, keys, raw, tensors, alignment)


def _tensor_entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = reader.string(), reader.number("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InputError(f"the GGUF tensor {name!r} has {dimensions} dimensions; expected 1 to {MAX_DIMENSIONS}")
    shape = tuple(reader.number("Q") for _ in range(dimensions))
    return name, shape, reader.number("I"), reader.number("Q")


def tensor_bytes(shape: tuple[int, ...], kind: int) -> int:
    """How many bytes a tensor of ggml type ``kind`` takes; its rows are whole blocks.

    Raises:
        InputError: a type that is not known, or rows that are not whole blocks.
    """
    block, block_bytes = block_of(kind)
    if min(shape) < 1 or shape[0] % block:
        raise InputError(
            f"a tensor of shape {list(shape)} cannot be of ggml type {kind}, whose blocks are {block} long"
        )
    count = 1
    for dimension in shape:
        count *= dimension
    return count // block * block_bytes


def block_of(kind: int) -> tuple[int, int]:
    """(values, bytes) of one block of ggml type ``kind``.

    Raises:
        InputError: not known, or the ``gguf`` package, which knows them, is missing.
    """
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise InputError("GGUF files need the gguf package: pip install 'hothead[engine]'") from error
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise InputError(f"ggml type {kind} is not known to this version of the gguf package") from None
    return block, size


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write, and the bytes of it in pieces."""

    name: str
    shape: tuple[int, ...]
    type: int
    pieces: Callable[[], Iterator[Piece]]


def encode_key(key: str, value: str | int) -> bytes:
    """A string or uint32 key with its value, as GGUF writes it."""
    name = key.encode()
    start = struct.pack("<Q", len(name)) + name
    if isinstance(value, int):
        return start + struct.pack("<II", UINT32, value)
    text = value.encode()
    return start + struct.pack("<IQ", STRING, len(text)) + text


def write_gguf(path: Path, version: int, raw_keys: list[bytes], tensors: list[NewTensor], alignment: int) -> None:
    """Write a GGUF file atomically, tensor by tensor.

    Raises:
        InputError: it cannot be written.
    """
    header = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(raw_keys)), *raw_keys]
    offset = 0
    for tensor in tensors:
        name = tensor.name.encode()
        header.append(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape)))
        header.append(struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, tensor.type, offset))
        size = tensor_bytes(tensor.shape, tensor.type)
        offset += size + -size % alignment
    with atomic_path(path) as temporary, temporary.open("wb") as out:
        start = b"".join(header)
        out.write(start + bytes(-len(start) % alignment))
        for tensor in tensors:
            written = 0
            for piece in tensor.pieces():
                out.write(piece)
                written += len(piece)
            if written != tensor_bytes(tensor.shape, tensor.type):
                raise InputError(f"{tensor.name}: {written} bytes written, which is not its size")
            out.write(bytes(-written % alignment))
