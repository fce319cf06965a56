"""Hot rows inside a drafter: logits, sampling, the slots' update, and rows that live on several ranks. No vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hothead.vllm_plugin.drafter import COUNTERS, HotDrafter
from hothead.vllm_plugin.rows import RowSource
from hothead.vocab import DraftVocab

TOTAL, HIDDEN = 50, 8


class Processor:
    """vLLM's logits processor as the plugin uses it: products of the head, capped, then scaled."""

    def __init__(self, scale: float = 1.0, soft_cap: float | None = None) -> None:
        self.scale, self.soft_cap = scale, soft_cap

    def __call__(self, lm_head: nn.Module, hidden: Tensor) -> Tensor:
        logits = lm_head.quant_method.apply(lm_head, hidden, bias=None)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits * self.scale


def source(seed: int = 0, bias: bool = False, row_id_of: Tensor | None = None, rows: int = TOTAL) -> RowSource:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows + 14, HIDDEN, generator=generator)  # vLLM pads heads to whole blocks
    return RowSource(
        weight=weight,
        bias=torch.randn(rows + 14, generator=generator) if bias else None,
        total=TOTAL,
        row_id_of=row_id_of,
        stop=rows,
    )


def drafter(static: list[int], slots: int = 0, **changes: object) -> HotDrafter:
    processor = changes.pop("processor", Processor())
    rows = changes.pop("source", None) or source()
    assert isinstance(processor, Processor)
    assert isinstance(rows, RowSource)
    return HotDrafter(
        rows,
        DraftVocab(np.array(static), TOTAL),
        slots,
        ("on_miss", "prompt"),
        processor,
        soft_capped=processor.soft_cap is not None,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("slots", [0, 6])
@pytest.mark.parametrize("processor", [Processor(), Processor(scale=0.25), Processor(0.5, soft_cap=2.0)])
def test_logits_are_the_full_heads_at_the_hot_ids(bias: bool, slots: int, processor: Processor) -> None:
    rows = source(bias=bias)
    hot = drafter([2, 3, 5, 7, 11], slots, processor=processor, source=rows)
    hot.observe(torch.tensor([[40, 41]]), torch.ones(1, 2, dtype=torch.bool), [torch.tensor([20, 21])])
    hidden = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(1))
    full = hidden @ rows.weight[:TOTAL].T + (0 if rows.bias is None else rows.bias[:TOTAL])
    if processor.soft_cap is not None:
        full = torch.tanh(full / processor.soft_cap) * processor.soft_cap
    full = full * processor.scale
    ids = hot.head.target_ids
    held = ids >= 0
    logits = hot.logits(hidden)
    torch.testing.assert_close(logits[:, held], full[:, ids[held]])
    assert torch.all(logits[:, ~held] == -torch.inf)
    masked = torch.full_like(full, -torch.inf)
    masked[:, ids[held]] = full[:, ids[held]]
    assert torch.equal(hot.greedy(hidden), masked.argmax(dim=-1))


def test_probabilities_are_those_the_ids_were_drawn_from() -> None:
    hot = drafter([2, 3, 5], slots=4)  # two slots stay empty
    hot.observe(torch.tensor([[40, 41]]), torch.ones(1, 2, dtype=torch.bool), [])
    hidden = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(2))
    ids, probs = hot.sample(hidden, lambda logits: (logits.argmax(-1), logits.softmax(-1)))
    assert probs is not None
    assert probs.shape == (2, TOTAL)
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))
    assert set(probs[0].nonzero().flatten().tolist()) == {2, 3, 5, 40, 41}
    assert torch.equal(probs.argmax(-1), ids)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, TOTAL - 1), min_size=1, max_size=4), min_size=1, max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 6),
)
def test_counters_and_slots_follow_the_traffic(steps: list[list[list[int]]], slots: int) -> None:
    """Against a plain model: the slots hold the distinct ids outside the static rows that were emitted last."""
    static = list(range(0, TOTAL, 5))
    hot = drafter(static, slots, count_emitted=True)
    held: list[int] = []
    observed = missed = accepted = 0
    emitted: list[int] = []
    for step in steps:
        width = max(map(len, step))
        ids = torch.tensor([row + [-1] * (width - len(row)) for row in step])
        hot.observe(ids, ids >= 0, [])
        tokens = [token for row in step for token in row]
        missed += sum(token not in static and token not in held for token in tokens)
        observed += len(tokens)
        accepted += sum(len(row) - 1 for row in step)
        emitted += tokens
        for token in tokens:
            if token not in static:
                held = [*(other for other in held if other != token), token][-slots:]
    assert set(hot.head.slot_target_ids.tolist()) - {-1} == set(held)
    counters = dict(zip(COUNTERS, hot.counters.tolist(), strict=True))
    assert (counters["observed"], counters["missed"], counters["accepted"]) == (observed, missed, accepted)
    assert hot.emitted is not None
    assert hot.emitted.tolist() == np.bincount(emitted, minlength=TOTAL).tolist()
    assert hot.check() == []


def test_an_accepted_draft_is_no_miss_when_a_prompt_takes_its_slot() -> None:
    hot = drafter([0, 1], slots=1)
    hot.observe(torch.tensor([[9]]), torch.ones(1, 1, dtype=torch.bool), [])
    hot.observe(torch.tensor([[9, 0]]), torch.ones(1, 2, dtype=torch.bool), [torch.tensor([30])])
    assert dict(zip(COUNTERS, hot.counters.tolist(), strict=True)) == {
        "observed": 3,
        "missed": 1,
        "accepted": 1,
        "inserted": 3,
    }


def test_the_check_sees_wrong_slots() -> None:
    hot = drafter([0, 1], slots=3, source=source(bias=True))
    hot.observe(torch.tensor([[9, 8]]), torch.ones(1, 2, dtype=torch.bool), [])
    assert hot.check() == []
    held = int((hot.head.slot_target_ids == 9).nonzero())
    hot.head._slot_weight[held, 3] += 1
    assert hot.check() == ["1 slots do not hold the model's rows"]
    hot.head.reload_rows()
    assert hot.check() == []
    hot.head.row_of[40] = 0
    hot.counters[1] = 5
    found = " ".join(hot.check())
    assert "no row holds" in found
    assert "counters contradict" in found


def test_masked_tokens_change_nothing() -> None:
    hot = drafter([0, 1], slots=2, count_emitted=True)
    hot.observe(torch.tensor([[9, 8]]), torch.zeros(1, 2, dtype=torch.bool), [])
    assert hot.counters.tolist() == [0, 0, 0, 0]
    assert hot.head.slot_target_ids.tolist() == [-1, -1]
    assert hot.emitted is not None
    assert int(hot.emitted.sum()) == 0


def test_ids_without_a_row_never_become_hot() -> None:
    """EAGLE-3: the head has rows for the even ids only."""
    row_id_of = torch.full((TOTAL,), -1)
    row_id_of[::2] = torch.arange(TOTAL // 2)
    rows = source(row_id_of=row_id_of, rows=TOTAL // 2)
    hot = drafter([0, 2], slots=3, source=rows)
    hot.observe(torch.tensor([[7, 8]]), torch.ones(1, 2, dtype=torch.bool), [torch.tensor([9, 10, 11])])
    assert set(hot.head.slot_target_ids.tolist()) == {-1, 8, 10}
    hidden = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(3))
    at = int((hot.head.target_ids == 8).nonzero())
    torch.testing.assert_close(hot.logits(hidden)[0, at], hidden[0] @ rows.weight[4])


def test_reloaded_weights_reach_every_hot_row() -> None:
    rows = source(bias=True)
    hot = drafter([2, 3, 5], slots=3, source=rows)
    hot.observe(torch.tensor([[40]]), torch.ones(1, 1, dtype=torch.bool), [])
    rows.weight.normal_(generator=torch.Generator().manual_seed(9))
    assert rows.bias is not None
    rows.bias.fill_(0.5)
    hot.head.reload_rows()
    hidden = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(4))
    held = hot.head.target_ids >= 0
    full = hidden @ rows.weight[:TOTAL].T + 0.5
    torch.testing.assert_close(hot.logits(hidden)[:, held], full[:, hot.head.target_ids[held]])
    assert torch.all(hot.logits(hidden)[:, ~held] == -torch.inf)


RANK = """
import sys, torch
import torch.distributed as dist
from tests_drafter import TOTAL, HIDDEN, Processor, source
from hothead.vllm_plugin.drafter import HotDrafter
from hothead.vllm_plugin.rows import RowSource
from hothead.vocab import DraftVocab
import numpy as np

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)

def all_reduce(x):
    dist.all_reduce(x)
    return x

whole = source(bias=True)
start, stop = (0, 25) if rank == 0 else (25, TOTAL)
padding = torch.full((7, HIDDEN), float("nan"))  # what a shard's padding holds must not matter
weight = torch.cat([whole.weight[start:stop], padding])
bias = torch.cat([whole.bias[start:stop], padding[:, 0]])
shard = RowSource(weight=weight, bias=bias, total=TOTAL, start=start, stop=stop, all_reduce=all_reduce)
vocab = DraftVocab(np.arange(0, TOTAL, 7), TOTAL)
one = HotDrafter(whole, vocab, 5, ("on_miss", "prompt"), Processor())
two = HotDrafter(shard, vocab, 5, ("on_miss", "prompt"), Processor())
generator = torch.Generator().manual_seed(0)
for step in range(20):
    ids = torch.randint(0, TOTAL, (3, 4), generator=generator)
    valid = torch.rand(3, 4, generator=generator) < 0.7
    for hot in (one, two):
        hot.observe(ids, valid, [torch.arange(step, step + 3)])
    hidden = torch.randn(3, HIDDEN, generator=generator)
    assert torch.equal(one.head.target_ids, two.head.target_ids)
    torch.testing.assert_close(one.logits(hidden), two.logits(hidden))
assert two.check() == []
two.head.reload_rows()
torch.testing.assert_close(one.logits(hidden), two.logits(hidden))
assert torch.equal(shard.all_rows()[0], whole.weight[:TOTAL])
dist.barrier()  # a rank that leaves while the other still reads from it ends both
dist.destroy_process_group()
"""


def test_two_ranks_hold_what_one_does(tmp_path: Path) -> None:
    """Each rank has half of the head; static rows and missed rows are gathered over gloo."""
    (tmp_path / "tests_drafter.py").symlink_to(Path(__file__))
    (tmp_path / "rank.py").write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, "rank.py", str(rank), str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
