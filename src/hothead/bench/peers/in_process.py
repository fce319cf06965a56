"""transformers' own ``generate`` on an untouched copy of the target: plain, assisted, and prompt lookup."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from hothead.bench.compare import Decoder
from hothead.bench.peers.base import Peer, Setup, Whole, whole_answer
from hothead.engine.sampling import SamplingParams
from hothead.models.loading import load_causal_lm
from hothead.tokenizer import quiet_transformers


def transformers_plain(setup: Setup) -> Peer:
    """One token a pass."""
    return _peer(setup, {}, "generate")


def transformers_assisted(setup: Setup) -> Peer:
    """Drafted by the same standalone draft, with transformers' own settings (how many tokens adapts)."""
    return _peer(setup, {}, "generate", "assistant_model", assistant=setup.standalone_draft)


def transformers_lookup(setup: Setup) -> Peer:
    """Drafted by copying what followed the same words in the prompt."""
    tokens = setup.prompt_lookup
    return _peer(setup, {"prompt_lookup_num_tokens": tokens}, "generate", f"prompt_lookup_num_tokens={tokens}")


def _peer(setup: Setup, options: dict[str, Any], *words: str, assistant: str | None = None) -> Peer:
    @contextmanager
    def open_it() -> Iterator[Decoder]:
        model = _copy(setup, setup.target_spec)
        chosen = options if assistant is None else {**options, "assistant_model": _copy(setup, assistant)}
        yield TransformersDecoder(setup, model, chosen)

    return Peer(words, open_it)


def _copy(setup: Setup, spec: str) -> PreTrainedModel:
    """Of a model, shared by the peers: the engine repacks its own."""
    if spec not in setup.loaded:
        model = load_causal_lm(spec, setup.dtype, str(setup.target.device)).eval()
        # A checkpoint's own sampling settings (a repetition penalty, say) would make it another text.
        model.generation_config = GenerationConfig()
        setup.loaded[spec] = model
    return setup.loaded[spec]


class Passes(BaseStreamer):
    """Counts what ``generate`` emits, and when the first of it came."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.first_s = 0.0
        self.first_tokens = 0
        self.count = -1  # generate hands over the prompt before the first pass

    def put(self, value: torch.Tensor) -> None:
        self.count += 1
        if self.count == 1:
            self.first_s, self.first_tokens = time.perf_counter() - self.start, value.numel()

    def end(self) -> None:
        """Nothing is held back."""


class TransformersDecoder:
    """``generate`` as a :class:`hothead.bench.compare.Decoder`."""

    def __init__(self, setup: Setup, model: PreTrainedModel, options: dict[str, Any]) -> None:
        self._setup, self._model, self._options = setup, model, options

    @torch.inference_mode()
    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Whole:
        params = params or SamplingParams()
        target = self._setup.target
        prompt_ids = torch.tensor([list(prompt)], device=target.device)
        end_ids = sorted(target.end_target_ids)
        passes = Passes()
        with quiet_transformers():
            output = self._model.generate(  # type: ignore[operator]
                prompt_ids,
                attention_mask=torch.ones_like(prompt_ids),
                max_new_tokens=params.max_new_tokens,
                do_sample=False,
                eos_token_id=None if params.ignore_eos else end_ids,
                pad_token_id=end_ids[0] if end_ids else 0,
                streamer=passes,
                **self._options,
            )
        seconds = time.perf_counter() - passes.start
        target_ids = output[0, prompt_ids.shape[1] :].tolist()
        # The first pass is the prefill, which emits one token; if it accepted drafts already, it was a round too.
        rounds = passes.count - (passes.first_tokens == 1)
        finish = "stop" if target_ids and target_ids[-1] in target.end_target_ids else "length"
        return whole_answer(
            self._setup, prompt_ids.shape[1], target_ids, finish, rounds, passes.first_s, seconds - passes.first_s
        )
