"""The loop: draft, verify, commit."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hothead.dynamic import DynamicConfig, HotVocabulary, make_hot_vocabulary
from hothead.engine.draft import propose
from hothead.engine.sampling import SamplingParams, probabilities
from hothead.engine.stopwatch import Profiler, Stopwatch
from hothead.engine.text import TextStream
from hothead.engine.trace import Track
from hothead.engine.tree import DraftShape
from hothead.engine.verify import Proposal, Verdict, verify_greedy, verify_sampled
from hothead.errors import ContextOverflow, InputError
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.models.window import Window, tree_window
from hothead.spans import SAMPLING, span
from hothead.tokenizer import chat_ids
from hothead.vocab import DraftVocab

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


@dataclass
class Stats:
    """What one generation cost. Prefill and its token count in neither rounds nor decode time.

    Attributes:
        prompt_tokens: read.
        new_tokens: emitted, the prefill's token included.
        rounds: verify passes.
        misses: emitted tokens that were not in the draft vocabulary when they were drafted for.
        rows_copied: LM head rows copied to follow the traffic.
        prefill_s: until the first token.
        decode_s: all rounds.
        sections_s: ``decode_s`` by section (``SECTION_LABELS`` of ``spans.py``); if profiled, by ``PROFILE_LABELS``.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    rounds: int = 0
    misses: int = 0
    rows_copied: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sections_s: dict[str, float] = field(default_factory=dict)

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per verify pass, the bonus token included and the prefill's excluded."""
        return (self.new_tokens - 1) / self.rounds if self.rounds else float("nan")

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: tokens after the first over the time they took."""
        return (self.new_tokens - 1) / self.decode_s if self.decode_s else float("nan")


@dataclass(frozen=True)
class Chunk:
    """What one round emitted: ids, the text they release, and how many tokens were drafted for it."""

    target_ids: tuple[int, ...]
    text: str
    drafted: int = 0


@dataclass
class Generation:
    """A finished answer.

    Attributes:
        target_ids: emitted, an end-of-turn token included.
        text: without special tokens, up to a stop string.
        finish_reason: "stop" (end of turn or stop string), "length" or "context".
    """

    target_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    stats: Stats = field(default_factory=Stats)


class SpeculativeDecoder:
    """A target that answers, faster with a draft; the same text with any draft, vocabulary and policy.

    Args:
        target: the model whose text is wanted.
        draft: proposes tokens; None decodes plainly.
        vocab: target ids that the draft may propose; None for all that it can.
        dynamic: slots and policy on top of ``vocab``; None for a static vocabulary.
        shape: how much is drafted in a round; None: a chain of 4 tokens.

    Attributes:
        profile: where the spans of each generation go, finely timed; None, as at first, for none. One generation at a
            time in a process may be profiled.

    Raises:
        TokenizerMismatch: the vocabulary was made for another tokenizer or head.
        InputError: a vocabulary without a draft.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft | None = None,
        vocab: DraftVocab | None = None,
        dynamic: DynamicConfig | None = None,
        shape: DraftShape | None = None,
    ) -> None:
        if draft is None and (vocab is not None or dynamic is not None):
            raise InputError("a draft vocabulary needs a draft; give one, or neither")
        self.target = target
        self.draft = draft
        self.shape = shape or DraftShape()
        self.profile: Track | None = None
        self.hot: HotVocabulary | None = None
        if draft is not None:
            vocab = vocab or draft.vocab or DraftVocab.full(target.vocab_size, target.tokenizer_fingerprint)
            vocab.check_target(target.vocab_size, target.tokenizer_fingerprint)
            self.hot = make_hot_vocabulary(draft.lm_head, vocab, dynamic)

    def new_stopwatch(self) -> Stopwatch:
        """For one generation."""
        device = self.target.device
        return Stopwatch(device) if self.profile is None else Profiler(device, self.profile)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """Answer ``prompt`` (text, token ids or chat messages) and return it whole."""
        stream = self.stream(prompt, params)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> "GenerationStream":
        """Answer ``prompt`` round by round: iterate for :class:`Chunk`, then read ``.result``.

        Raises:
            ContextOverflow: the prompt does not fit the target's context.
            InputError: an empty prompt, or ids outside the vocabulary.
        """
        return GenerationStream(self, self._prompt_ids(prompt), params or SamplingParams())

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        parts: Any = prompt
        if isinstance(prompt, str):
            ids = list(self.target.tokenizer(prompt)["input_ids"])
        elif parts and isinstance(parts[0], Mapping):
            ids = chat_ids(self.target.tokenizer, parts)
        else:
            ids = [int(target_id) for target_id in parts]
        if not ids:
            raise InputError("the prompt is empty; give at least one token")
        if min(ids) < 0 or max(ids) >= self.target.vocab_size:
            raise InputError(f"the prompt holds ids outside the target's 0..{self.target.vocab_size - 1}")
        if len(ids) >= self.target.max_positions:
            raise ContextOverflow(
                f"the prompt has {len(ids)} tokens and the target's context is {self.target.max_positions}; "
                "shorten it to leave room for an answer"
            )
        return ids


class GenerationStream:
    """One answer in the making: iterating runs the rounds; ``result`` is complete when the iteration ends."""

    def __init__(self, decoder: SpeculativeDecoder, prompt_ids: list[int], params: SamplingParams) -> None:
        self._decoder, self._prompt_ids, self._params = decoder, prompt_ids, params
        self._text = TextStream(decoder.target.tokenizer, params.stop)
        self._end_ids = frozenset() if params.ignore_eos else decoder.target.end_target_ids
        # A round may overshoot max_new_tokens, but the context is a wall.
        self._room = decoder.target.max_positions - len(prompt_ids)
        self.result = Generation(stats=Stats(prompt_tokens=len(prompt_ids)))
        self._rounds = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self._rounds

    @torch.inference_mode()
    def _run(self) -> Iterator[Chunk]:
        target, draft, hot = self._decoder.target, self._decoder.draft, self._decoder.hot
        params, stats, device, taps = self._params, self.result.stats, target.device, draft.taps if draft else ()
        generator = torch.Generator(device=device)
        _ = generator.seed() if params.seed is None else generator.manual_seed(params.seed)
        watch = self._decoder.new_stopwatch()
        rows_before = hot.rows_copied if hot else 0
        capacity = min(len(self._prompt_ids) + params.max_new_tokens, target.max_positions) + self._decoder.shape.width

        begin = start = time.perf_counter()
        prompt_ids = torch.tensor(self._prompt_ids, device=device)
        cache = target.new_cache(capacity)
        output = target.forward(prompt_ids, cache, last=1, taps=taps)
        features = output.features
        emitted = self._verify(_nothing(device), output.logits, generator).target_ids
        new_ids = torch.cat([prompt_ids, torch.tensor(emitted, device=device)])  # what the draft has not seen yet
        if draft is not None and hot is not None:
            draft.reset(capacity)
            hot.after_prompt(prompt_ids)
        stats.prefill_s = time.perf_counter() - start
        watch.note("prefill", start, prompt_tokens=stats.prompt_tokens)

        # The clock stops while the consumer holds a chunk.
        start = time.perf_counter()
        proposal = _nothing(device)
        while True:
            chunk, is_over = self._commit(emitted, len(proposal))
            stats.decode_s += time.perf_counter() - start
            watch.note("round" if stats.rounds else "first token", start, emitted=len(emitted))
            yield chunk
            start = time.perf_counter()
            if is_over:
                break
            if draft is not None and hot is not None:
                shape = self._decoder.shape
                steps = min(shape.num_steps, self._room - len(self.result.target_ids))
                proposal = propose(draft, hot.head, new_ids, features, shape, steps, params, generator, watch)
            with watch.section("target_verify"):
                committed = cache.length
                new_ids = torch.cat([new_ids[-1:], proposal.target_ids])
                output = target.forward(new_ids, cache, window=_window(proposal, committed), taps=taps)
                verdict = self._verify(proposal, output.logits, generator)
                cache.keep(committed + 1, verdict.path)
            emitted = verdict.target_ids
            new_ids = torch.tensor(emitted, device=device)
            verified = _verified_rows(proposal, verdict)
            features = output.features[verified]
            stats.rounds += 1
            if hot is not None:
                self._follow(hot, new_ids, output.logits, verified, watch)

        stats.rows_copied = (hot.rows_copied if hot else 0) - rows_before
        watch.note("answer", begin, new_tokens=stats.new_tokens, rounds=stats.rounds)
        stats.sections_s = watch.close(stats.decode_s)

    def _verify(self, proposal: Proposal, target_logits: Tensor, generator: torch.Generator) -> Verdict:
        with span(SAMPLING):
            if self._params.is_greedy:
                return verify_greedy(proposal, target_logits)
            return verify_sampled(proposal, probabilities(target_logits, self._params), generator)

    def _follow(
        self, hot: HotVocabulary, new_ids: Tensor, logits: Tensor, verified: slice | list[int], watch: Stopwatch
    ) -> None:
        """Count what could not be drafted, and let the vocabulary follow what was emitted."""
        self.result.stats.misses += int((hot.head.row_of[new_ids] < 0).sum())
        if hot.is_dynamic:
            with watch.section("vocab_update"):
                hot.after_round(new_ids, logits[verified])

    def _commit(self, emitted: list[int], drafted: int) -> tuple[Chunk, bool]:
        """Append what a round emitted, up to whatever ends the answer."""
        result, kept, text = self.result, [], ""
        for target_id in emitted:
            kept.append(target_id)
            result.target_ids.append(target_id)
            if target_id in self._end_ids:
                result.finish_reason = "stop"
            else:
                text += self._text.push(target_id)
                if self._text.stopped:
                    result.finish_reason = "stop"
                elif len(result.target_ids) == self._params.max_new_tokens:
                    result.finish_reason = "length"
                elif len(result.target_ids) >= self._room:
                    result.finish_reason = "context"
            if result.finish_reason:
                text += self._text.finish()
                break
        result.text = self._text.text
        result.stats.new_tokens = len(result.target_ids)
        return Chunk(tuple(kept), text, drafted), bool(result.finish_reason)


def _window(proposal: Proposal, committed: int) -> Window | None:
    """Where the last committed token and the drafted ones stand; None: one after the other."""
    if proposal.parents is None:
        return None
    root = proposal.parents.new_full((1,), -1)
    return tree_window(torch.cat([root, proposal.parents + 1]), committed)


def _verified_rows(proposal: Proposal, verdict: Verdict) -> slice | list[int]:
    """Rows of the verify pass that stand. A chain's are the first ones: a view, where gathering would copy logits."""
    if proposal.parents is None:
        return slice(len(verdict.target_ids))
    return [0, *(token + 1 for token in verdict.path)]


def _nothing(device: torch.device) -> Proposal:
    return Proposal(torch.empty(0, dtype=torch.int64, device=device))
