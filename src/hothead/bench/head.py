"""Latency of the draft's LM head: full, static, with slots, and what keeping a head hot costs per round.

The time of a head does not depend on its values, so random weights of a model's shape stand for the model. All
variants are timed in turn, once a round in rotating order: drift falls on all of them, and each finds the caches as
the others left them. Each batch has its own rounds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hothead.bench.ceilings import synchronizer
from hothead.bench.head_results import (
    EMITTED_PER_ROUND,
    FULL,
    FULL_REFRESH,
    HEADS,
    LEAST_ROUNDS,
    SLOT_UPDATE,
    SLOTS,
    STATIC,
    HeadBenchConfig,
    HeadTiming,
)
from hothead.bench.stats import median_estimate, median_ratio
from hothead.dynamic import DynamicConfig, make_hot_vocabulary
from hothead.errors import InputError
from hothead.head import HotHead, LMHead
from hothead.vocab import DraftVocab

WARM_UP_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """One thing to time.

    Attributes:
        variant: one of HEADS or UPDATES.
        rows: that a call reads, or (updates) copies.
        run: given hidden states [B, H] and the round's number.
    """

    variant: str
    size: int
    slots: int
    rows: int
    run: Callable[[Tensor, int], object]


def random_lm_head(vocab_size: int, hidden_size: int, dtype: torch.dtype, device: str, seed: int = 0) -> LMHead:
    """A head of V rows of H random values."""
    generator = torch.Generator(device=device).manual_seed(seed)
    weight = torch.randn(vocab_size, hidden_size, generator=generator, dtype=dtype, device=device)
    return LMHead(weight)


@torch.inference_mode()
def bench_head(
    lm_head: LMHead, config: HeadBenchConfig, after_round: Callable[[], None] = lambda: None
) -> tuple[HeadTiming, ...]:
    """Time every variant of every size at every batch; the updates beside the first batch only.

    Args:
        after_round: called after each timed round.

    Raises:
        InputError: a size that leaves no ids to miss, or none at all.
    """
    check_sizes(config, lm_head.vocab_size)
    weight = lm_head.weight
    everything = list(variants(lm_head, config))
    heads = [variant for variant in everything if variant.variant in HEADS]
    generator = torch.Generator(device=weight.device).manual_seed(config.seed)
    timings: list[HeadTiming] = []
    for batch in config.batches:
        hidden = torch.randn(batch, weight.shape[1], generator=generator, dtype=weight.dtype, device=weight.device)
        timed = everything if batch == config.batches[0] else heads
        timings += _time_batch(timed, hidden, config, after_round)
    return tuple(timings)


def check_sizes(config: HeadBenchConfig, vocab_size: int) -> None:
    """
    Raises:
        InputError: a head of ``vocab_size`` rows has no static head of one of these sizes, with ids left to miss.
    """
    most = vocab_size - config.slots - EMITTED_PER_ROUND
    for size in config.sizes:
        if not 1 <= size <= most:
            raise InputError(f"sizes must be between 1 and {most} ({vocab_size} rows less slots); found {size}")


def _time_batch(
    timed: list[Variant], hidden: Tensor, config: HeadBenchConfig, after_round: Callable[[], None]
) -> list[HeadTiming]:
    synchronize = synchronizer(str(hidden.device))
    seconds: list[list[float]] = [[] for _ in timed]

    def round_of(number: int) -> None:
        first = number % len(timed)
        for index in [*range(first, len(timed)), *range(first)]:
            synchronize()
            start = time.perf_counter()
            timed[index].run(hidden, number)
            synchronize()
            seconds[index].append(time.perf_counter() - start)

    start = time.perf_counter()
    for number in range(WARM_UP_ROUNDS):
        round_of(number)
        if time.perf_counter() - start > config.max_s / 4:
            break
    warm_up = len(seconds[0])
    start = time.perf_counter()
    for number in range(config.repeats):
        round_of(warm_up + number)
        after_round()
        if number + 1 >= LEAST_ROUNDS and time.perf_counter() - start > config.max_s:
            break
    series = [np.array(found[warm_up:]) for found in seconds]
    full = series[next(index for index, variant in enumerate(timed) if variant.variant == FULL)]
    return [
        HeadTiming(
            variant=variant.variant,
            size=variant.size,
            slots=variant.slots,
            batch=len(hidden),
            rows=variant.rows,
            rounds=len(found),
            median_s=median_estimate(found),
            times_full=median_ratio(found, full),
        )
        for variant, found in zip(timed, series, strict=True)
    ]


def variants(lm_head: LMHead, config: HeadBenchConfig) -> Iterator[Variant]:
    """The full head, then the variants of each size."""
    vocab_size = lm_head.vocab_size
    full = HotHead(lm_head, DraftVocab.full(vocab_size))
    yield Variant(FULL, vocab_size, 0, vocab_size, lambda hidden, _: full.argmax(hidden))
    order = np.random.default_rng(config.seed).permutation(vocab_size)
    for size in config.sizes:
        yield from variants_of_size(lm_head, config.slots, order[:size], order[size:])


def variants_of_size(
    lm_head: LMHead, num_slots: int, hot_ids: np.ndarray, other_ids: np.ndarray
) -> tuple[Variant, ...]:
    """Heads of the target ids ``hot_ids``, int64 [Vd], and updates that miss ids of ``other_ids``, int64 [V - Vd]."""
    vocab = DraftVocab.from_target_ids(hot_ids, lm_head.vocab_size)
    size, device = len(vocab), lm_head.weight.device
    static = HotHead(lm_head, vocab)
    with_slots = HotHead(lm_head, vocab, num_slots)
    slots = make_hot_vocabulary(lm_head, vocab, DynamicConfig(num_slots, "on_miss"))
    refresh = make_hot_vocabulary(
        lm_head, vocab, DynamicConfig(0, "full_refresh", np.zeros(lm_head.vocab_size, dtype=np.int64))
    )
    logits = torch.empty(EMITTED_PER_ROUND, 0, device=device)  # neither policy reads them
    # Ids go round past all slots, so that each update misses all of its ids.
    missing = torch.as_tensor(other_ids[: num_slots + EMITTED_PER_ROUND].copy(), device=device)

    def emitted(number: int) -> Tensor:
        at = torch.arange(EMITTED_PER_ROUND, device=device) + number * EMITTED_PER_ROUND
        return missing[at % len(missing)]

    def update_slots(_: Tensor, number: int) -> None:
        slots.after_round(emitted(number), logits)

    def refresh_all(_: Tensor, number: int) -> None:
        refresh.after_round(emitted(number), logits)

    return (
        Variant(STATIC, size, 0, size, lambda hidden, _: static.argmax(hidden)),
        Variant(SLOTS, size, num_slots, size + num_slots, lambda hidden, _: with_slots.argmax(hidden)),
        Variant(SLOT_UPDATE, size, num_slots, EMITTED_PER_ROUND, update_slots),
        Variant(FULL_REFRESH, size, 0, size, refresh_all),
    )
