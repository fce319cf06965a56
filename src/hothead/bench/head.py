"""Latency of the draft's LM head: full, static, with slots, and what keeping a head hot costs per round.

The time of a head does not depend on its values, so random weights of a model's shape stand for the model. All
variants are timed in turn, once a round in rotating order: drift falls on all of them, and each finds the caches as
the others left them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hothead.bench.stats import Estimate, median, median_ratio
from hothead.dynamic import DynamicConfig, make_hot_vocabulary
from hothead.errors import InputError
from hothead.head import HotHead, LMHead
from hothead.vocab import DraftVocab

WARM_UP_ROUNDS = 5
EMITTED_PER_ROUND = 4  # tokens that an update is given, all of them missing: its worst common case

FULL = "full"
STATIC = "static"
SLOTS = "static+slots"
SLOT_UPDATE = "slot update"
FULL_REFRESH = "full_refresh update"


@dataclass(frozen=True)
class HeadBenchConfig:
    """What to time.

    Attributes:
        sizes: Vd, static rows of each pruned head.
        slots: D, dynamic rows beside them.
        batch: rows of hidden states per call; one sequence drafts with 1.
        repeats: rounds.
    """

    sizes: tuple[int, ...] = (4096, 8192, 16384)
    slots: int = 512
    batch: int = 1
    repeats: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("slots", EMITTED_PER_ROUND), ("batch", 1), ("repeats", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; found {getattr(self, name)}")
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise InputError("sizes must name at least one number of rows, each once")


@dataclass(frozen=True)
class HeadTiming:
    """One variant.

    Attributes:
        name: of the variant.
        rows: of the LM head that a call reads, or (updates) copies.
        median_s: of one call, over the rounds.
        times_full: its time over the full head's.
    """

    name: str
    rows: int
    median_s: float
    times_full: Estimate


def random_lm_head(vocab_size: int, hidden_size: int, dtype: torch.dtype, device: str, seed: int = 0) -> LMHead:
    """A head of V rows of H random values."""
    generator = torch.Generator(device=device).manual_seed(seed)
    weight = torch.randn(vocab_size, hidden_size, generator=generator, dtype=dtype, device=device)
    return LMHead(weight)


@torch.inference_mode()
def bench_head(lm_head: LMHead, config: HeadBenchConfig) -> tuple[HeadTiming, ...]:
    """Time every variant for every size.

    Raises:
        InputError: a size that leaves no ids to miss, or none at all.
    """
    vocab_size = lm_head.vocab_size
    spare = config.slots + EMITTED_PER_ROUND
    for size in config.sizes:
        if not 1 <= size <= vocab_size - spare:
            raise InputError(
                f"sizes must be between 1 and {vocab_size - spare} ({vocab_size} rows less slots); found {size}"
            )
    calls = _calls(lm_head, config)
    order = list(calls)
    synchronize = torch.cuda.synchronize if lm_head.weight.device.type == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(WARM_UP_ROUNDS + config.repeats):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            synchronize()
            start = time.perf_counter()
            calls[name].run(number)
            synchronize()
            if number >= WARM_UP_ROUNDS:
                seconds[name].append(time.perf_counter() - start)
    full = np.array(seconds[FULL])
    return tuple(
        HeadTiming(name, calls[name].rows, median(seconds[name]), median_ratio(np.array(seconds[name]), full))
        for name in order
    )


@dataclass(frozen=True)
class _Call:
    rows: int
    run: Callable[[int], object]  # given the round's number


def _calls(lm_head: LMHead, config: HeadBenchConfig) -> dict[str, _Call]:
    weight = lm_head.weight
    generator = torch.Generator(device=weight.device).manual_seed(config.seed)
    hidden = torch.randn(config.batch, weight.shape[1], generator=generator, dtype=weight.dtype, device=weight.device)
    full = HotHead(lm_head, DraftVocab.full(lm_head.vocab_size))
    calls = {FULL: _Call(lm_head.vocab_size, lambda _: full.argmax(hidden))}
    order = np.random.default_rng(config.seed).permutation(lm_head.vocab_size)
    for size in config.sizes:
        calls |= _calls_of_size(lm_head, config, hidden, order[:size], order[size:])
    return calls


def _calls_of_size(
    lm_head: LMHead, config: HeadBenchConfig, hidden: Tensor, hot_ids: np.ndarray, other_ids: np.ndarray
) -> dict[str, _Call]:
    vocab = DraftVocab.from_target_ids(hot_ids, lm_head.vocab_size)
    size, device = len(vocab), lm_head.weight.device
    static = HotHead(lm_head, vocab)
    with_slots = HotHead(lm_head, vocab, config.slots)
    slots = make_hot_vocabulary(lm_head, vocab, DynamicConfig(config.slots, "on_miss"))
    refresh = make_hot_vocabulary(
        lm_head, vocab, DynamicConfig(0, "full_refresh", np.zeros(lm_head.vocab_size, dtype=np.int64))
    )
    logits = torch.empty(EMITTED_PER_ROUND, 0, device=device)  # neither policy reads them
    # Ids go round past all slots, so that each update misses all of its ids.
    missing = torch.as_tensor(other_ids[: config.slots + EMITTED_PER_ROUND].copy(), device=device)

    def emitted(number: int) -> Tensor:
        at = torch.arange(EMITTED_PER_ROUND, device=device) + number * EMITTED_PER_ROUND
        return missing[at % len(missing)]

    return {
        f"{STATIC} {size}": _Call(size, lambda _: static.argmax(hidden)),
        f"{SLOTS} {size}+{config.slots}": _Call(size + config.slots, lambda _: with_slots.argmax(hidden)),
        f"{SLOT_UPDATE} {size}+{config.slots}": _Call(
            EMITTED_PER_ROUND, lambda number: slots.after_round(emitted(number), logits)
        ),
        f"{FULL_REFRESH} {size}": _Call(size, lambda number: refresh.after_round(emitted(number), logits)),
    }


def parse_sizes(text: str) -> tuple[int, ...]:
    """``"4096,8192"`` as numbers.

    Raises:
        InputError: something else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"sizes are whole numbers joined by commas, as in 4096,8192; found {text!r}") from None


def rows_of(timings: Sequence[HeadTiming]) -> list[tuple[str, str, str, str]]:
    """Cells of a table: variant, rows, microseconds, ratio with its interval."""
    return [
        (
            timing.name,
            str(timing.rows),
            f"{1e6 * timing.median_s:.0f}",
            f"{timing.times_full.value:.3f} [{timing.times_full.low or 0:.3f}, {timing.times_full.high or 0:.3f}]",
        )
        for timing in timings
    ]
