"""The slot table against a plain least-recently-used cache, and what the policies offer."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hothead.dynamic import (
    POLICY_NAMES,
    DynamicConfig,
    FullRefresh,
    Slots,
    SlotTable,
    make_hot_vocabulary,
    make_policies,
)
from hothead.errors import InputError
from hothead.head import HotHead, LMHead
from hothead.vocab import DraftVocab

V, STATIC, H = 40, 8, 4


def head_with(slots: int, runners_up: int = 3) -> HotHead:
    weight = torch.arange(V * H, dtype=torch.float32).view(V, H)
    vocab = DraftVocab(np.arange(STATIC), V, next_target_ids=np.arange(20, 20 + runners_up))
    return HotHead(LMHead(weight), vocab, slots)


class PlainLRU:
    """The reference: ids enter one by one; the one not offered for the longest time leaves."""

    def __init__(self, slots: int, initial: list[int]) -> None:
        self.slots = slots
        self.held: OrderedDict[int, None] = OrderedDict((i, None) for i in reversed(initial[:slots]))
        self.copied = 0

    def offer(self, ids: list[int]) -> None:
        for target_id in ids:
            if target_id < STATIC:
                continue
            if target_id in self.held:
                self.held.move_to_end(target_id)
            elif self.slots:
                self.held[target_id] = None
                if len(self.held) > self.slots:
                    self.held.popitem(last=False)


def check_invariants(head: HotHead) -> None:
    slots = head.slot_target_ids
    held = slots[slots >= 0]
    assert len(held.unique()) == len(held), "an id in two slots"
    assert ((held >= STATIC) & (held < V)).all(), "a static id or none in a slot"
    for row, target_id in enumerate(head.target_ids.tolist()):
        if target_id >= 0:
            assert head.row_of[target_id] == row
            if row >= STATIC:
                assert torch.equal(head._slot_weight[row - STATIC], head.lm_head.weight[target_id])
                assert head._slot_bias[row - STATIC] == 0
        else:
            assert head._slot_bias[row - STATIC] == -torch.inf
    assert (head.row_of >= 0).sum() == STATIC + len(held), "a stale entry in the inverse map"


offers = st.lists(st.lists(st.integers(0, V - 1), max_size=12), max_size=12)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10), st.integers(0, 6), offers)
def test_slots_hold_what_a_plain_lru_cache_holds(slots: int, runners_up: int, rounds: list[list[int]]) -> None:
    head = head_with(slots, runners_up)
    table = SlotTable(head)
    plain = PlainLRU(slots, list(range(20, 20 + runners_up)))
    check_invariants(head)
    for ids in rounds:
        before = set(head.slot_target_ids.tolist())
        copied = int(table.rows_copied)
        table.offer(torch.tensor(ids, dtype=torch.int64))
        plain.offer(ids)
        check_invariants(head)
        after = {i for i in head.slot_target_ids.tolist() if i >= 0}
        assert after == set(plain.held)
        assert int(table.rows_copied) - copied == len(after - before), "copied more or fewer rows than entered"


@settings(deadline=None, max_examples=50)
@given(offers)
def test_static_rows_never_change(rounds: list[list[int]]) -> None:
    head = head_with(4)
    table = SlotTable(head)
    hidden = torch.ones(1, H)
    before = head.logits(hidden)[:, :STATIC].clone()
    for ids in rounds:
        table.offer(torch.tensor(ids, dtype=torch.int64))
    assert head.target_ids[:STATIC].tolist() == list(range(STATIC))
    assert torch.equal(head.logits(hidden)[:, :STATIC], before)


def emitted(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)


def logits_with_top(*ids: int) -> torch.Tensor:
    logits = torch.zeros(1, V)
    for rank, target_id in enumerate(ids):
        logits[0, target_id] = 10.0 - rank
    return logits


def held_by(policy: str, slots: int = 4) -> list[int]:
    hot = make_hot_vocabulary(LMHead(torch.randn(V, H)), DraftVocab(np.arange(STATIC), V), DynamicConfig(slots, policy))
    hot.after_prompt(emitted(30, 31, 3))
    hot.after_round(emitted(32, 5), logits_with_top(33, 34, 2))
    return sorted(i for i in hot.head.slot_target_ids.tolist() if i >= 0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", []),
        ("on_miss", [32]),
        ("prompt", [30, 31]),
        ("target_topk:2", [33, 34]),
        ("target_topk:3", [33, 34]),
        ("on_miss+prompt", [30, 31, 32]),
        ("on_miss+prompt+target_topk:1", [30, 31, 32, 33]),
    ],
)
def test_policies(policy: str, expected: list[int]) -> None:
    assert held_by(policy) == expected


def test_the_likeliest_candidates_survive_when_slots_are_few() -> None:
    assert held_by("target_topk:8", slots=2) == [33, 34]


def test_full_refresh_holds_the_most_frequent_ids_at_all_times() -> None:
    prior = np.zeros(V, dtype=np.int64)
    prior[:STATIC] = 2
    lm_head = LMHead(torch.randn(V, H))
    hot = make_hot_vocabulary(lm_head, DraftVocab(np.arange(STATIC), V), DynamicConfig(0, "full_refresh", prior))
    assert isinstance(hot, FullRefresh)
    hot.after_round(emitted(30, 30, 30), logits_with_top(1))
    assert hot.head.target_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 30]
    assert hot.rows_copied == STATIC
    hidden = torch.randn(2, H)
    torch.testing.assert_close(hot.head.logits(hidden), hidden @ lm_head.weight[hot.head.target_ids].T)


def test_no_slots_never_copies() -> None:
    hot = make_hot_vocabulary(LMHead(torch.randn(V, H)), DraftVocab(np.arange(STATIC), V), DynamicConfig(0))
    assert isinstance(hot, Slots)
    hot.after_prompt(emitted(30))
    hot.after_round(emitted(31), logits_with_top(1))
    assert hot.rows_copied == 0


@pytest.mark.parametrize(
    "spec", ["misses", "on_miss+", "on_miss:3", "target_topk:x", "target_topk:0", "full_refresh+prompt"]
)
def test_unknown_policies_are_refused(spec: str) -> None:
    with pytest.raises(InputError):
        DynamicConfig(8, spec)


def test_config_is_checked() -> None:
    with pytest.raises(InputError, match="-1"):
        DynamicConfig(-1)
    with pytest.raises(InputError, match="prior_counts"):
        DynamicConfig(0, "full_refresh")
    assert len(make_policies("on_miss+prompt")) == 2
    assert set(POLICY_NAMES) == {"none", "on_miss", "prompt", "target_topk", "full_refresh"}
