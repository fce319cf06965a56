"""What the engine asks of a draft model. Trees and chains, EAGLE and standalone drafts all fit these calls."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from hothead.head import LMHead
from hothead.vocab import DraftVocab


class Draft(Protocol):
    """A draft for one sequence at a time.

    Attributes:
        name: for tables and messages.
        lm_head: the full head its hidden states are read by, one row per target id.
        vocab: the target ids that it can propose, if its head has rows for some only.
        taps: the target's layers whose inputs are its features; none: the target's last hidden states.
    """

    name: str
    lm_head: LMHead
    vocab: DraftVocab | None
    taps: tuple[int, ...]

    def reset(self, capacity: int) -> None:
        """Forget the sequence; expect about ``capacity`` positions."""

    def extend(self, target_ids: Tensor, features: Tensor) -> Tensor:
        """Take in committed tokens and return the hidden state that proposes the next one.

        Args:
            target_ids: int64 [n], all tokens committed since the last call.
            features: [m, H] or [m, taps * H], m <= n, the target's features at the positions *before* the last m of
                these tokens (what an EAGLE draft pairs them with; a standalone draft does without).

        Returns:
            [1, H'] hidden state after the last token.
        """

    def step(self, target_ids: Tensor, hidden: Tensor, parents: Tensor | None = None) -> Tensor:
        """Go on from drafted tokens.

        Args:
            target_ids: int64 [n].
            hidden: [n, H'], the hidden states that proposed them.
            parents: int64 [n], which of the tokens given since the last :meth:`extend` each follows, -1 for the
                committed ones; None (n = 1): the latest.

        Returns:
            [n, H'] hidden states after each.
        """

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
