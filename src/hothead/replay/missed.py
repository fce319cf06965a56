"""Examples of what a small vocabulary lacks: the tokens of the answers that are outside it, in their context."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hothead.replay.curve import MissedToken, MissedTokens
from hothead.tokenizer import Tokenizer
from hothead.vocab import SelectionOrder

EXAMPLES = 10
BEFORE, AFTER = 8, 4  # tokens of context


class EmittedTokens:
    """Counts the tokens of answers, and keeps where each first stood."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._first: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, target_ids: Sequence[int]) -> None:
        """Take in an answer, the prefill's token included: it is context, but not counted, as the draft has no part
        in it."""
        ids = list(target_ids)
        self._counts.update(ids[1:])
        for at in range(1, len(ids)):
            if ids[at] not in self._first:
                self._first[ids[at]] = (ids[max(0, at - BEFORE) : at], ids[at + 1 : at + 1 + AFTER])

    def missed(
        self, orders: Mapping[str, SelectionOrder], sizes: Sequence[int], tokenizer: Tokenizer
    ) -> tuple[MissedTokens, ...]:
        """Of each ranking and size that misses any: how many, and the most frequent ones, equal counts by id."""
        found = []
        for name, order in orders.items():
            rank_of = np.argsort(order.target_ids)
            for size in sizes:
                outside = [target_id for target_id in self._counts if rank_of[target_id] >= size]
                outside.sort(key=lambda target_id: (-self._counts[target_id], target_id))
                if outside:
                    found.append(
                        MissedTokens(
                            ranking=name,
                            size=size,
                            distinct=len(outside),
                            tokens=sum(self._counts[target_id] for target_id in outside),
                            examples=tuple(self._example(target_id, tokenizer) for target_id in outside[:EXAMPLES]),
                        )
                    )
        return tuple(found)

    def _example(self, target_id: int, tokenizer: Tokenizer) -> MissedToken:
        before, after = self._first[target_id]
        return MissedToken(
            target_id=target_id,
            text=tokenizer.decode([target_id]),
            count=self._counts[target_id],
            before=tokenizer.decode(before),
            after=tokenizer.decode(after),
        )
