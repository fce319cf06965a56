"""Linear layers at the memory's speed: weights in oneDNN's blocked layout on CPU, plain ones elsewhere.

Decoding reads every weight once per pass and does little arithmetic, so bytes per second is all that counts.
On CPU ``F.linear`` reads a row-major bf16 weight at less than half of what the memory can give; the same weight
reordered into oneDNN's blocks is about twice as fast at 1 to 16 rows. A packed weight is a private copy: writing
to the original afterwards changes nothing, which is why a head keeps its writable rows apart (see ``head.py``).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from hothead.spans import LINEARS, span

# The row count oneDNN plans the layout for. Layouts planned for 16 rows or more are the fast ones at 1 row too.
PLANNED_ROWS = 16


def can_pack(weight: Tensor) -> bool:
    """Whether ``weight`` [out, in] has a packed form here."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and weight.dtype in (torch.bfloat16, torch.float32)
        and (weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class PackedLinear(nn.Module):
    """``x @ weight.T + bias`` with a weight that is fixed from now on.

    Args:
        weight: [out, in], any float dtype; copied if it can be packed.
        bias: [out] or None.
        pack: False keeps the row-major weight, for one that will be used only a few times.
    """

    packs_written_rows = True  # whether packing rows anew after every write pays

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach()
        self.is_packed = pack and can_pack(weight)
        self.weight: Tensor = weight.detach()
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), PLANNED_ROWS)

    def reload(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take other values of the same shapes; plain rows are overwritten in place, so that pointers stay valid."""
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PLANNED_ROWS)
        elif self.weight is not weight:
            self.weight.copy_(weight)
        if bias is not None and self.bias is not None and self.bias is not bias:
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        with span(LINEARS):
            if self.is_packed:
                return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return functional.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual + self(x)``, added before the result is rounded where packed."""
        if not self.is_packed:
            return residual + self(x)
        with span(LINEARS):
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed={self.is_packed}"


def pack_linears(module: nn.Module, *, skip: frozenset[str] = frozenset()) -> int:
    """Replace every ``nn.Linear`` below ``module`` by a packed one, in place; the originals are freed.

    Args:
        skip: attribute names to leave alone (an LM head is packed by whoever reads it).

    Returns:
        How many were replaced.
    """
    replaced = 0
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name not in skip and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
                replaced += 1
    return replaced
