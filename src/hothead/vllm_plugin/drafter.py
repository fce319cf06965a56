"""What the plugin puts into a vLLM drafter: hot logits, sampling in target ids, and the slots' update.

Everything runs in fixed shapes on the model's device and asks it for no value, so it neither synchronises nor
breaks captured graphs. Nothing here imports vLLM.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hothead.dynamic import SlotTable
from hothead.head import HotHead
from hothead.vllm_plugin.rows import RowSource
from hothead.vocab import DraftVocab

COUNTERS = ("observed", "missed", "accepted", "inserted")


class HotRows(nn.Module):
    """Stands for a vLLM LM head inside a vLLM ``LogitsProcessor``, which then scales and caps the hot rows' products.

    The processor calls ``lm_head.quant_method.apply(lm_head, hidden, bias=...)``, and gathers over ``tp_size`` ranks:
    hot rows are on every rank, so there is nothing to gather.
    """

    tp_size = 1

    def __init__(self, head: HotHead) -> None:
        super().__init__()
        self.head = head
        self.quant_method = self

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """[B, H] -> [B, Vd + D]; the rows' own biases are in already."""
        return self.head.logits(x)


class HotDrafter:
    """The hot head of one drafter.

    Args:
        source: the drafter's full head.
        vocab: its static rows.
        slots: D, dynamic rows.
        policies: which of ``on_miss`` and ``prompt`` fill the slots.
        process: vLLM's logits processor of the draft, ``(lm_head, hidden) -> logits``.
        soft_capped: whether that caps logits, so that an empty slot's -inf must be put back.

    Attributes:
        counters: int64 [4], ``COUNTERS`` since the start, on the device.
        emitted: int64 [V], how often each target id was emitted; None if nobody wants to know.
    """

    def __init__(
        self,
        source: RowSource,
        vocab: DraftVocab,
        slots: int,
        policies: Sequence[str],
        process: Callable[[nn.Module, Tensor], Tensor],
        *,
        soft_capped: bool = False,
        count_emitted: bool = False,
    ) -> None:
        self.source = source
        self.head = HotHead(source, vocab, slots)
        self._rows = HotRows(self.head)
        self._process = process
        self._mask_empty = soft_capped and slots > 0
        self._table = SlotTable(self.head)
        self._policies = frozenset(policies)
        self._static_id = int(vocab.target_ids[0])  # offering it changes nothing: a filler for "no token"
        device = source.weight.device
        self.counters = torch.zeros(len(COUNTERS), dtype=torch.int64, device=device)
        self.emitted = torch.zeros(source.vocab_size, dtype=torch.int64, device=device) if count_emitted else None

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, H] -> [B, Vd + D], in row order, scaled and capped as the model does."""
        logits = self._process(self._rows, hidden)
        if self._mask_empty:
            logits = logits.masked_fill(self.head.target_ids < 0, -torch.inf)
        return logits

    def greedy(self, hidden: Tensor) -> Tensor:
        """[B, H] -> int64 [B], the likeliest hot target ids."""
        return self.head.target_ids[self.logits(hidden).argmax(dim=-1)]

    def sample(
        self, hidden: Tensor, sample_rows: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor | None]:
        """Draw hot target ids, and give the distribution they were drawn from.

        Args:
            hidden: [B, H].
            sample_rows: draws from logits [B, Vd + D]: row numbers [B] and probabilities [B, Vd + D] or None.

        Returns:
            int64 [B] target ids and float32 [B, V], zero outside the hot rows: rejection sampling with the q that was
            really used leaves the target's distribution as it is (Leviathan et al. 2211.17192).
        """
        rows, probs = sample_rows(self.logits(hidden))
        target_ids = self.head.target_ids
        if probs is None:
            return target_ids[rows], None
        return target_ids[rows], self.to_full_width(probs)

    def to_full_width(self, probs: Tensor) -> Tensor:
        """[B, Vd + D] in row order -> [B, V] by target id. An empty slot's probability is 0, wherever it is added."""
        full = probs.new_zeros(probs.shape[0], self.source.vocab_size)
        index = self.head.target_ids.clamp(min=0).expand_as(probs)
        return full.scatter_add_(1, index, probs)

    def full_width_logits(self, hidden: Tensor) -> Tensor:
        """[B, H] -> [B, V] by target id, -inf outside the hot rows."""
        logits = self.logits(hidden)
        full = logits.new_full((logits.shape[0], self.source.vocab_size), -torch.inf)
        # An empty slot's -inf changes nothing where it lands; amax does not depend on the order of writes.
        index = self.head.target_ids.clamp(min=0).expand_as(logits)
        return full.scatter_reduce_(1, index, logits, "amax")

    def observe(self, emitted_target_ids: Tensor, valid: Tensor, prompts: Sequence[Tensor]) -> None:
        """One step of the target: prompts that came in, tokens that it emitted.

        Args:
            emitted_target_ids: [B, n], any integer dtype; one row a request, accepted drafts first.
            valid: bool [B, n], which of them were emitted.
            prompts: target ids, int64 [P], of each request that is new.
        """
        emitted = torch.where(valid, emitted_target_ids.long(), self._static_id)
        head = self.head
        missed = (head.row_of[emitted] < 0) & valid  # before the slots change: what the drafts had to choose from
        if "prompt" in self._policies:
            for prompt in prompts:
                self._offer(prompt)
        # The last token of a row is the target's own, the ones before it are accepted drafts.
        accepted = (valid.sum(dim=1) - 1).clamp(min=0).sum()
        if self.emitted is not None:
            self.emitted.scatter_add_(0, emitted.flatten(), valid.flatten().long())
        if "on_miss" in self._policies:
            self._offer(emitted.flatten())
        self.counters[:3] += torch.stack([valid.sum(), missed.sum(), accepted])
        self.counters[3] = self._table.rows_copied

    def _offer(self, target_ids: Tensor) -> None:
        has_row = self.source.has_row(target_ids)
        if has_row is not None:
            target_ids = torch.where(has_row, target_ids, self._static_id)
        self._table.offer(target_ids)

    def check(self) -> list[str]:
        """What is wrong with the slots: nothing, unless there is a bug. Reads the device; all ranks ask together."""
        head = self.head
        rows = torch.arange(len(head.target_ids), device=head.target_ids.device)
        held = head.target_ids >= 0
        wrong = []
        if len(head.target_ids[held].unique()) != int(held.sum()):
            wrong.append("a target id has two rows")
        if not torch.equal(head.row_of[head.target_ids[held]], rows[held]):
            wrong.append("row_of does not point back to the rows")
        if int((head.row_of >= 0).sum()) != int(held.sum()):
            wrong.append("row_of knows ids that no row holds")
        if stale := head.stale_slots():
            wrong.append(f"{stale} slots do not hold the model's rows")
        observed, missed, accepted, _ = self.counters.tolist()
        if max(missed, accepted) > observed:
            wrong.append(f"the counters contradict each other ({self.counters.tolist()})")
        return wrong

    def describe(self) -> dict[str, Any]:
        """Sizes, for the log."""
        return {
            "static": self.head.num_static,
            "slots": self.head.num_slots,
            "total": self.source.vocab_size,
            "policies": "+".join(sorted(self._policies)) or "none",
        }
