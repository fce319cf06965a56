"""The head benchmark: every variant is there, does what it is named for, and refuses what it cannot time."""

import numpy as np
import pytest
import torch

from hothead.bench import head as bench
from hothead.bench.head import EMITTED_PER_ROUND, HeadBenchConfig, bench_head, parse_sizes, random_lm_head
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
    assert all(timing.median_s > 0 for timing in timings)
    assert timings[0].times_full.value == timings[0].times_full.low == timings[0].times_full.high == 1


def test_each_call_is_the_work_it_is_named_for() -> None:
    head = lm_head()
    order = np.random.default_rng(0).permutation(320)
    hidden = torch.ones(2, 16)
    calls = bench._calls_of_size(head, CONFIG, hidden, order[:64], order[64:])
    logits = hidden @ head.weight.T
    hot = torch.as_tensor(np.sort(order[:64]))
    expected = hot[logits[:, hot].argmax(dim=-1)]
    found = calls["static 64"].run(0)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, expected)


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
        ({"batch": 0}, "batch must be at least 1"),
        ({"repeats": 1}, "repeats must be at least 2"),
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


def test_sizes_are_read() -> None:
    assert parse_sizes("64, 128") == (64, 128)
    with pytest.raises(InputError, match="joined by commas"):
        parse_sizes("64;128")
