"""From paths to curves: every size of every ranking, and dynamic vocabularies, answer by answer in bounded memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hothead.bench.prompts import Prompt
from hothead.dynamic import DynamicConfig
from hothead.engine.sampling import SamplingParams
from hothead.errors import InputError
from hothead.head import LMHead
from hothead.ranking.ranking import TokenRanking
from hothead.replay.curve import AcceptanceCurve, DynamicResult
from hothead.replay.dynamic import DynamicReplay
from hothead.replay.paths import Paths, PromptPath
from hothead.replay.static import StaticReplay
from hothead.replay.tally import Tally
from hothead.vocab import ROW_MULTIPLE, DraftVocab, SelectionOrder

MAX_NUM_STEPS = 16


@dataclass(frozen=True)
class DynamicSetting:
    """One dynamic vocabulary to replay: static rows, slots and policy, as ``DynamicConfig`` has them."""

    size: int
    slots: int
    policy: str


class CurveMeasurement:
    """Replays a prompt set under every size of every ranking and under the dynamic vocabularies asked for.

    Args:
        lm_head: the draft's, with V rows.
        rankings: by name.
        num_steps: every k wanted.
        params: of the answers, and of the draft.
        dynamic: replayed for every ranking and k, each with a vocabulary of its own that lasts to the last prompt.
        multiple_of: sizes are multiples of this, as ``DraftVocab.from_ranking`` rounds them; 1: every number of rows.

    Attributes:
        orders: in which each ranking's ids enter a vocabulary.
        sizes: int64 [S], ascending; V is the last.
        dynamic_s: seconds spent on dynamic vocabularies.
        skipped: prompts without an answer, and why.

    Raises:
        InputError: a k or size out of range, or a policy that cannot be replayed.
    """

    def __init__(
        self,
        lm_head: LMHead,
        rankings: Mapping[str, TokenRanking],
        prompts: Sequence[Prompt],
        num_steps: Sequence[int],
        params: SamplingParams,
        dynamic: Sequence[DynamicSetting] = (),
        multiple_of: int = ROW_MULTIPLE,
    ) -> None:
        check_num_steps(num_steps)
        if multiple_of < 1:
            raise InputError(f"sizes are multiples of 1 or more; found {multiple_of}")
        total = lm_head.vocab_size
        self.orders = {name: SelectionOrder.of(ranking, total) for name, ranking in rankings.items()}
        self.sizes = min((order.sizes(multiple_of) for order in self.orders.values()), key=len)
        self.static = StaticReplay(lm_head, list(self.orders.values()), self.sizes, num_steps, params)
        groups = [prompt.group for prompt in prompts]
        self._tallies = {(name, k): Tally(groups, k, len(self.sizes)) for name in rankings for k in num_steps}
        self._replays: dict[tuple[str, int, DynamicSetting], DynamicReplay] = {}
        for name, ranking in rankings.items():
            for setting in dynamic:
                vocab = DraftVocab.from_ranking(
                    ranking, size=setting.size, target_vocab_size=total, multiple_of=multiple_of
                )
                config = DynamicConfig(setting.slots, setting.policy, ranking.counts)
                for k in num_steps:
                    self._replays[name, k, setting] = DynamicReplay(lm_head, vocab, config, k, params)
        self._dynamic_tallies = {key: Tally(groups, key[1], 1) for key in self._replays}
        self.dynamic_s = 0.0
        self.answers = 0
        self.skipped: list[str] = []

    def run(self, paths: Paths) -> Iterator[PromptPath]:
        """Replay every path and yield it, done."""
        for path in paths:
            if path.answer is None:
                self.skipped.append(f"prompt {path.prompt.id}, turn {path.turn + 1}: {path.skipped}")
            else:
                self._add(path)
            yield path

    def _add(self, path: PromptPath) -> None:
        assert path.answer is not None
        self.answers += 1
        tokens = len(path.answer.path)
        found = iter(replayed for of_ranking in self.static.replay(path.answer) for replayed in of_ranking)
        for tally in self._tallies.values():  # rankings, and k within them: the order of the replays
            tally.add(path.number, tokens, next(found))
        start = time.perf_counter()
        for key, replay in self._replays.items():
            self._dynamic_tallies[key].add(path.number, tokens, replay.replay(path.answer))
        self.dynamic_s += time.perf_counter() - start

    @property
    def groups(self) -> tuple[str, ...]:
        """Task groups, the one that holds all prompts last."""
        return next(iter(self._tallies.values())).group_names

    def curves(self) -> tuple[AcceptanceCurve, ...]:
        """Every ranking, k and group that has tokens.

        Raises:
            InputError: no answer has any.
        """
        if not any(tally.tokens.any() for tally in self._tallies.values()):
            raise InputError("no answer goes past its first token: nothing was drafted. Allow more new tokens")
        return tuple(
            AcceptanceCurve.of(name, k, group, tally)
            for (name, k), whole in self._tallies.items()
            for group in self.groups
            if len((tally := whole.of(group)).tokens)
        )

    def dynamic(self) -> tuple[DynamicResult, ...]:
        """Every dynamic vocabulary and group that has tokens, against the full vocabulary of the same k."""
        found = []
        for (name, k, setting), whole in self._dynamic_tallies.items():
            column = int(np.searchsorted(self.sizes, setting.size))
            size = int(self.sizes[column])
            about = {"ranking": name, "num_steps": k, "size": size, "slots": setting.slots, "policy": setting.policy}
            for group in self.groups:
                tally = whole.of(group)
                if len(tally.tokens):
                    rounds = self._tallies[name, k].of(group).rounds
                    found.append(DynamicResult.of(about, group, tally, rounds[:, -1], rounds[:, column]))
        return tuple(found)


def check_num_steps(num_steps: Sequence[int]) -> None:
    """
    Raises:
        InputError: no k, one twice, or one out of range.
    """
    if not num_steps or len(set(num_steps)) < len(num_steps):
        raise InputError(f"name at least one number of drafted tokens, each once; found {list(num_steps)}")
    for k in num_steps:
        if not 1 <= k <= MAX_NUM_STEPS:
            raise InputError(f"drafted tokens per round must be between 1 and {MAX_NUM_STEPS}; found {k}")
