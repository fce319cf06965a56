"""Copying bytes of large files in pieces, so that memory does not grow with the file."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

PIECE_BYTES = 4 << 20


def read_pieces(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """``size`` bytes of ``file`` from ``start``.

    Raises:
        EOFError: the file ends before that.
    """
    file.seek(start)
    while size:
        piece = file.read(min(size, PIECE_BYTES))
        if not piece:
            raise EOFError("the file is shorter than its header says")
        size -= len(piece)
        yield piece


def read_rows(file: BinaryIO, start: int, row_bytes: int, rows: np.ndarray) -> Iterator[bytes]:
    """The rows (int64 [n], any order) of a table at ``start``; neighbours are read together."""
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, edges):
        yield from read_pieces(file, start + int(run[0]) * row_bytes, len(run) * row_bytes)
