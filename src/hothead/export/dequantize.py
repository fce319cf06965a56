"""A GGUF file's weights in one plain dtype, for engines that read only GGUF: the same values as the embedded engine's.

Tables and matrices become the dtype; vectors (norms, biases) stay float32, as llama.cpp wants them. All keys but the
file type are copied byte for byte.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hothead.errors import InputError
from hothead.export.gguf_file import GGUFTensor, NewTensor, encode_key, read_gguf, write_gguf

# dtype: (ggml's tensor type, llama.cpp's file type)
PLAIN_TYPES = {"float32": (0, 0), "float16": (1, 1), "bfloat16": (30, 32)}
FLOAT32 = PLAIN_TYPES["float32"][0]
FILE_TYPE = "general.file_type"
VALUES_AT_ONCE = 1 << 24


def write_dequantized(source: Path, out: Path, dtype: str) -> None:
    """Write ``source`` with its weights in ``dtype``, atomically.

    Args:
        dtype: "bfloat16", "float16" or "float32".

    Raises:
        InputError: not a readable GGUF file, a tensor type that is not known, or the ``gguf`` package is missing.
    """
    if dtype not in PLAIN_TYPES:
        raise InputError(f"a GGUF file's dtype must be one of {', '.join(PLAIN_TYPES)}; found {dtype!r}")
    matrix_type, file_type = PLAIN_TYPES[dtype]
    file = read_gguf(source)
    keys = [raw for key, raw in file.raw_keys.items() if key != FILE_TYPE]
    tensors = []
    for tensor in file.tensors.values():
        kind = FLOAT32 if len(tensor.shape) == 1 else matrix_type
        tensors.append(NewTensor(tensor.name, tensor.shape, kind, partial(_pieces, source, tensor, kind)))
    write_gguf(out, file.version, [*keys, encode_key(FILE_TYPE, file_type)], tensors, file.alignment)


def _pieces(source: Path, tensor: GGUFTensor, kind: int) -> Iterator[bytes]:
    """A tensor's bytes in the ggml type ``kind``, some rows at a time."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    rows = int(np.prod(tensor.shape[1:]))
    row_bytes = tensor.size // rows
    at_once = max(1, VALUES_AT_ONCE // tensor.shape[0])
    with source.open("rb") as file:
        file.seek(tensor.start)
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            stored = np.frombuffer(file.read(count * row_bytes), dtype=np.uint8).reshape(count, row_bytes)
            try:
                values = dequantize(stored, GGMLQuantizationType(tensor.type))
            except NotImplementedError as error:
                raise InputError(f"{tensor.name}: the gguf package cannot dequantize it ({error})") from error
            yield quantize(values, GGMLQuantizationType(kind)).tobytes()
