"""HotHead: the LM head's rows for the hot target ids, and the slots in which other rows come and go."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.errors import DraftMismatch
from hothead.native import argmax, likeliest
from hothead.packed import PackedLinear
from hothead.vocab import DraftVocab


@dataclass(frozen=True)
class LMHead:
    """A model's output projection and what it does to the logits afterwards.

    Attributes:
        weight: [V, H]; tied to the embedding or not, which makes no difference here.
        bias: [V] or None.
        scale: the logits are multiplied by this (Cohere, Granite).
        soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)`` (Gemma 2), None for no cap.
        linear: what computes the products.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    soft_cap: float | None = None
    linear: type[PackedLinear] = PackedLinear

    @property
    def vocab_size(self) -> int:
        """V, rows of the head."""
        return self.weight.shape[0]

    def rows(self, target_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """int64 [n] -> copies of these rows, [n, H], and of their biases, [n] or None."""
        bias = None if self.bias is None else self.bias.index_select(0, target_ids)
        return self.weight.index_select(0, target_ids), bias

    def all_rows(self) -> tuple[Tensor, Tensor | None]:
        """Weight [V, H] and bias [V] or None, for reading only."""
        return self.weight, self.bias

    def finish(self, logits: Tensor) -> Tensor:
        """Scale and cap raw products, as the model does."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits


class HotHead:
    """Logits over the hot rows only, in terms of ``target_ids``.

    Rows 0..Vd-1 are static: one block, packed where that is faster. Rows Vd..Vd+D-1 are slots: plain rows that
    :meth:`write_slots` overwrites in place, one row per new id, so pointers stay valid for compiled code and CUDA
    graphs (packed slots, and only they, are packed again after a write). Slots start with the vocabulary's
    runners-up; one that holds nothing has target id -1 and logit -inf.
    With ``slots=0`` this is the static head, the same operations and the same bits.

    Attributes:
        target_ids: int64 [Vd + D], the target id of each row, -1 for an empty slot.
        row_of: int64 [V + 1], the row of each target id, -1 if it is not hot; entry V is scratch.

    Args:
        lm_head: the full head; its weight stays referenced, as the source of rows for the slots.
        vocab: the static rows.
        slots: D, how many dynamic rows.

    Raises:
        DraftMismatch: the vocabulary was made for a head with another number of rows.
    """

    def __init__(self, lm_head: LMHead, vocab: DraftVocab, slots: int = 0) -> None:
        if vocab.target_vocab_size != lm_head.vocab_size:
            raise DraftMismatch(
                f"the draft vocabulary is for a head of {vocab.target_vocab_size} rows; this one has "
                f"{lm_head.vocab_size}"
            )
        if slots < 0:
            raise DraftMismatch(f"dynamic slots must be 0 or more; found {slots}")
        weight = lm_head.weight
        self.lm_head = lm_head
        self.vocab = vocab
        self.num_static = len(vocab)
        self.num_slots = slots
        static_ids = torch.as_tensor(vocab.target_ids.copy(), device=weight.device)
        self._static = lm_head.linear(*self._static_rows(static_ids))
        empty = static_ids.new_full((slots + 1,), -1)  # one more row than slots: scratch for masked writes
        self._rows = torch.cat([static_ids, empty])
        self._slot_weight = weight.new_zeros(slots + 1, weight.shape[1])
        self._slot_bias = weight.new_full((slots + 1,), -torch.inf)
        self._slots: PackedLinear | None = None
        self.row_of = static_ids.new_full((lm_head.vocab_size + 1,), -1)
        self.row_of[static_ids] = torch.arange(self.num_static, device=weight.device)
        first = torch.as_tensor(vocab.next_target_ids[:slots].copy(), device=weight.device)
        if len(first):
            self.write_slots(torch.arange(len(first), device=weight.device), first)

    def _static_rows(self, static_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.lm_head.all_rows() if self.vocab.is_full else self.lm_head.rows(static_ids)

    @property
    def target_ids(self) -> Tensor:
        """int64 [Vd + D], the target id of each row, -1 for an empty slot."""
        return self._rows[: self.num_static + self.num_slots]

    @property
    def slot_target_ids(self) -> Tensor:
        """int64 [D], the target id of each slot, -1 for an empty one."""
        return self._rows[self.num_static : self.num_static + self.num_slots]

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, H] -> [B, Vd + D], in row order; -inf in empty slots."""
        raw = self._static(hidden)
        if self.num_slots:
            raw = torch.cat([raw, self._slot_product()(hidden)], dim=-1)
        return self._finish(raw)

    def _slot_product(self) -> PackedLinear:
        # A packed copy does not see writes: it is made anew after some, which costs less than one plain product.
        if self._slots is None:
            linear, count = self.lm_head.linear, self.num_slots
            self._slots = linear(self._slot_weight[:count], self._slot_bias[:count], pack=linear.packs_written_rows)
        return self._slots

    def _forget_packed_slots(self) -> None:
        if self._slots is not None and self._slots.is_packed:
            self._slots = None

    def _finish(self, raw: Tensor) -> Tensor:
        finished = self.lm_head.finish(raw)
        if self.num_slots and self.lm_head.soft_cap is not None:
            # tanh would turn an empty slot's -inf into -soft_cap, which is a token's logit like any other.
            finished = finished.masked_fill(self.target_ids < 0, -torch.inf)
        return finished

    def argmax(self, hidden: Tensor) -> Tensor:
        """[B, H] -> int64 [B], the most likely hot ``target_ids``."""
        return self.target_ids[argmax(self.logits(hidden))]

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[B, H] -> what :meth:`argmax` gives, and its log-probability over the hot rows, float32 [B]."""
        rows, log_probs = likeliest(self.logits(hidden))
        return self.target_ids[rows], log_probs

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """[B, H] -> float32 [B, Vd + D], normalised over the hot rows, in row order."""
        return (self.logits(hidden).float() / temperature).log_softmax(dim=-1)

    def write_slots(self, slots: Tensor, target_ids: Tensor) -> None:
        """Put the rows of ``target_ids`` into ``slots``, in place; what they held is no longer hot.

        Only these rows are copied, on the device, without the host learning anything.

        Args:
            slots: int64 [n], distinct; D stands for the scratch row (a masked write).
            target_ids: int64 [n], distinct ids that are not hot; V stands for "none" (with slot D).
        """
        vocab_size = self.lm_head.vocab_size
        rows = slots + self.num_static
        evicted = self._rows[rows]
        self.row_of.index_fill_(0, torch.where(evicted >= 0, evicted, vocab_size), -1)
        self.row_of.index_copy_(0, target_ids, rows)
        self._rows.index_copy_(0, rows, target_ids)
        weight, bias = self.lm_head.rows(target_ids.clamp(max=vocab_size - 1))
        self._slot_weight.index_copy_(0, slots, weight)
        if bias is None:
            self._slot_bias.index_fill_(0, slots, 0.0)
        else:
            self._slot_bias.index_copy_(0, slots, bias)
        self._forget_packed_slots()
        # Scratch entries: never hot, whatever a masked write left there.
        self._rows[-1] = -1
        self.row_of[-1] = -1

    def replace_static(self, target_ids: Tensor) -> None:
        """Gather all static rows anew (``full_refresh``): int64 [Vd], distinct. Costs Vd rows, not rows missed."""
        rows = torch.arange(self.num_static, device=target_ids.device)
        self.row_of.index_fill_(0, self._rows[: self.num_static], -1)
        self.row_of.index_copy_(0, target_ids, rows)
        self._rows[: self.num_static] = target_ids
        # Plain rows: packing them anew every round would cost more than it saves.
        self._static = self.lm_head.linear(*self.lm_head.rows(target_ids), pack=False)

    def reload_rows(self) -> None:
        """Copy every hot row anew, because the model's weights changed; in place wherever rows are plain."""
        slots = self.num_slots
        held = self.slot_target_ids
        weight, bias = self.lm_head.rows(held.clamp(min=0))
        self._slot_weight[:slots] = weight
        if bias is not None:
            self._slot_bias[:slots] = torch.where(held >= 0, bias, -torch.inf)
        self._forget_packed_slots()
        self._static.reload(*self._static_rows(self._rows[: self.num_static]))

    def stale_slots(self) -> int:
        """How many slots hold another row or bias than the model's; 0, unless there is a bug. Reads the device."""
        slots, held = self.num_slots, self.slot_target_ids >= 0
        weight, bias = self.lm_head.rows(self.slot_target_ids.clamp(min=0))
        stale = (self._slot_weight[:slots] != weight).any(dim=1)
        stale |= self._slot_bias[:slots] != (0.0 if bias is None else bias)
        return int((stale & held).sum())
