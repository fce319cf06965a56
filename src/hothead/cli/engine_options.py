"""Options that several verbs share, each written once: which models and vocabulary, and how to sample.

A verb takes a whole group of options as one parameter: ``with_options`` turns every parameter annotated with an
option dataclass into one option a field. Nothing here imports torch before a model is wanted, so that help stays
fast; a test holds the defaults to those of the engine's own dataclasses.
"""

import dataclasses
import importlib.util
import inspect
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from hothead.bench.schema import DYNAMIC, FULL, FULL_REFRESH, PLAIN, STATIC
from hothead.cli.common import say
from hothead.errors import InputError
from hothead.threads import Threads, bind_threads, default_threads, threads_now

if TYPE_CHECKING:
    import numpy as np

    from hothead.dynamic import DynamicConfig
    from hothead.engine.generate import SpeculativeDecoder
    from hothead.engine.sampling import SamplingParams
    from hothead.engine.tree import DraftShape
    from hothead.models.draft import Draft
    from hothead.models.target import Target
    from hothead.ranking.ranking import TokenRanking
    from hothead.vocab import DraftVocab

DTYPES = ("bfloat16", "float16", "float32")
ENGINE_MODES = ("auto", "eager", "compiled")
WORTH_COMPILING = 2048  # tokens: what about 15 s of compiling save; measured in docs/engine.md


def option(help: str, *names: str, metavar: str | None = None) -> Any:
    """An option with its one-line help."""
    return typer.Option(*names, help=help, metavar=metavar)


@dataclass(frozen=True)
class EngineOptions:
    """The target, its draft, and the draft's vocabulary."""

    target: Annotated[str | None, option("Folder, .gguf file, Hub name or package:NAME.", metavar="MODEL")] = None
    draft: Annotated[str | None, option("EAGLE folder or a causal LM; none: plain.", metavar="MODEL")] = None
    ranking: Annotated[Path | None, option("Token ranking to take the vocabulary from.", metavar="FILE")] = None
    size: Annotated[int | None, option("Rows to keep, or one of the next three.")] = None
    ratio: Annotated[float | None, option("Share of the rows to keep.")] = None
    pruning_ratio: Annotated[float | None, option("Share of the rows to drop.")] = None
    coverage: Annotated[float | None, option("Share of the ranked tokens to cover.")] = None
    vocab: Annotated[Path | None, option("Draft vocabulary file, in place of --ranking.", metavar="FILE")] = None
    slots: Annotated[int, option("Dynamic rows beside the static ones; 0: static.")] = 512
    policy: Annotated[str, option("What fills the slots: names joined by '+', or none.")] = "on_miss+prompt"
    num_steps: Annotated[int, option("Levels drafted per round.")] = 4
    draft_topk: Annotated[int, option("Tokens kept per level; 1: a chain.")] = 1
    num_draft_tokens: Annotated[int | None, option("Tokens verified per round; none: see docs.")] = None
    draft_p_min: Annotated[float, option("Draft on from paths this likely; 0: always.", metavar="P")] = 0.0
    verify_p_min: Annotated[float, option("Verify paths this likely; 0: all.", metavar="P")] = 0.0
    dtype: Annotated[str, option(f"{', '.join(DTYPES)}.", metavar="NAME")] = "bfloat16"
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, option("On the CPU; none: one per usable core.")] = None
    bind: Annotated[bool, option("Keep each thread on its core.", "--bind")] = False
    engine_mode: Annotated[str, option(f"{', '.join(ENGINE_MODES)}.", metavar="NAME")] = "auto"

    def load(self, tokens: int = 0) -> "Engine":
        """Load everything; the cheap files first, so that a wrong one is noticed at once.

        Args:
            tokens: about how many will be generated; many are worth compiling for.

        Raises:
            HotheadError: an option, file or model cannot be used.
        """
        self._check()
        require_torch()
        if self.bind:
            bind_threads()
        import torch

        from hothead.dynamic import FULL_REFRESH, DynamicConfig
        from hothead.models.loading import load_draft, load_target
        from hothead.ranking.ranking import TokenRanking
        from hothead.vocab import DraftVocab

        self.shape()
        torch.set_num_threads(self.threads or default_threads())
        threads = threads_now(torch.get_num_threads())
        if threads.warning is not None and self.device == "cpu":
            say(f"hothead: {threads.warning}")
        check_device(self.device)
        ranking = None if self.ranking is None else TokenRanking.load(self.ranking)
        vocab = None if self.vocab is None else DraftVocab.load(self.vocab)
        slots = 0 if self.policy == FULL_REFRESH else self.slots
        dynamic = DynamicConfig(slots, self.policy, None if ranking is None else ranking.counts)
        assert self.target is not None  # _check
        mode = self._prepared_mode(tokens)
        target = load_target(self.target, self.dtype, self.device, engine_mode=mode)
        if ranking is not None:
            ranking.check_tokenizer(target.tokenizer_fingerprint)
            vocab = DraftVocab.from_ranking(ranking, **self._sizes(), target_vocab_size=target.vocab_size)
            if vocab.unseen:
                say(
                    f"hothead: the ranking saw fewer than {len(vocab)} ids; {vocab.unseen} of the draft vocabulary "
                    "were filled in by id. Rank more text, or ask for a smaller size"
                )
        if vocab is not None:
            vocab.check_target(target.vocab_size, target.tokenizer_fingerprint)
        draft = None if self.draft is None else load_draft(self.draft, target)
        return Engine(target, draft, vocab, ranking, dynamic, self, threads)

    def shape(self) -> "DraftShape":
        """How much is drafted in a round.

        Raises:
            InputError: no tree has this shape.
        """
        require_torch()
        from hothead.engine.tree import DraftShape

        return DraftShape(self.num_steps, self.draft_topk, self.num_draft_tokens, self.draft_p_min, self.verify_p_min)

    def _prepared_mode(self, tokens: int) -> str:
        """The engine mode to load with, once what it needs is built; eager, with a line, where that cannot be."""
        from hothead import native
        from hothead.models.loading import DTYPES as TORCH_DTYPES

        if self.engine_mode == "eager":
            return "eager"
        reason = native.obstacle(TORCH_DTYPES[self.dtype], self.device)
        if reason is None and not native.is_built() and (self.engine_mode == "compiled" or tokens >= WORTH_COMPILING):
            start = time.perf_counter()
            say("hothead: compiling the engine, once on this machine (some 15 s) ...")
            try:
                native.build()
                say(f"hothead: compiled in {time.perf_counter() - start:.0f} s, kept for the next time")
            except InputError as error:
                reason = str(error)
        if reason is None:
            return self.engine_mode
        if self.engine_mode == "compiled" or tokens >= WORTH_COMPILING:
            say(f"hothead: {reason}; going on eagerly")
        return "eager"

    def _sizes(self) -> dict[str, Any]:
        names = ("size", "ratio", "pruning_ratio", "coverage")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _check(self) -> None:
        if self.target is None:
            raise InputError("give the target: --target FOLDER, FILE.gguf, HUB/NAME or package:NAME")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype must be one of {', '.join(DTYPES)}; found {self.dtype!r}")
        if self.engine_mode not in ENGINE_MODES:
            raise InputError(f"--engine-mode must be one of {', '.join(ENGINE_MODES)}; found {self.engine_mode!r}")
        check_threads(self.threads)
        if self.num_steps < 1:
            raise InputError(f"--num-steps must be at least 1; found {self.num_steps}")
        if self.draft_topk < 1:
            raise InputError(f"--draft-topk must be at least 1; found {self.draft_topk}")
        for name in ("draft_p_min", "verify_p_min"):
            if not 0 <= getattr(self, name) <= 1:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is a probability, from 0 to 1; found {getattr(self, name)}")
        if self.slots < 0:
            raise InputError(f"--slots must be 0 or more; found {self.slots}")
        sizes = self._sizes()
        if self.ranking is not None and self.vocab is not None:
            raise InputError("--ranking and --vocab both give the draft vocabulary; give one of them")
        if self.ranking is None and sizes:
            raise InputError(f"--{next(iter(sizes)).replace('_', '-')} needs a ranking to choose from: give --ranking")
        if self.ranking is not None and len(sizes) != 1:
            raise InputError("with --ranking give exactly one of --size, --ratio, --pruning-ratio, --coverage")
        if (self.ranking is not None or self.vocab is not None) and self.draft is None:
            raise InputError("a draft vocabulary needs a draft: give --draft")


@dataclass(frozen=True)
class Engine:
    """What :class:`EngineOptions` loaded. ``vocab`` None stands for the full vocabulary."""

    target: "Target"
    draft: "Draft | None"
    vocab: "DraftVocab | None"
    ranking: "TokenRanking | None"
    dynamic: "DynamicConfig"
    options: EngineOptions
    threads: Threads

    @property
    def settings(self) -> dict[str, Any]:
        """How it computes, as ``--json`` has it."""
        mode = "compiled" if self.target.is_compiled else "eager"
        return {"mode": mode, "dtype": self.options.dtype, "device": self.options.device, **asdict(self.threads)}

    @property
    def prior_counts(self) -> "np.ndarray | None":
        """The ranking's counts, int64 [V']."""
        return None if self.ranking is None else self.ranking.counts

    @property
    def method(self) -> str:
        """What :meth:`decoder` decodes by, as ``hothead compare`` names it."""
        if self.draft is None:
            return PLAIN
        if self.vocab is None:
            return FULL
        if self.dynamic.policy == FULL_REFRESH:
            return FULL_REFRESH
        return STATIC if self.dynamic.policy == "none" or not self.dynamic.slots else DYNAMIC

    def vocab_of(self, size: int) -> "DraftVocab":
        """The ranking's first ``size`` rows.

        Raises:
            InputError: there is no ranking.
        """
        from hothead.vocab import DraftVocab

        if self.ranking is None:
            raise InputError(f"a vocabulary of {size} rows needs a ranking to choose from: give --ranking")
        return DraftVocab.from_ranking(self.ranking, size=size, target_vocab_size=self.target.vocab_size)

    def decoder(self) -> "SpeculativeDecoder":
        """The decoder that the options ask for."""
        from hothead.engine.generate import SpeculativeDecoder

        dynamic = None if self.draft is None or self.vocab is None else self.dynamic
        return SpeculativeDecoder(self.target, self.draft, self.vocab, dynamic, shape=self.options.shape())


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen, and when to end."""

    temperature: Annotated[float, option("0: greedy.")] = 0.0
    top_p: Annotated[float, option("Keep the likeliest tokens of this total.")] = 1.0
    top_k: Annotated[int, option("Keep this many tokens; 0: all.")] = 0
    seed: Annotated[int | None, option("Of the random numbers; none draws one.")] = None
    max_new_tokens: Annotated[int, option("Tokens per answer at most.", "--max-new-tokens", "-n")] = 512
    stop: Annotated[list[str] | None, option("Text that ends an answer; may be repeated.", metavar="TEXT")] = None

    def params(self) -> "SamplingParams":
        """For the engine.

        Raises:
            InputError: a value out of range.
        """
        require_torch()
        from hothead.engine.sampling import SamplingParams

        return SamplingParams(**{**dataclasses.asdict(self), "stop": tuple(self.stop or ())})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let each parameter of ``command`` that is annotated with an option dataclass be one option a field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        fields = get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            flat.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=fields[field.name],
                )
            )

    def flattened(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    flattened.__name__, flattened.__doc__ = command.__name__, command.__doc__
    flattened.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    flattened.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return flattened


def require_torch() -> None:
    """
    Raises:
        InputError: torch is not installed; the core does without.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("the embedded engine needs torch, which is not installed: pip install 'hothead[engine]'")


def check_threads(threads: int | None) -> None:
    """
    Raises:
        InputError: fewer than 1.
    """
    if threads is not None and threads < 1:
        raise InputError(f"--threads must be at least 1; found {threads}")


def check_device(device: str) -> None:
    """
    Raises:
        InputError: torch does not know the device, or has none of the kind here.
    """
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"--device {device}: not available here ({str(error).splitlines()[0]})") from error
