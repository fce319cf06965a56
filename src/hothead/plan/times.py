"""Times of this machine: the engine answers prompts in many ways in turn; its stopwatch says what took how long.

Plain decoding, the full vocabulary at every k, some sizes, and dynamic vocabularies answer each prompt one after the
other, starting with another one each time, so that drift falls on all of them and each finds the caches as a round
leaves them. A prompt's time is the median over its repeats; the time is the mean over prompts, whose contexts differ,
with a 95 % bootstrap interval over them.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hothead.bench.compare import prompt_ids
from hothead.bench.machine import this_machine, versions
from hothead.bench.prompts import Prompt
from hothead.bench.schema import ModelIdentity
from hothead.bench.stats import CONFIDENCE, RESAMPLES
from hothead.dynamic import FULL_REFRESH, DynamicConfig
from hothead.engine.generate import SpeculativeDecoder, Stats
from hothead.engine.sampling import SamplingParams
from hothead.engine.tree import DraftShape
from hothead.errors import InputError
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.plan.schema import BatchTimes, Times, UpdateTime
from hothead.ranking.ranking import TokenRanking
from hothead.replay.curve import Interval
from hothead.vocab import DraftVocab, SelectionOrder

WARM_UP_TOKENS = 8
HEAD_STEPS = 4  # the k nearest to this times the heads
HALVINGS = 6  # sizes timed: the full vocabulary halved so often


@dataclass(frozen=True)
class TimesConfig:
    """What to time.

    Attributes:
        num_steps: every k that will be planned.
        dynamic: (static rows, slots, policy); one a kind of slots is timed, that with the fewest rows: most misses.
        repeats: of each prompt.
        max_new_tokens: of each answer; an end of turn does not end it.
    """

    num_steps: tuple[int, ...]
    dynamic: tuple[tuple[int, int, str], ...] = ()
    repeats: int = 3
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.max_new_tokens < 2:
            raise InputError(
                f"timing needs at least 1 repeat of 2 new tokens; found {self.repeats} of {self.max_new_tokens}"
            )
        if not self.num_steps or min(self.num_steps) < 1:
            raise InputError(f"timing needs numbers of drafted tokens of at least 1; found {list(self.num_steps)}")


@dataclass(frozen=True)
class _Variant:
    """A way to answer. ``num_steps`` 0: plain; ``rows`` counts slots."""

    num_steps: int
    rows: int = 0
    slots: int = 0
    policy: str = "none"


class TimesMeasurement:
    """Times the engine with one pair of models on some prompts, one sequence at a time.

    Args:
        ranking: what smaller vocabularies are taken from.
        prompts: first turns are answered.
        params: how tokens are chosen; its length and seed are not used.

    Raises:
        TokenizerMismatch: a ranking of another tokenizer.
        InputError: no prompt that leaves room for an answer.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft,
        ranking: TokenRanking,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        config: TimesConfig,
    ) -> None:
        ranking.check_tokenizer(target.tokenizer_fingerprint)
        self._target, self._draft, self._ranking, self._config = target, draft, ranking, config
        asked = [prompt_ids(target, prompt) for prompt in prompts]
        room = target.max_positions - config.max_new_tokens
        self._asked = [ids for ids in asked if len(ids) < room]
        if not self._asked:
            raise InputError(f"no prompt leaves room for {config.max_new_tokens} more tokens in the context")
        self._params = replace(params, max_new_tokens=config.max_new_tokens, seed=params.seed or 0, ignore_eos=True)
        self._head_steps = min(config.num_steps, key=lambda k: (abs(k - HEAD_STEPS), k))
        self._decoders = self._make_decoders()
        self._stats: dict[_Variant, list[list[Stats]]] = {name: [[] for _ in self._asked] for name in self._decoders}

    def __len__(self) -> int:
        return len(self._asked) * self._config.repeats

    def _make_decoders(self) -> dict[_Variant, SpeculativeDecoder]:
        total, k = self._target.vocab_size, self._head_steps
        whole = SpeculativeDecoder(self._target, self._draft, DraftVocab.full(total))
        found = {_Variant(0): SpeculativeDecoder(self._target)}
        for steps in self._config.num_steps:
            found[_Variant(steps, total)] = copy.copy(whole)  # one head for all of them
            found[_Variant(steps, total)].shape = DraftShape(steps)
        least = int(SelectionOrder.of(self._ranking, total).sizes()[0])
        sizes = {max(least, total >> halvings) for halvings in range(1, HALVINGS + 1)}
        fewest_rows: dict[tuple[int, str], int] = {}
        for size, slots, policy in sorted(self._config.dynamic):
            if slots and policy != FULL_REFRESH and size + slots <= total:
                fewest_rows.setdefault((slots, policy), size)
        for (slots, policy), size in fewest_rows.items():
            vocab = self._vocab(size)
            paired = self._vocab(min(total, len(vocab) + slots))  # as many rows, none of them a slot
            sizes.add(len(paired))
            config = DynamicConfig(slots, policy)
            dynamic = SpeculativeDecoder(self._target, self._draft, vocab, config, DraftShape(k))
            found[_Variant(k, len(paired), slots, policy)] = dynamic
        for vocab in map(self._vocab, sorted(sizes)):
            if not vocab.is_full:
                static = SpeculativeDecoder(self._target, self._draft, vocab, None, DraftShape(k))
                found[_Variant(k, len(vocab))] = static
        return found

    def _vocab(self, size: int) -> DraftVocab:
        return DraftVocab.from_ranking(self._ranking, size=size, target_vocab_size=self._target.vocab_size)

    def run(self) -> Iterator[int]:
        """Time all answers; yields the number of tokens after each round of them."""
        warm_up = replace(self._params, max_new_tokens=WARM_UP_TOKENS)
        for decoder in self._decoders.values():
            decoder.generate(self._asked[0], warm_up)
        order = list(self._decoders)
        for number in range(len(self)):
            at, first = number % len(self._asked), number % len(order)
            tokens = 0
            for variant in order[first:] + order[:first]:
                stats = self._decoders[variant].generate(self._asked[at], self._params).stats
                self._stats[variant][at].append(stats)
                tokens += stats.new_tokens
            yield tokens

    def times(self, dtype: str, device: str, target: ModelIdentity, draft: ModelIdentity) -> Times:
        """What was measured, once :meth:`run` is through."""
        return Times(
            machine=this_machine(device),
            dtype=dtype,
            device=device,
            versions=versions(),
            target=target,
            draft=draft,
            answers=len(self),
            batches=(self._batch_times(),),
        )

    def _batch_times(self) -> BatchTimes:
        total, ks = self._target.vocab_size, self._config.num_steps
        whole = [_Variant(k, total) for k in ks]
        heads = {v.rows: v for v in self._decoders if v.num_steps == self._head_steps and not v.slots}
        full = heads[total]
        updates = []
        for variant in self._decoders:
            if variant.slots:
                paired = heads[variant.rows]
                extra = self._following_ms(variant) - self._following_ms(paired)
                ms = _at_least_0(_mean(extra))
                updates.append(UpdateTime(policy=variant.policy, slots=variant.slots, ms=ms))
        return BatchTimes(
            batch=1,
            plain_other_ms=_mean(self._ms(_Variant(0), "other")),
            target_verify_ms={tokens: _mean(ms) for tokens, ms in self._verify_ms(whole).items()},
            draft_extend_ms=_mean(np.mean([self._ms(v, "draft_extend") for v in whole], axis=0)),
            draft_step_ms={
                rows: _mean(self._ms(v, "draft_steps") / max(1, v.num_steps - 1)) for rows, v in sorted(heads.items())
            },
            verify_factor={
                rows: _mean(self._ms(v, "target_verify") / self._ms(full, "target_verify"))
                for rows, v in sorted(heads.items())
            },
            head_ms={rows: _mean(self._ms(v, "draft_head") / v.num_steps) for rows, v in sorted(heads.items())},
            updates=tuple(updates),
            other_ms=_mean(np.mean([self._ms(v, "other") + self._ms(v, "vocab_update") for v in whole], axis=0)),
        )

    def _verify_ms(self, whole: Sequence[_Variant]) -> dict[int, np.ndarray]:
        """The target's pass by tokens, float64 [P].

        Prompts differ in their contexts, which all passes feel alike: what they share is levelled out, or it would
        count as noise of their ratios. The means stay.
        """
        found = {1 + v.num_steps: self._ms(v, "target_verify") for v in (_Variant(0), *whole)}
        shared = np.mean([ms / ms.mean() for ms in found.values()], axis=0)
        return {tokens: ms / shared * (ms.mean() / (ms / shared).mean()) for tokens, ms in found.items()}

    def _following_ms(self, variant: _Variant) -> np.ndarray:
        """What a vocabulary costs a round: its head, and following the traffic."""
        return self._ms(variant, "vocab_update") + self._ms(variant, "draft_head")

    def _ms(self, variant: _Variant, section: str) -> np.ndarray:
        """Of a round, float64 [P]: a prompt's median over its repeats."""
        of_prompts = self._stats[variant]
        return np.array([np.median([1000 * s.sections_s[section] / s.rounds for s in stats]) for stats in of_prompts])


def _mean(values: np.ndarray) -> Interval:
    """Over prompts, [P]; no interval of one prompt."""
    value = float(values.mean())
    if len(values) < 2:
        return Interval(value=value)
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def _at_least_0(found: Interval) -> Interval:
    """Noise may put a small difference of times below 0."""
    bounds = (None if bound is None else max(0.0, bound) for bound in (found.low, found.high))
    return Interval(value=max(0.0, found.value), low=next(bounds), high=next(bounds))
