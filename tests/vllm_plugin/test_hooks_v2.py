"""Model runner V2: what a round emitted, and the contract with the installed vLLM's classes.

No engine: V2's drafters do not run on a CPU. The speculator here is vLLM's class with a toy model in it.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hothead.errors import InputError
from hothead.vllm_plugin import hooks_v2
from hothead.vllm_plugin.drafter import HotDrafter
from hothead.vllm_plugin.rows import RowSource
from hothead.vocab import DraftVocab

TOTAL, HIDDEN, K = 40, 8, 3


class Processor(nn.Module):
    def forward(self, lm_head: Any, hidden: Tensor) -> Tensor:
        return lm_head.quant_method.apply(lm_head, hidden, bias=None)


def drafter(slots: int = 4) -> HotDrafter:
    weight = torch.randn(TOTAL, HIDDEN, generator=torch.Generator().manual_seed(0))
    vocab = DraftVocab(np.arange(0, TOTAL, 4), TOTAL)
    return HotDrafter(RowSource(weight, total=TOTAL, stop=TOTAL), vocab, slots, ("on_miss", "prompt"), Processor())


def batch(requests: list[list[int]]) -> Any:
    """A batch as V2 has it: request i's tokens in a row of all tokens, state in the slots of a larger table."""
    starts = np.cumsum([0, *map(len, requests)])
    return SimpleNamespace(
        num_reqs=len(requests),
        idx_mapping=torch.arange(len(requests)).flip(0) + 2,
        num_scheduled_tokens=np.array([len(tokens) for tokens in requests]),
        query_start_loc=torch.tensor([*starts, starts[-1]]),  # padded
        query_start_loc_np=starts,
        input_ids=torch.tensor([*(token for tokens in requests for token in tokens), 0, 0], dtype=torch.int32),
    )


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, TOTAL - 1), min_size=K + 1, max_size=K + 1), st.integers(0, K + 1)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, TOTAL - 1),
)
def test_emitted_tokens_are_accepted_drafts_and_the_targets_own(rounds: list[tuple[list[int], int]], own: int) -> None:
    made = batch([tokens for tokens, _ in rounds])
    sampled = torch.tensor([count for _, count in rounds])
    count = len(rounds)
    ids, valid = hooks_v2.emitted_tokens(
        made.input_ids, made.query_start_loc[: count + 1], sampled, torch.full((count,), own), K + 1
    )
    for row, ((tokens, emitted), keep) in enumerate(zip(rounds, valid, strict=True)):
        expected = [*tokens[1:emitted], own] if emitted else []
        assert ids[row][keep].tolist() == expected


@pytest.mark.vllm
def test_the_installed_vllm_is_as_expected() -> None:
    import vllm
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
    from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    for owner in (DraftModelSpeculator, EagleSpeculator, MTPSpeculator, StandaloneARSpeculator):
        hooks_v2.check_contract(owner, InputBatch, vllm.__version__)


def test_another_v2_is_refused() -> None:
    import dataclasses

    class Other:
        def load_model(self, target_model: Any) -> None: ...

        def compute_draft_logits(self, hidden_states: Any, spec_step_idx: int) -> None: ...

        def propose(self, batch: Any) -> None: ...

    @dataclasses.dataclass
    class Batch:
        num_reqs: int

    with pytest.raises(InputError, match=r"Other\.sample_draft is gone"):
        hooks_v2.check_contract(Other, Batch, "9.9")


@pytest.mark.vllm
@pytest.mark.parametrize("slots", [0, 4])
def test_vllms_speculator_drafts_hot_tokens(slots: int) -> None:
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    hot = drafter(slots)
    hidden = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(1))

    class Toy(DraftModelSpeculator):
        def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
            raise NotImplementedError

        def init_cudagraph_manager(self, cudagraph_mode: Any) -> None: ...

        def capture(self) -> None: ...

        def propose(self, input_batch: Any, *arguments: Any, **keywords: Any) -> Tensor:
            none = torch.zeros(0)
            return self.sample_draft(hidden, none, none, none, none, none, None)

    toy = Toy.__new__(Toy)
    toy.num_speculative_steps = K
    toy.acceptance_estimator = None
    toy.use_local_argmax_reduction = False
    hooks_v2.replace_methods(toy, hot, None)
    own = torch.full((8, 1), 7)
    own[3] = 9  # the first request's state is in slot 3, the second's in slot 2
    made = batch([[4, 8, 12, 16], [1, 2, 3, 5, 6, 7, 9]])  # a round, and a piece of a prompt
    drafted = toy.propose(made, {}, {}, hidden, None, torch.tensor([3, 0]), torch.tensor([1, 0]), own)
    # Two drafts were accepted and 9 was the target's own, which no slot held when they were drafted; of the prompt, the
    # last four are in the slots now, then 9.
    assert hot.counters.tolist()[:3] == [3, 1, 2]
    assert set(hot.head.slot_target_ids.tolist()) == (set() if slots == 0 else {5, 6, 7, 9})
    full = hot.full_width_logits(hidden)
    assert torch.equal(drafted, full.argmax(dim=-1))
    assert torch.equal(toy.compute_draft_logits(hidden, 0), full)
    ids = set(hot.head.target_ids.tolist())
    assert set((full[0] > -torch.inf).nonzero().flatten().tolist()) == ids
    toy.propose(made, {}, {}, hidden, None, torch.tensor([3, 0]), torch.tensor([1, 0]), own, dummy_run=True)
    assert hot.counters.tolist()[0] == 3  # a dummy run teaches nothing
    assert hot.check() == []
