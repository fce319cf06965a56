"""A draft head of vLLM as a source of rows: sharded over tensor-parallel ranks, reduced as EAGLE-3's, or plain.

``HotHead`` asks for rows by target id. Here these may live on other ranks (each holds one range of rows) or not at
all (an EAGLE-3 draft has rows for its own choice of ids).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.head import LMHead

AllReduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RowSource(LMHead):
    """The rows of a head, wherever they are.

    Attributes:
        weight: this rank's rows, [R, H]; padding rows may follow those in use.
        total: V, the ids of the target.
        row_id_of: int64 [V], the head's row of each target id, -1 for none; None where they are the same.
        start: the first row on this rank.
        stop: one past the last.
        all_reduce: adds up a tensor over the ranks; None where this rank has every row.
    """

    total: int = 0
    row_id_of: Tensor | None = None
    start: int = 0
    stop: int = 0
    all_reduce: AllReduce | None = None

    @property
    def vocab_size(self) -> int:
        """V, ids of the target."""
        return self.total

    def has_row(self, target_ids: Tensor) -> Tensor | None:
        """Whether each id has a row, bool like ``target_ids``; None if every id has."""
        return None if self.row_id_of is None else self.row_id_of[target_ids] >= 0

    def rows(self, target_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """int64 [n] -> [n, H] and biases [n] or None; every rank must ask for the same ids.

        A masked gather and one all-reduce: each row is on one rank, and the others add zeros.
        """
        row_ids = target_ids if self.row_id_of is None else self.row_id_of[target_ids]
        if self.all_reduce is None:
            row_ids = row_ids.clamp(min=0)
            return self.weight[row_ids], None if self.bias is None else self.bias[row_ids]
        here = (row_ids >= self.start) & (row_ids < self.stop)
        local = torch.where(here, row_ids - self.start, 0)
        weight = self.all_reduce(self.weight[local] * here[:, None])
        bias = None if self.bias is None else self.all_reduce(self.bias[local] * here)
        return weight, bias

    def all_rows(self) -> tuple[Tensor, Tensor | None]:
        """Weight [V, H] and bias [V] or None."""
        return self.rows(torch.arange(self.total, device=self.weight.device))
