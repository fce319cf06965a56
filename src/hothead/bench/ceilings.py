"""What the machine itself can do, beside which a head's times mean something: read bandwidth and GEMM rate."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from hothead.bench.head_results import Ceiling
from hothead.packed import PackedLinear

BUFFER_BYTES = 1 << 29  # larger than the caches of any one device today
COLUMNS = 1024  # of the buffer when it is read as a matrix
GEMM_SIZE = {"cpu": 1024}
GEMM_SIZE_OF_ACCELERATORS = 8192
REPEATS = 7


@torch.inference_mode()
def measure_ceiling(dtype: torch.dtype, device: str, buffer_bytes: int | None = None) -> Ceiling:
    """The best of a few repeats of each, as is usual for a ceiling.

    Bytes are read by a sum and by a matrix-vector product, whichever is faster; the GEMM is [n, n] x [n, n] in the
    form that the heads use (packed on CPU).

    Args:
        buffer_bytes: how much to read; BUFFER_BYTES by default.
    """
    kind = torch.device(device).type
    buffer = torch.ones((buffer_bytes or BUFFER_BYTES) // 4 // COLUMNS, COLUMNS, dtype=torch.float32, device=device)
    ones = torch.ones(COLUMNS, dtype=torch.float32, device=device)
    read_s = min(fastest_s(buffer.sum, device), fastest_s(lambda: torch.mv(buffer, ones), device))
    size = GEMM_SIZE.get(kind, GEMM_SIZE_OF_ACCELERATORS)
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    product = PackedLinear(matrix)
    gemm_s = fastest_s(lambda: product(matrix), device)
    read_bytes = buffer.numel() * buffer.element_size()
    return Ceiling(
        read_bytes_per_s=read_bytes / read_s,
        gemm_flops_per_s=2 * size**3 / gemm_s,
        buffer_bytes=read_bytes,
        gemm_size=size,
    )


def synchronizer(device: str) -> Callable[[], None]:
    """What waits until the device has done all it was given."""
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None


def fastest_s(call: Callable[[], Tensor], device: str, repeats: int = REPEATS) -> float:
    """Seconds of the fastest of ``repeats`` calls, after one that is not counted."""
    synchronize = synchronizer(device)
    call()
    found = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        found.append(time.perf_counter() - start)
    return min(found)
