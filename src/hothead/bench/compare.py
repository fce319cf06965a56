"""The comparison: every method on the same prompts, in turn, and every text checked.

For each turn of each prompt, and each repeat, all methods answer one after another, in an order drawn anew each time,
so that whatever the machine does meanwhile, and whatever a method leaves behind for the next, falls on all. Later turns
go on from plain decoding's answers: every method is always asked the same thing. A method is anything with a
:class:`Decoder`'s ``stream``, another engine too; one that would disturb the others stands still while they answer.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hothead.bench.equality import Answered, Pass, Verdict, judge
from hothead.bench.log import ResultLog
from hothead.bench.methods import DEFAULT_TREE, Method, parse_method
from hothead.bench.order import shuffled
from hothead.bench.prompts import Prompt
from hothead.bench.schema import (
    DYNAMIC,
    FULL,
    FULL_REFRESH,
    PEERS,
    PLAIN,
    Answer,
    Failure,
    Outcome,
    Settings,
    VocabIdentity,
)
from hothead.dynamic import FULL_REFRESH as REFRESH_POLICY
from hothead.dynamic import DynamicConfig
from hothead.engine.generate import Chunk, Generation, SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.engine.trace import Trace
from hothead.engine.tree import DraftShape
from hothead.errors import HotheadError, InputError
from hothead.models.draft import Draft
from hothead.models.target import Target
from hothead.tokenizer import chat_ids, has_chat_template
from hothead.vocab import DraftVocab

WARM_UP_TOKENS = 16
MakeDecoder = Callable[[], "Decoder"]


class Stream(Protocol):
    """An answer in the making: iterate, then read ``result``."""

    @property
    def result(self) -> Generation: ...

    def __iter__(self) -> Iterator[Chunk]: ...


class Decoder(Protocol):
    """What answers a prompt, given as target ids."""

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Stream: ...


@runtime_checkable
class Sleeper(Protocol):
    """A decoder that can be asked only while it is awake."""

    def awake(self) -> AbstractContextManager[None]: ...


def awake(decoder: Decoder) -> AbstractContextManager[None]:
    """Have it ready to be asked, its answer's ``result`` included."""
    return decoder.awake() if isinstance(decoder, Sleeper) else nullcontext()


def decoder_makers(
    names: Sequence[str],
    target: Target,
    draft: Draft | None,
    vocab: DraftVocab | None,
    dynamic: DynamicConfig,
    prior_counts: np.ndarray | None,
    shape: DraftShape,
    *,
    vocab_of: Callable[[int], DraftVocab] | None = None,
    tree: str = DEFAULT_TREE,
) -> dict[str, MakeDecoder]:
    """How to make each method's decoder; all share the target and the draft.

    Args:
        dynamic: slots and policy of the dynamic method.
        prior_counts: a ranking's, int64 [V'], for ``full_refresh``.
        shape: of methods whose names give none.
        vocab_of: the vocabulary of a size, for methods whose names give one; None: there is no ranking.
        tree: the shape that the word stands for.

    Raises:
        InputError: an unknown method, one named twice, or one that lacks a draft, a vocabulary or counts.
    """
    check_methods(names, draft is not None, vocab is not None, prior_counts is not None, tree)

    def maker(method: Method) -> MakeDecoder:
        if method.kind == PLAIN:
            return lambda: SpeculativeDecoder(target)
        drafted = drafted_shape(method, shape)
        if method.kind == FULL:
            return lambda: SpeculativeDecoder(target, draft, shape=drafted)
        kept = vocab if method.size is None or vocab_of is None else vocab_of(method.size)
        config = None
        if method.kind == DYNAMIC:
            config = dynamic if method.slots is None else replace(dynamic, slots=method.slots)
        elif method.kind == FULL_REFRESH:
            config = DynamicConfig(0, REFRESH_POLICY, prior_counts)
        return lambda: SpeculativeDecoder(target, draft, kept, config, drafted)

    return {name: maker(parse_method(name, tree)) for name in names}


def drafted_shape(method: Method, default: DraftShape) -> DraftShape:
    """What a method drafts in a round; ``default`` gives what its name does not.

    Raises:
        InputError: no tree has this shape.
    """
    levels, topk, tokens = method.shape or (default.num_steps, default.topk, default.num_draft_tokens)
    p_min = default.p_min if method.p_min is None else method.p_min
    verify_p_min = default.verify_p_min if method.verify_p_min is None else method.verify_p_min
    return DraftShape(levels, topk, tokens, p_min, verify_p_min)


def check_methods(
    names: Sequence[str], has_draft: bool, has_vocab: bool, has_counts: bool, tree: str = DEFAULT_TREE
) -> None:
    """
    Raises:
        InputError: an unknown method, one named twice, no plain, or one that lacks what it needs.
    """
    methods = [parse_method(name, tree) for name in names]
    for method in methods:
        drafted_shape(method, DraftShape())
    if len(set(names)) < len(names):
        raise InputError(f"a method is named twice: {', '.join(names)}")
    if PLAIN not in names:
        raise InputError(f"{PLAIN} must be among the methods: it is what the others' texts must equal")
    if len(names) > 1 and not has_draft:
        raise InputError(f"{names[1] if names[0] == PLAIN else names[0]} needs a draft: give --draft")
    for name, method in zip(names, methods, strict=True):
        if method.kind in (PLAIN, FULL):
            continue
        if method.size is not None and not has_counts:
            raise InputError(f"{name} takes its rows from a ranking: give --ranking")
        if method.size is None and not has_vocab:
            raise InputError(f"{name} needs a draft vocabulary: give --ranking and a size, or --vocab")
        if method.kind == FULL_REFRESH and not has_counts:
            raise InputError(f"{name} recounts from a ranking: give --ranking, a vocabulary alone has no counts")


def vocab_identity(vocab: DraftVocab) -> VocabIdentity:
    """What a result file says about a draft vocabulary."""
    digest = hashlib.sha256(vocab.target_ids.astype("<i8").tobytes()).hexdigest()
    return VocabIdentity(size=len(vocab), target_vocab_size=vocab.target_vocab_size, digest=digest, source=vocab.source)


def sampling_params(settings: Settings, repeat: int) -> SamplingParams:
    """Of one repeat; each has a seed of its own."""
    return SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=settings.seed + repeat,
        max_new_tokens=settings.max_new_tokens,
        stop=settings.stop,
        ignore_eos=settings.ignore_eos,
    )


@dataclass(frozen=True)
class Block:
    """All methods' outcomes for one turn of one prompt in one repeat; ``plain_text`` goes with it."""

    prompt: Prompt
    turn: int
    repeat: int
    outcomes: tuple[Outcome, ...]
    plain_text: str | None

    @property
    def new_tokens(self) -> int:
        return sum(o.new_tokens for o in self.outcomes if isinstance(o, Answer))


class Comparison:
    """A run over a prompt set, block by block; ``log`` says what is done already.

    Args:
        makers: each method's decoder. Every method is warmed up first on a decoder of its own, so that what it
            learns from the traffic starts with the first prompt.
        trace: takes every method's spans on a track of its own, warm-up apart; None: no profile.
    """

    def __init__(
        self,
        target: Target,
        makers: Mapping[str, MakeDecoder],
        prompts: Sequence[Prompt],
        settings: Settings,
        log: ResultLog,
        trace: Trace | None = None,
    ) -> None:
        self._trace = trace
        self._target, self._makers, self._prompts = target, makers, prompts
        self._settings, self._log = settings, log

    @property
    def num_blocks(self) -> int:
        """Blocks in all, done ones included."""
        return sum(len(prompt.turns) for prompt in self._prompts) * self._settings.repeats

    def run(self) -> Iterator[Block]:
        """Measure, append to the log and yield each block that is not in it yet.

        Raises:
            InputError: the log cannot be written.
        """
        if len(self._log.blocks) == self.num_blocks:
            return
        self._warm_up()
        self._decoders = {name: make() for name, make in self._makers.items()}
        if self._trace is not None:
            for name, decoder in self._decoders.items():
                if isinstance(decoder, SpeculativeDecoder):  # not another engine
                    decoder.profile = self._trace.track(name)
        for prompt in self._prompts:
            answers: list[str] = []
            for turn in range(len(prompt.turns)):
                for repeat in range(self._settings.repeats):
                    if (prompt.id, turn, repeat) in self._log.blocks:
                        continue
                    outcomes = self._block(prompt, turn, repeat, answers)
                    self._log.append(outcomes)
                    yield Block(prompt, turn, repeat, outcomes, self._plain_text(prompt, turn))
                text = self._plain_text(prompt, turn)
                if text is not None:
                    answers.append(text)

    def _warm_up(self) -> None:
        params = replace(sampling_params(self._settings, 0), max_new_tokens=WARM_UP_TOKENS)
        for make in self._makers.values():
            try:
                with awake(decoder := make()):
                    _exhaust(decoder.stream(prompt_ids(self._target, self._prompts[0]), params))
            except HotheadError:
                continue  # the measured run will say so, and file it under its prompt

    def _plain_text(self, prompt: Prompt, turn: int) -> str | None:
        """Plain decoding's answer in the first repeat; None if it failed."""
        plain = self._plain(prompt, turn)
        return None if plain is None else plain.text or ""

    def _plain(self, prompt: Prompt, turn: int) -> Answer | None:
        block = self._log.blocks.get((prompt.id, turn, 0), ())
        return next((o for o in block if isinstance(o, Answer) and o.method == PLAIN), None)

    def _block(self, prompt: Prompt, turn: int, repeat: int, answers: Sequence[str]) -> tuple[Outcome, ...]:
        names = list(self._makers)
        place: dict[str, Any] = {"prompt_id": prompt.id, "group": prompt.group, "turn": turn, "repeat": repeat}
        if len(answers) < turn:
            reason = f"turn {turn} has no answer to go on from"
            return tuple(Failure(**place, method=name, error=reason) for name in names)
        done: dict[str, Replied] = {}
        errors: dict[str, str] = {}
        for name in shuffled(names, self._settings.seed, prompt.id, turn, repeat):
            try:
                done[name] = self._answer(name, prompt, answers, repeat)
            except (HotheadError, RuntimeError, ValueError, IndexError) as error:
                errors[name] = f"{type(error).__name__}: {error}"
        reference = self._reference(prompt, turn, done)
        if reference is None:
            errors |= dict.fromkeys(done, f"{PLAIN} has no answer to compare with")
        ids = prompt_ids(self._target, prompt, answers) if reference is not None else []
        outcomes: list[Outcome] = []
        for name in names:
            if reference is None or name in errors:
                outcomes.append(Failure(**place, method=name, error=errors[name]))
                continue
            replied = done[name]
            if name == PLAIN and repeat == 0:
                verdict = Verdict("reference")
            elif self._settings.temperature > 0:
                verdict = Verdict("sampled")
            elif name in PEERS:
                is_same = replied.answered.target_ids == reference.target_ids
                verdict = Verdict("equal" if is_same else "other")
            else:
                verdict = judge(self._target, ids, reference, replied.answered)
            outcomes.append(_answer_record(place, name, replied, verdict))
        return tuple(outcomes)

    def _answer(self, name: str, prompt: Prompt, answers: Sequence[str], repeat: int) -> "Replied":
        decoder = self._decoders[name]
        ids, params = prompt_ids(self._target, prompt, answers), sampling_params(self._settings, repeat)
        with awake(decoder):
            start = time.perf_counter()
            stream = decoder.stream(ids, params)
            passes = _exhaust(stream)
            seconds = time.perf_counter() - start
            generation = stream.result
        return Replied(generation, seconds, Answered(tuple(generation.target_ids), passes))

    def _reference(self, prompt: Prompt, turn: int, done: Mapping[str, "Replied"]) -> Answered | None:
        """Plain decoding's answer of the first repeat, as the log or this block has it."""
        earlier = self._plain(prompt, turn)
        if earlier is not None and earlier.target_ids is not None:
            return Answered.plainly(earlier.target_ids)
        return done[PLAIN].answered if PLAIN in done else None


@dataclass(frozen=True)
class Replied:
    """A method's answer, the seconds from asking to having it, and the passes that made it."""

    generation: Generation
    seconds: float
    answered: Answered


def _exhaust(stream: Iterable[Chunk]) -> tuple[Pass, ...]:
    """Each chunk's pass."""
    return tuple(Pass(len(chunk.target_ids), 1 + chunk.drafted) for chunk in stream)


def prompt_ids(target: Target, prompt: Prompt, answers: Sequence[str] = (), raw: bool = False) -> list[int]:
    """Target ids of the turn after ``answers``: in the chat template, or (``raw``, or no template) plain text."""
    messages = prompt.messages(answers)
    if not raw and has_chat_template(target.tokenizer):
        return chat_ids(target.tokenizer, messages)
    return list(target.tokenizer("\n".join(message["content"] for message in messages))["input_ids"])


def _answer_record(place: dict[str, Any], name: str, replied: Replied, verdict: Verdict) -> Answer:
    generation, stats = replied.generation, replied.generation.stats
    keeps_text = verdict.equality not in ("equal", "other")
    return Answer(
        **place,
        method=name,
        equality=verdict.equality,
        difference=verdict.difference,
        finish_reason=generation.finish_reason,
        prompt_tokens=stats.prompt_tokens,
        new_tokens=stats.new_tokens,
        rounds=stats.rounds,
        misses=stats.misses,
        rows_copied=stats.rows_copied,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        sections_s=stats.sections_s,
        ids_digest=ids_digest(generation.target_ids),
        target_ids=tuple(generation.target_ids) if keeps_text else None,
        text=generation.text if keeps_text else None,
        answer_s=replied.seconds,
    )


def ids_digest(target_ids: Sequence[int]) -> str:
    """SHA-256 (hex, first half) of target ids in order."""
    return hashlib.sha256(np.asarray(target_ids, dtype="<i8").tobytes()).hexdigest()[:32]
