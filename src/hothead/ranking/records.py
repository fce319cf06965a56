"""What a corpus is made of, and how a JSON value becomes a record: field names are guessed from the usual ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hothead.errors import InputError

IDS_FIELDS = ("target_ids", "token_ids", "output_ids", "input_ids", "ids")
CHAT_FIELDS = ("messages", "conversations", "conversation", "chat", "dialogue", "dialog")
TURNS_FIELDS = ("turns",)
PROMPT_FIELDS = ("prompt", "question", "query", "instruction", "input")
ANSWER_FIELDS = ("response", "answer", "completion", "output", "choices", "solution", "canonical_solution")
TEXT_FIELDS = ("text", "content", "body", "document", "code")
KNOWN_FIELDS = IDS_FIELDS + CHAT_FIELDS + TURNS_FIELDS + PROMPT_FIELDS + ANSWER_FIELDS + TEXT_FIELDS + ("request",)

# ShareGPT's names for who speaks.
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


@dataclass(frozen=True)
class TextRecord:
    """A text, counted whole."""

    text: str
    where: str  # for messages: the file, and the line or row in it

    @property
    def size(self) -> int:
        """Characters, roughly: what batches are measured by."""
        return len(self.text)


@dataclass(frozen=True)
class ChatRecord:
    """A conversation: messages with ``role`` and ``content``, at least one of them from the assistant."""

    messages: tuple[dict[str, Any], ...]
    where: str

    @property
    def size(self) -> int:
        return sum(len(message["content"]) for message in self.messages)


@dataclass(frozen=True)
class PromptRecord:
    """User turns without answers, asked one after the other."""

    turns: tuple[str, ...]
    where: str

    @property
    def size(self) -> int:
        return sum(map(len, self.turns))


@dataclass(frozen=True)
class IdsRecord:
    """Saved target_ids, counted whole."""

    target_ids: Sequence[int]
    where: str

    @property
    def size(self) -> int:
        return 4 * len(self.target_ids)  # a token is about four characters


Record = TextRecord | ChatRecord | PromptRecord | IdsRecord


def record_of(value: object, where: str, field: str | None = None) -> Record:
    """Make a record of one JSON value.

    Args:
        value: a string, a list of ids, of messages or of turns, or an object that holds one of these.
        field: the object's field to take, with dots for inner ones (``response.choices.0.text``); None guesses.

    Raises:
        InputError: the value holds nothing known, or not the field.
    """
    if field is not None:
        return _of_content(_lookup(value, field, where), where, field)
    if not isinstance(value, Mapping):
        return _of_content(value, where, None)
    if isinstance(value.get("request"), Mapping):  # a server's log of requests and responses
        value = {**value["request"], **value}
    for read in (_ids_in, _messages_in, _turns_in, _texts_in):
        if (record := read(value, where)) is not None:
            return record
    fields = ", ".join(sorted(map(str, value))) or "none"
    raise InputError(f"{where}: no text, messages, turns or ids in its fields ({fields}); name one with --field")


def _ids_in(value: Mapping[str, Any], where: str) -> Record | None:
    found = next((value[name] for name in IDS_FIELDS if _is_ids(value.get(name))), None)
    return None if found is None else IdsRecord(found, where)


def _messages_in(value: Mapping[str, Any], where: str) -> Record | None:
    names = CHAT_FIELDS + PROMPT_FIELDS
    found = next((value[name] for name in names if _is_messages(value.get(name))), None)
    return None if found is None else _chat(found, _answer_of(value), where)


def _turns_in(value: Mapping[str, Any], where: str) -> Record | None:
    names = TURNS_FIELDS + PROMPT_FIELDS
    found = next((value[name] for name in names if _is_turns(value.get(name))), None)
    return None if found is None else PromptRecord(tuple(found), where)


def _texts_in(value: Mapping[str, Any], where: str) -> Record | None:
    """A prompt with its answer, a prompt or an answer alone, or a text."""
    prompt = "\n\n".join(value[name] for name in PROMPT_FIELDS if isinstance(value.get(name), str) and value[name])
    answer = _answer_of(value)
    if prompt and answer is not None:
        return _chat([{"role": "user", "content": prompt}], answer, where)
    if prompt:
        return PromptRecord((prompt,), where)
    text = answer
    if text is None:
        text = next((value[name] for name in TEXT_FIELDS if isinstance(value.get(name), str)), None)
    return None if text is None else TextRecord(text, where)


def _of_content(content: object, where: str, field: str | None) -> Record:
    if isinstance(content, str):
        return TextRecord(content, where)
    if _is_ids(content):
        return IdsRecord(content, where)  # type: ignore[arg-type]
    if _is_messages(content):
        return _chat(content, None, where)  # type: ignore[arg-type]
    if _is_turns(content):
        return PromptRecord(tuple(content), where)  # type: ignore[arg-type]
    name = f"field {field!r}" if field else "this value"
    raise InputError(f"{where}: {name} is neither text, nor messages, turns or ids ({_short(content)})")


def _lookup(value: object, field: str, where: str) -> object:
    for name in field.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            names = f"; there are: {', '.join(sorted(map(str, value)))}" if isinstance(value, Mapping) else ""
            raise InputError(f"{where}: no field {field!r}{names}")
    return value


def _is_ids(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )


def _is_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and ("role" in item or "from" in item) for item in value)
    )


def _is_turns(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _chat(messages: Sequence[Mapping[str, Any]], answer: str | None, where: str) -> ChatRecord | PromptRecord:
    """A conversation, closed with ``answer`` if its last message is not the assistant's."""
    plain = []
    for message in messages:
        role = str(message["role"] if "role" in message else message["from"])
        content = message.get("content", message.get("value"))
        others = {name: message[name] for name in message if name not in ("role", "from", "content", "value")}
        plain.append({"role": ROLES.get(role, role), "content": _plain_text(content), **others})
    if answer is not None and plain[-1]["role"] != "assistant":
        plain.append({"role": "assistant", "content": answer})
    if all(message["role"] == "user" for message in plain):
        return PromptRecord(tuple(message["content"] for message in plain), where)
    return ChatRecord(tuple(plain), where)


def _plain_text(content: object) -> str:
    """A message's content as text: OpenAI's lists of parts are joined, pictures and the like left out."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _answer_of(value: Mapping[str, Any]) -> str | None:
    for name in ANSWER_FIELDS:
        found = _answer_text(value.get(name))
        if found is not None:
            return found
    return None


def _answer_text(value: object) -> str | None:
    """The text of an answer: a string, a message, or an OpenAI response with choices."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _answer_text(value[0])
    if isinstance(value, Mapping):
        for name in ("choices", "message", "text", "content"):
            if name in value:
                return _answer_text(value[name])
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
