"""The head benchmark: every variant is there, does what it is named for, and refuses what it cannot time."""

import time

import numpy as np
import pytest
import torch

from hothead.bench import head as bench
from hothead.bench.ceilings import measure_ceiling
from hothead.bench.head import bench_head, random_lm_head
from hothead.bench.head_results import EMITTED_PER_ROUND, LEAST_ROUNDS, HeadBenchConfig
from hothead.errors import InputError

CONFIG = HeadBenchConfig(sizes=(64, 128), slots=16, repeats=3)


def lm_head() -> bench.LMHead:
    return random_lm_head(320, 16, torch.float32, "cpu")


def test_every_variant_of_every_size_is_timed() -> None:
    timings = bench_head(lm_head(), CONFIG)
    assert [(timing.name, timing.rows) for timing in timings] == [
        ("full", 320),
        ("static 64", 64),
        ("static+slots 64+16", 80),
        ("slot update 64+16", EMITTED_PER_ROUND),
        ("full_refresh update 64", 64),
        ("static 128", 128),
        ("static+slots 128+16", 144),
        ("slot update 128+16", EMITTED_PER_ROUND),
        ("full_refresh update 128", 128),
    ]
    for timing in timings:
        assert timing.median_s.low is not None and timing.median_s.high is not None
        assert 0 < timing.median_s.low <= timing.median_s.value <= timing.median_s.high
        assert (timing.batch, timing.rounds) == (1, 3)
    assert timings[0].times_full.value == timings[0].times_full.low == timings[0].times_full.high == 1


def test_every_batch_times_every_head_and_updates_are_timed_once() -> None:
    rounds: list[int] = []
    timings = bench_head(lm_head(), HeadBenchConfig((64,), 16, (2, 8), 3), lambda: rounds.append(1))
    assert len(rounds) == 6
    assert [(t.variant, t.batch) for t in timings] == [
        *(("full", 2), ("static", 2), ("static+slots", 2), ("slot update", 2), ("full_refresh update", 2)),
        *(("full", 8), ("static", 8), ("static+slots", 8)),
    ]


def test_a_batch_ends_when_its_time_is_up() -> None:
    """Each round takes at least 10 ms: with 1 ms there are the fewest rounds that say something."""
    config = HeadBenchConfig((64,), 16, repeats=1000, max_s=0.001)
    timings = bench_head(lm_head(), config, lambda: time.sleep(0.01))
    assert {timing.rounds for timing in timings} == {LEAST_ROUNDS}


@pytest.mark.parametrize("name", ["full", "static", "static+slots"])
def test_each_call_is_the_work_it_is_named_for(name: str) -> None:
    head = lm_head()
    order = np.random.default_rng(0).permutation(320)
    hidden = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    calls = {"full": next(bench.variants(head, CONFIG))}
    calls |= {v.variant: v for v in bench.variants_of_size(head, CONFIG.slots, order[:64], order[64:])}
    rows = {"full": np.arange(320), "static": order[:64], "static+slots": order[:64]}[name]
    logits = hidden @ head.weight.T
    hot = torch.as_tensor(np.sort(rows))
    found = calls[name].run(hidden, 0)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, hot[logits[:, hot].argmax(dim=-1)])


def test_every_slot_update_misses_all_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = bench.make_hot_vocabulary
    monkeypatch.setattr(bench, "make_hot_vocabulary", lambda *a: made.append(make(*a)) or made[-1])
    bench_head(lm_head(), HeadBenchConfig(sizes=(64,), slots=16, repeats=20))
    slots, refresh = made
    rounds = bench.WARM_UP_ROUNDS + 20
    assert slots.rows_copied == rounds * EMITTED_PER_ROUND
    assert refresh.rows_copied == rounds * 64


def test_the_same_weights_come_of_the_same_seed() -> None:
    assert torch.equal(lm_head().weight, lm_head().weight)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": 3}, "slots must be at least 4"),
        ({"batches": (0,)}, "batch must be at least 1"),
        ({"batches": (2, 2)}, "each once"),
        ({"batches": ()}, "found none"),
        ({"repeats": 1}, "repeats must be at least 2"),
        ({"max_s": 0.0}, "max_s must be above 0"),
        ({"sizes": ()}, "at least one number of rows"),
        ({"sizes": (64, 64)}, "each once"),
    ],
)
def test_bad_settings_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        HeadBenchConfig(**changes)


@pytest.mark.parametrize("size", [0, -1, 301, 320])
def test_sizes_that_leave_nothing_to_miss_are_refused(size: int) -> None:
    with pytest.raises(InputError, match="between 1 and 300"):
        bench_head(lm_head(), HeadBenchConfig(sizes=(size,), slots=16))


def test_ceilings_are_those_of_a_machine() -> None:
    """Any machine that runs this reads 100 MB/s and does 100 MFLOP/s, and none reads 100 TB/s from memory."""
    ceiling = measure_ceiling(torch.float32, "cpu", buffer_bytes=1 << 24)
    assert 1e8 < ceiling.read_bytes_per_s < 1e14
    assert 1e8 < ceiling.gemm_flops_per_s < 1e17
    assert ceiling.buffer_bytes == 1 << 24
