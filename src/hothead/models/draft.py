"""What the engine asks of a draft model. Trees and chains, EAGLE and standalone drafts all fit these calls."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from hothead.head import LMHead


class Draft(Protocol):
    """A draft for one sequence at a time.

    Attributes:
        name: for tables and messages.
        lm_head: the full head its hidden states are read by, one row per target id.
    """

    name: str
    lm_head: LMHead

    def reset(self, capacity: int) -> None:
        """Forget the sequence; expect about ``capacity`` positions."""

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        """Take in committed tokens and return the hidden state that proposes the next one.

        Args:
            target_ids: int64 [n], all tokens committed since the last call.
            features: [m, H], m <= n, the target's features at the positions *before* the last m of these tokens
                (what an EAGLE draft pairs them with; a standalone draft does without).

        Returns:
            [1, H'] hidden state after the last token.
        """

    def step(self, target_id: Tensor, hidden: Tensor) -> Tensor:
        """Go on from a drafted token, int64 [1], and the hidden state that proposed it, [1, H'] -> [1, H']."""

    def rollback(self) -> None:
        """Forget what :meth:`step` took in since the last :meth:`extend`."""


@runtime_checkable
class Unrolls(Protocol):
    """A draft that can also start chains at many positions of a known sequence at once, for a fast replay."""

    def chains(self, target_ids: Tensor, features: Tensor, starts: int, depth: int) -> Tensor:
        """Draft from each of the last ``starts`` positions as if every draft were the sequence's own token.

        Args:
            target_ids: int64 [n], the whole sequence.
            features: [m, H], as :meth:`Draft.extend` takes them.

        Returns:
            [starts, depth, H']; entry [s, j] proposes the token j + 1 places after the s-th start. Entries that would
            read tokens past the end of the sequence mean nothing.
        """
