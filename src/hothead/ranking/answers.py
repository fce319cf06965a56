"""Letting a model answer prompts and counting what it says: the prompts, and the log that nothing is asked twice of.

A model's own output is what a draft has to predict, so it makes a better ranking than any text about the same things.
``generate.py`` asks a model loaded here, ``endpoint.py`` a running server; both write the answers to one log.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hothead.errors import InputError
from hothead.ranking.records import ChatRecord, IdsRecord, PromptRecord, Record, TextRecord
from hothead.tokenizer import Message, Tokenizer, end_of_turn


@dataclass(frozen=True)
class Prompt:
    """User turns to ask one after the other, after what was said before them."""

    turns: tuple[str, ...]
    history: tuple[Mapping[str, Any], ...] = ()

    def messages(self, answers: Iterable[str]) -> list[Message]:
        """The conversation up to the first turn that ``answers`` does not answer."""
        said: list[Message] = list(self.history)
        for turn, answer in zip(self.turns, answers, strict=False):
            said += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        asked = (len(said) - len(self.history)) // 2
        return [*said, {"role": "user", "content": self.turns[asked]}]


def prompts_of(records: Iterable[Record]) -> list[Prompt]:
    """The prompts of a corpus: texts, turns, and chats up to their last user message.

    Raises:
        InputError: a record of ids, a chat that no user speaks in, or no prompts at all.
    """
    prompts = []
    for record in records:
        match record:
            case TextRecord():
                prompts.append(Prompt((record.text,)))
            case PromptRecord():
                prompts.append(Prompt(record.turns))
            case ChatRecord():
                asked = [i for i, message in enumerate(record.messages) if message["role"] == "user"]
                if not asked:
                    raise InputError(f"{record.where}: no user message to answer")
                last = record.messages[asked[-1]]["content"]
                prompts.append(Prompt((last,), record.messages[: asked[-1]]))
            case IdsRecord():
                raise InputError(f"{record.where}: prompts must be texts or chats, not token ids")
    if not prompts:
        raise InputError("no prompts: the input is empty")
    return prompts


@dataclass(frozen=True)
class Answer:
    """One answer: target_ids if the model ran here, text if a server gave it; or why there is none."""

    target_ids: tuple[int, ...] | None = None
    text: str = ""
    finished: bool = True  # the model ended its turn, rather than being cut off
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.skipped:
            return {"skipped": self.skipped}
        found: dict[str, Any] = {"text": self.text, "finished": self.finished}
        return found if self.target_ids is None else {**found, "target_ids": list(self.target_ids)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Answer":
        target_ids = value.get("target_ids")
        return cls(
            None if target_ids is None else tuple(target_ids),
            value.get("text", ""),
            value.get("finished", True),
            value.get("skipped", ""),
        )


@dataclass
class AnswerLog:
    """Answers as JSON lines, one appended as each comes in; an interrupted run finds its answers there.

    ``settings`` (model, temperature, ...) enter the key of each answer, so answers of other settings in the same
    file are kept but not used.
    """

    path: Path
    settings: Mapping[str, Any]
    _answers: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):  # the last write was cut off
                self.path.write_bytes(whole)
            for number, line in enumerate(whole.splitlines(), 1):
                try:
                    value = json.loads(line)
                    self._answers[value["key"], value["turn"]] = Answer.from_json(value)
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(
                        f"{self.path} line {number}: not an answer of an earlier run ({error}); "
                        "move the file away to ask everything again"
                    ) from error
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from error

    def keys(self, prompts: Iterable[Prompt]) -> list[str]:
        """A key for each prompt; a prompt that occurs again has another key and is asked again."""
        keys: list[str] = []
        seen: dict[str, int] = {}
        for prompt in prompts:
            identity = {"turns": prompt.turns, "history": prompt.history, **self.settings}
            text = json.dumps(identity, sort_keys=True, ensure_ascii=False, default=str)
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
            seen[digest] = seen.get(digest, 0) + 1
            keys.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
        return keys

    def answers(self, key: str) -> list[Answer]:
        """The answers to the first turns of a prompt, as many as there are."""
        found: list[Answer] = []
        while (key, len(found)) in self._answers:
            found.append(self._answers[key, len(found)])
        return found

    def is_done(self, key: str, prompt: Prompt) -> bool:
        """Whether every turn is answered, or one was skipped (which ends the conversation)."""
        answers = self.answers(key)
        return len(answers) == len(prompt.turns) or any(answer.skipped for answer in answers)

    def add(self, key: str, turn: int, answer: Answer) -> None:
        """
        Raises:
            InputError: the log cannot be written.
        """
        line = json.dumps({"key": key, "turn": turn, **answer.to_json()}, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", errors="surrogatepass") as file:
                file.write(line + "\n")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        self._answers[key, turn] = answer

    def records(self, keys: Iterable[str], tokenizer: Tokenizer) -> Iterator[Record]:
        """What the model said, to be counted: its target_ids, or its text with the end-of-turn token it ended with."""
        closing = end_of_turn(tokenizer)
        for key in keys:
            for turn, answer in enumerate(self.answers(key)):
                where = f"{self.path} answer {key} {turn}"
                if answer.skipped:
                    continue
                if answer.target_ids is not None:
                    yield IdsRecord(answer.target_ids, where)
                else:
                    yield TextRecord(answer.text + (closing if answer.finished else ""), where)

    def skipped(self, keys: Iterable[str]) -> list[str]:
        """Why the prompts that have no full answer have none."""
        return [answer.skipped for key in keys for answer in self.answers(key) if answer.skipped]
