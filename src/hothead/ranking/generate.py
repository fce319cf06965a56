"""Letting a target loaded here answer prompts: transformers' own ``generate``, in batches padded on the left."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hothead.errors import InputError
from hothead.ranking.answers import Answer, AnswerLog, Prompt
from hothead.tokenizer import (
    Tokenizer,
    chat_ids,
    fingerprint,
    has_chat_template,
    quiet_transformers,
    resolve_model,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: from the model's whole distribution at ``temperature``, 0 being greedy."""

    temperature: float = 0.0
    max_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.max_tokens < 1:
            raise InputError(
                f"temperature must be at least 0 and max tokens at least 1, found {self.temperature} "
                f"and {self.max_tokens}"
            )

    def __str__(self) -> str:
        drawn = f"temperature {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"
        return f"{drawn}, at most {self.max_tokens} tokens"


class LocalModel:
    """A causal language model that transformers loads, with the tokenizer it speaks.

    Raises:
        InputError: torch is not installed, or ``spec`` is no model transformers can load.
    """

    def __init__(self, spec: str | Path, tokenizer: Tokenizer):
        try:
            import torch
        except ImportError as error:
            raise InputError("running a model needs torch: pip install 'hothead[engine]'") from error
        from transformers import AutoModelForCausalLM

        source = resolve_model(spec)
        arguments: dict[str, Any] = {"dtype": "auto", **source.keywords}
        if torch.cuda.is_available():
            arguments["device_map"] = "auto"
        if source.gguf_file:  # plain weights: packed ones are unpacked again for every token
            from transformers import GgufConfig

            arguments |= {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
        try:
            with quiet_transformers():
                model: Any = AutoModelForCausalLM.from_pretrained(source.location, **arguments)
        except Exception as error:
            raise InputError(f"{spec}: not a model transformers can load ({str(error).splitlines()[0]})") from error
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = self.model.config.get_text_config()
        self.context: int = getattr(config, "max_position_embeddings", 0) or 1 << 20
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.stop_ids = frozenset(i for i in [*ends, tokenizer.eos_token_id] if i is not None)

    def answer(self, prompts: Sequence[list[int]], sampling: Sampling, seed: int) -> list[Answer]:
        """Answer a batch of prompts, each given as target_ids."""
        import torch

        pad = self.tokenizer.pad_token_id
        if pad is None:
            pad = next(iter(sorted(self.stop_ids)), 0)
        width = max(map(len, prompts))
        padded = [[pad] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        drawing: dict[str, Any] = {"do_sample": False}
        if sampling.temperature:
            torch.manual_seed(seed)
            drawing = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            out: torch.Tensor = self.model.generate(
                input_ids=torch.tensor(padded, device=self.model.device),  # [B, width]
                attention_mask=torch.tensor(mask, device=self.model.device),
                max_new_tokens=sampling.max_tokens,
                pad_token_id=pad,
                eos_token_id=sorted(self.stop_ids) or None,
                **drawing,
            )
        return [self._answer(row) for row in out[:, width:].tolist()]

    def _answer(self, row: list[int]) -> Answer:
        """The part of an output row up to its end-of-turn token, that one included."""
        end = next((i + 1 for i, target_id in enumerate(row) if target_id in self.stop_ids), None)
        text = self.tokenizer.decode(row[:end], skip_special_tokens=True)
        return Answer(tuple(row[:end]), text, finished=end is not None)


def generation_settings(spec: str | Path, tokenizer: Tokenizer, sampling: Sampling) -> dict[str, Any]:
    """What an answer depends on besides its prompt: the key under which it is logged."""
    return {"model": Path(spec).name, "tokenizer": fingerprint(tokenizer), **asdict(sampling)}


def generate_answers(
    prompts: Sequence[Prompt],
    model: LocalModel,
    log: AnswerLog,
    sampling: Sampling,
    batch_size: int = 8,
    on_answers: Callable[[list[Answer]], None] | None = None,
) -> None:
    """Answer every turn of every prompt that ``log`` has no answer to, and log each batch as it is done.

    First turns come first, then second turns (which see the answers to the first). A prompt that leaves no room for
    an answer in the model's context is logged as skipped.
    """
    keys = log.keys(prompts)
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        waiting: list[tuple[str, list[int]]] = []
        for key, prompt in zip(keys, prompts, strict=True):
            answers = log.answers(key)
            if len(answers) != turn or log.is_done(key, prompt):
                continue
            ids = _prompt_ids(model.tokenizer, prompt, [answer.text for answer in answers])
            if len(ids) + sampling.max_tokens > model.context:
                reason = f"{len(ids)} prompt tokens and {sampling.max_tokens} more exceed {model.context}"
                log.add(key, turn, Answer(skipped=reason))
            else:
                waiting.append((key, ids))
        for batch in _batches(waiting, batch_size):
            seed = _seed(sampling.seed, turn, [key for key, _ in batch])
            answered = model.answer([ids for _, ids in batch], sampling, seed)
            for (key, _), answer in zip(batch, answered, strict=True):
                log.add(key, turn, answer)
            if on_answers:
                on_answers(answered)


def _prompt_ids(tokenizer: Tokenizer, prompt: Prompt, answers: list[str]) -> list[int]:
    if not has_chat_template(tokenizer) and not prompt.history and len(prompt.turns) == 1:
        return tokenizer.encode(prompt.turns[0])  # a base model continues the text
    return chat_ids(tokenizer, prompt.messages(answers))


def _batches(waiting: list[tuple[str, list[int]]], size: int) -> Iterator[list[tuple[str, list[int]]]]:
    """Prompts of like lengths together, so that little is spent on padding; at most ``size`` in a batch."""
    batch: list[tuple[str, list[int]]] = []
    for item in sorted(waiting, key=lambda item: len(item[1])):
        if batch and (len(batch) == size or len(item[1]) > 2 * len(batch[0][1]) + 64):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _seed(seed: int, turn: int, keys: list[str]) -> int:
    """A seed of this batch alone, so that a resumed run does not draw the numbers of the first again."""
    return int.from_bytes(hashlib.sha256(f"{seed} {turn} {keys}".encode()).digest()[:4], "big")
