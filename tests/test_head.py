"""HotHead against plain indexing of the full head's logits."""

import numpy as np
import pytest
import torch

from hothead.errors import DraftMismatch
from hothead.head import HotHead, LMHead
from hothead.packed import PackedLinear
from hothead.vocab import DraftVocab

V, H = 200, 32
DTYPES = [torch.float32, torch.bfloat16]


def make(dtype: torch.dtype = torch.float32, slots: int = 0, **head: object) -> tuple[HotHead, LMHead, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lm_head = LMHead(torch.randn(V, H, generator=generator).to(dtype), **head)
    ids = np.sort(np.random.default_rng(0).permutation(V)[:48])
    rest = np.setdiff1d(np.arange(V), ids)[:5]
    vocab = DraftVocab(ids, V, next_target_ids=rest)
    return HotHead(lm_head, vocab, slots), lm_head, torch.randn(3, H, generator=generator).to(dtype)


def reference(lm_head: LMHead, hidden: torch.Tensor) -> torch.Tensor:
    bias = None if lm_head.bias is None else lm_head.bias.float()
    return lm_head.finish(torch.nn.functional.linear(hidden.float(), lm_head.weight.float(), bias))


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slots", [0, 4, 16])
@pytest.mark.parametrize(
    "extra", [{}, {"scale": 0.5}, {"soft_cap": 3.0}, {"bias": True}, {"bias": True, "soft_cap": 3.0}]
)
def test_logits_are_the_full_heads_at_the_hot_ids(dtype: torch.dtype, slots: int, extra: dict) -> None:
    if extra.get("bias"):
        extra = {**extra, "bias": torch.linspace(-1, 1, V).to(dtype)}
    head, lm_head, hidden = make(dtype, slots, **extra)
    logits = head.logits(hidden)
    full = reference(lm_head, hidden)
    held = head.target_ids >= 0
    assert held.sum() == 48 + min(slots, 5)
    assert_close(logits[:, held], full[:, head.target_ids[held]], dtype)
    assert torch.isinf(logits[:, ~held]).all()


def test_argmax_likeliest_and_log_probs_speak_target_ids() -> None:
    head, lm_head, hidden = make(slots=8)
    full = reference(lm_head, hidden)
    hot = torch.zeros(V, dtype=torch.bool)
    hot[head.target_ids[head.target_ids >= 0]] = True
    restricted = full.masked_fill(~hot, -torch.inf)
    assert torch.equal(head.argmax(hidden), restricted.argmax(-1))
    ids, log_probs = head.likeliest(hidden)
    expected = restricted.log_softmax(-1).max(-1)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(log_probs, expected.values, atol=1e-4, rtol=0)
    rows = head.log_probs(hidden, temperature=0.7)
    held = head.target_ids >= 0
    tempered = (restricted / 0.7).log_softmax(-1)[:, head.target_ids[held]]
    torch.testing.assert_close(rows[:, held], tempered, atol=1e-4, rtol=0)
    torch.testing.assert_close(rows.exp().sum(-1), torch.ones(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_slots_is_the_static_map_bit_for_bit(dtype: torch.dtype) -> None:
    head, lm_head, hidden = make(dtype)
    static = PackedLinear(lm_head.weight[torch.as_tensor(head.vocab.target_ids.copy())])
    assert torch.equal(head.logits(hidden), static(hidden))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_full_vocabulary_is_the_full_head(dtype: torch.dtype) -> None:
    _, lm_head, hidden = make(dtype)
    head = HotHead(lm_head, DraftVocab.full(V))
    assert_close(head.logits(hidden), reference(lm_head, hidden), dtype)


def test_writing_slots_is_in_place_and_keeps_both_maps() -> None:
    head, lm_head, hidden = make(slots=4)
    weight_at, rows_at = head._slot_weight.data_ptr(), head._rows.data_ptr()
    old = head.slot_target_ids.clone()
    missing = torch.tensor([i for i in range(V) if head.row_of[i] < 0][:2])
    head.write_slots(torch.tensor([3, 1]), missing)
    assert head.slot_target_ids.tolist() == [old[0], missing[1], old[2], missing[0]]
    assert head.row_of[missing].tolist() == [48 + 3, 48 + 1]
    assert (head.row_of[old[[1, 3]]] == -1).all()
    assert (head._slot_weight.data_ptr(), head._rows.data_ptr()) == (weight_at, rows_at)
    assert_close(head.logits(hidden)[:, 48:], reference(lm_head, hidden)[:, head.slot_target_ids], torch.float32)


def test_gathering_the_static_rows_anew() -> None:
    head, lm_head, hidden = make()
    ids = torch.arange(10, 58)
    head.replace_static(ids)
    assert torch.equal(head.target_ids, ids)
    assert torch.equal(head.row_of[ids], torch.arange(48))
    assert (head.row_of >= 0).sum() == 48
    assert_close(head.logits(hidden), reference(lm_head, hidden)[:, 10:58], torch.float32)


def test_a_vocabulary_of_another_head_is_refused() -> None:
    with pytest.raises(DraftMismatch, match="head of 100 rows"):
        HotHead(LMHead(torch.zeros(V, H)), DraftVocab(np.arange(64), 100))
    with pytest.raises(DraftMismatch, match="-1"):
        HotHead(LMHead(torch.zeros(V, H)), DraftVocab(np.arange(64), V), slots=-1)
