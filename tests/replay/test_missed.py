"""Examples of missed tokens, against a plain count."""

import random
from typing import Any

import numpy as np

from hothead.replay.missed import EXAMPLES, EmittedTokens
from hothead.vocab import SelectionOrder


def test_what_is_outside_is_counted_and_shown_most_frequent_first(toy_tokenizer: Any) -> None:
    """Against counting by hand: random answers over 40 letters and a random order of ids."""
    generator = random.Random(0)
    letters = [toy_tokenizer.encode(c, add_special_tokens=False)[0] for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    answers = [generator.choices(letters, k=30) for _ in range(12)]
    order = SelectionOrder(np.random.default_rng(0).permutation(len(toy_tokenizer)), 0)
    emitted = EmittedTokens()
    for answer in answers:
        emitted.add(answer)
    found = emitted.missed({"own": order}, [64, 128, len(toy_tokenizer)], toy_tokenizer)
    drafted = [target_id for answer in answers for target_id in answer[1:]]  # the prefill's token is not
    assert [(missed.ranking, missed.size) for missed in found] == [("own", 64), ("own", 128)]
    for missed in found:
        outside = [i for i in drafted if i not in set(order.target_ids[: missed.size].tolist())]
        assert (missed.tokens, missed.distinct) == (len(outside), len(set(outside)))
        ranked = sorted(set(outside), key=lambda i: (-outside.count(i), i))
        assert [example.target_id for example in missed.examples] == ranked[:EXAMPLES]
        assert [example.count for example in missed.examples] == [outside.count(i) for i in ranked[:EXAMPLES]]
        assert all(example.text == toy_tokenizer.decode([example.target_id]) for example in missed.examples)


def test_context_is_the_text_around_the_first_occurrence(toy_tokenizer: Any) -> None:
    emitted = EmittedTokens()
    emitted.add(toy_tokenizer.encode("0123456789x-+*/%", add_special_tokens=False))
    emitted.add(toy_tokenizer.encode("axb", add_special_tokens=False))
    wanted = toy_tokenizer.encode("x", add_special_tokens=False)[0]
    others = [i for i in range(len(toy_tokenizer)) if i != wanted]
    (missed,) = emitted.missed({"own": SelectionOrder(np.array([*others, wanted]), 0)}, [len(others)], toy_tokenizer)
    (example,) = missed.examples
    assert (example.before, example.text, example.after, example.count) == ("23456789", "x", "-+*/", 2)
