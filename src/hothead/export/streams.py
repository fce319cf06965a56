"""Copying bytes of large files in pieces, so that memory does not grow with the file."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from hothead.errors import InputError

PIECE_BYTES = 1 << 20  # stays in the processor's cache between reading and writing
Piece = bytes | memoryview


def read_pieces(file: BinaryIO, start: int, size: int) -> Iterator[memoryview]:
    """``size`` bytes of ``file`` from ``start``. A piece is good until the next one is taken: its memory is reused.

    Raises:
        InputError: the file ends before that.
    """
    buffer = memoryview(bytearray(min(size, PIECE_BYTES)))
    file.seek(start)
    while size:
        count = file.readinto(buffer[: min(size, PIECE_BYTES)])  # type: ignore[attr-defined]
        if not count:
            raise InputError("a file that is shorter than its header says")
        size -= count
        yield buffer[:count]


def read_all(file: BinaryIO, start: int, size: int) -> bytes:
    """The same at once, for what is small."""
    return b"".join(bytes(piece) for piece in read_pieces(file, start, size))


def read_rows(file: BinaryIO, start: int, row_bytes: int, rows: np.ndarray) -> Iterator[memoryview]:
    """The rows (int64 [n], any order) of a table at ``start``; neighbours are read together. Pieces as above."""
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, edges):
        yield from read_pieces(file, start + int(run[0]) * row_bytes, len(run) * row_bytes)
