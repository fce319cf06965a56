"""How much work an LM head is, and how fast a machine could do it: the roofline model of Williams et al. (2009).

A head of R rows and H columns, s bytes a value, applied to B hidden states does 2BHR operations and moves at least
s(HR + BH + BR) bytes: the weight once, the hidden states in, the logits out. Where the logits stay in the cache, as
those of a fused argmax do, the last term falls away. Operations per byte are the arithmetic intensity; a machine
reaches at most the lower of its operations per second and of intensity times its bytes per second.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadWork:
    """What one call of a head takes at the least.

    Attributes:
        flops: 2BHR, a multiplication and an addition for each weight and hidden state.
        bytes_moved: s(HR + BH + BR).
        bytes_without_output: s(HR + BH).
    """

    flops: int
    bytes_moved: int
    bytes_without_output: int

    @property
    def intensity(self) -> float:
        """Operations per byte moved."""
        return self.flops / self.bytes_moved

    @property
    def intensity_without_output(self) -> float:
        """Operations per byte, the logits not counted."""
        return self.flops / self.bytes_without_output


def head_work(batch: int, hidden_size: int, rows: int, bytes_per_value: int) -> HeadWork:
    """Of ``batch`` hidden states [B, H] times a head [R, H], all values of ``bytes_per_value`` bytes."""
    read = bytes_per_value * (hidden_size * rows + batch * hidden_size)
    return HeadWork(2 * batch * hidden_size * rows, read + bytes_per_value * batch * rows, read)


def attainable_flops_per_s(intensity: float, read_bytes_per_s: float, gemm_flops_per_s: float) -> float:
    """The roof over work of that intensity."""
    return min(gemm_flops_per_s, intensity * read_bytes_per_s)
