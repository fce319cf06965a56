"""The target's own answers to a prompt set, read by target and draft; kept on disk, so that a run can go on.

A file's name is the digest of all that decides its contents. Nothing is ever out of date: what does not fit any more is
not found. A damaged file is made again.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hothead.bench.compare import prompt_ids
from hothead.bench.prompts import Prompt
from hothead.engine.generate import SpeculativeDecoder
from hothead.engine.sampling import SamplingParams
from hothead.errors import ContextOverflow
from hothead.files import atomic_path
from hothead.models.draft import Draft
from hothead.replay.teacher import TeacherForced, read_answer

CACHE_VERSION = 1


@dataclass(frozen=True)
class PromptPath:
    """The answer to one turn of one prompt, read by target and draft.

    Attributes:
        number: the prompt's place in its set.
        answer: None if there is no answer, for the reason that ``skipped`` gives.
    """

    prompt: Prompt
    number: int
    turn: int
    answer: TeacherForced | None
    skipped: str = ""


class PathCache:
    """Answers and passes in a folder, by the digest of what they were made from.

    Args:
        folder: None keeps nothing.
        identity: what else decides an answer: the target, its dtype, and so on.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, Any]) -> None:
        self._folder = None if folder is None else Path(folder).expanduser()
        self._identity = {"version": CACHE_VERSION, **identity}

    def key(self, **content: Any) -> str:
        """A name for what ``content`` (JSON values) and the identity decide."""
        text = json.dumps({**self._identity, **content}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]

    def load(self, key: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """What was kept under ``key``; None if nothing is there, or nothing readable."""
        if self._folder is None or not (path := self._folder / f"{key}.safetensors").is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            return None

    def save(self, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """
        Raises:
            InputError: it cannot be written.
        """
        if self._folder is None:
            return
        with atomic_path(self._folder / f"{key}.safetensors") as temporary:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, temporary, dict(metadata))


class Paths:
    """The answers to a prompt set, in order, each turn on top of the answers before it.

    Args:
        decoder: makes the answers that are not in the cache; any draft and vocabulary, as the text is the target's.
        draft: whose states are wanted.
        params: of the answers.
        depth: K, the longest chain wanted.
        draft_identity: the draft's name in the cache.

    Attributes:
        generate_s, pass_s: seconds spent so far on answering, and on passes of target and draft.
        cached: passes that came from the cache.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        draft: Draft,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        depth: int,
        cache: PathCache,
        draft_identity: str = "",
    ) -> None:
        self._decoder, self._target, self._draft = decoder, decoder.target, draft
        self._prompts, self._params, self._depth = prompts, params, depth
        self._cache, self._draft_identity = cache, draft_identity
        self.generate_s = self.pass_s = 0.0
        self.cached = 0

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self._prompts)

    def __iter__(self) -> Iterator[PromptPath]:
        for number, prompt in enumerate(self._prompts):
            answers: list[str] = []
            for turn in range(len(prompt.turns)):
                if len(answers) < turn:
                    yield PromptPath(prompt, number, turn, None, f"turn {turn} has no answer to go on from")
                    continue
                try:
                    asked = prompt_ids(self._target, prompt, answers)
                    key, target_ids, text = self._answer(asked)
                except ContextOverflow as error:
                    yield PromptPath(prompt, number, turn, None, str(error))
                    continue
                answers.append(text)
                yield PromptPath(prompt, number, turn, self._read(key, asked, target_ids))

    def _answer(self, asked: list[int]) -> tuple[str, list[int], str]:
        """The answer's key, ids and text."""
        params = asdict(self._params)
        del params["draft_sampling"]  # the text's distribution is the same
        key = self._cache.key(kind="answer", prompt=asked, params=params)
        kept = self._cache.load(key)
        if kept is not None and "target_ids" in kept[0] and "text" in kept[1]:
            return key, kept[0]["target_ids"].tolist(), kept[1]["text"]
        start = time.perf_counter()
        result = self._decoder.generate(asked, self._params)
        self.generate_s += time.perf_counter() - start
        self._cache.save(key, {"target_ids": torch.tensor(result.target_ids)}, {"text": result.text})
        return key, result.target_ids, result.text

    def _read(self, answer_key: str, asked: list[int], target_ids: list[int]) -> TeacherForced:
        device = self._target.device
        prompt_target_ids, answer_ids = torch.tensor(asked, device=device), torch.tensor(target_ids, device=device)
        digest = hashlib.sha256(np.asarray(target_ids, dtype="<i8").tobytes()).hexdigest()
        key = self._cache.key(kind="pass", answer=answer_key, target_ids=digest, draft=self._draft_identity)
        kept = self._cache.load(key)
        if kept is not None:
            found = _teacher_forced(prompt_target_ids, answer_ids, kept[0])
            if found is not None and found.hidden.shape[1] >= self._depth:
                self.cached += 1
                return found.to_depth(self._depth)
        start = time.perf_counter()
        found = read_answer(self._target, self._draft, prompt_target_ids, answer_ids, self._params, self._depth)
        self.pass_s += time.perf_counter() - start
        tensors = {"hidden": found.hidden, "log_probs": found.log_probs, "top_target_ids": found.top_target_ids}
        self._cache.save(key, tensors, {})
        return found


def _teacher_forced(prompt_target_ids: Tensor, target_ids: Tensor, kept: Mapping[str, Tensor]) -> TeacherForced | None:
    if kept.keys() != {"hidden", "log_probs", "top_target_ids"}:
        return None
    device = target_ids.device
    hidden, top = kept["hidden"].to(device), kept["top_target_ids"].to(device)
    return TeacherForced(prompt_target_ids, target_ids, hidden, kept["log_probs"], top)
