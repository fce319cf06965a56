"""Prompt sets: what a benchmark asks, in groups of tasks.

Read as they come: Spec-Bench's JSON lines (``question_id``, ``category``, ``turns``), GSM8K's parquet (``question``),
HumanEval's JSON lines (``prompt``), JSON lines with ``prompt``, ``messages`` or ``text``, and plain text with one
prompt a line.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hothead.errors import InputError

# Spec-Bench files its 80 two-turn conversations under these; its other categories are groups of their own.
MT_BENCH = "mt_bench"
MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
ID_FIELDS = ("question_id", "task_id", "id")
GROUP_FIELDS = ("category", "group")
TURN_FIELDS = ("question", "prompt", "text", "instruction")


@dataclass(frozen=True)
class Prompt:
    """One conversation to have.

    Attributes:
        id: unique within its set.
        group: the kind of task; results are reported by it.
        turns: what the user says, turn by turn; each is answered before the next is asked.
        history: messages (``role``, ``content``) that come before the first turn, such as a system prompt.
    """

    id: str
    group: str
    turns: tuple[str, ...]
    history: tuple[Mapping[str, str], ...] = ()

    def messages(self, answers: Sequence[str] = ()) -> list[dict[str, str]]:
        """The conversation up to the turn after ``answers``, that turn included."""
        messages = [dict(message) for message in self.history]
        for turn, answer in zip(self.turns, answers, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": self.turns[len(answers)]}]


def read_prompts(path: Path, per_group: int | None = None) -> tuple[Prompt, ...]:
    """Read a prompt set, in file order.

    Args:
        path: ``.parquet``, ``.jsonl`` or ``.json`` (JSON lines, or one list), anything else is plain text.
        per_group: the first so many of each group; None for all.

    Raises:
        InputError: the file is missing, unreadable or empty, a record holds no prompt, or two have one id.
    """
    path = Path(path)
    if per_group is not None and per_group < 1:
        raise InputError(f"prompts per group must be at least 1; found {per_group}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a prompt set (.jsonl, .parquet or plain text)")
    prompts = tuple(
        _prompt_of(record, f"{path}, {where}", path.stem, number)
        for number, (where, record) in enumerate(_records(path), start=1)
    )
    if not prompts:
        raise InputError(f"{path}: holds no prompts")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(f"{path}: two prompts have the id {prompt.id!r}; results are filed by id")
        seen.add(prompt.id)
    return prompts if per_group is None else first_of_each_group(prompts, per_group)


def read_prompt_sets(
    paths: Sequence[Path], per_group: int | None = None, groups: Sequence[str] = ()
) -> tuple[Prompt, ...]:
    """One prompt set, or several as one: then ids begin with their file's name.

    Args:
        groups: keep only these; none: all.

    Raises:
        InputError: as :func:`read_prompts`, or a group that no prompt is in.
    """
    prompts: list[Prompt] = []
    for path in paths:
        found = read_prompts(path, per_group)
        prompts += found if len(paths) == 1 else [replace(p, id=f"{Path(path).stem}/{p.id}") for p in found]
    known = dict.fromkeys(prompt.group for prompt in prompts)
    for group in groups:
        if group not in known:
            raise InputError(f"no prompt is in the group {group!r}; the groups are {', '.join(known)}")
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise InputError(f"two prompt sets have one name among {', '.join(map(str, paths))}; results are filed by it")
    return tuple(prompt for prompt in prompts if not groups or prompt.group in groups)


def first_of_each_group(prompts: Iterable[Prompt], count: int) -> tuple[Prompt, ...]:
    """The first ``count`` prompts of each group, in their order."""
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.group] = taken.get(prompt.group, 0) + 1
        if taken[prompt.group] <= count:
            chosen.append(prompt)
    return tuple(chosen)


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """SHA-256 (hex) of the set: ids, groups, texts and order."""
    content = [[p.id, p.group, p.turns, [dict(message) for message in p.history]] for p in prompts]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def _records(path: Path) -> Iterator[tuple[str, object]]:
    """Each record of a file, and where in it that was."""
    if path.suffix == ".parquet":
        yield from ((f"row {n}", record) for n, record in enumerate(_parquet_rows(path), start=1))
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable UTF-8 text file ({error})") from error
    if path.suffix in (".jsonl", ".json"):
        yield from _json_values(path, text)
    else:
        yield from ((f"line {n}", line.strip()) for n, line in enumerate(text.splitlines(), start=1) if line.strip())


def _json_values(path: Path, text: str) -> Iterator[tuple[str, object]]:
    if path.suffix == ".json" and text.lstrip().startswith("["):
        yield from ((f"item {n}", item) for n, item in enumerate(_parse(text, str(path)), start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", _parse(line, f"{path}, line {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from error


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable parquet file ({error})") from error


def _prompt_of(record: object, where: str, set_name: str, number: int) -> Prompt:
    if isinstance(record, str):
        return Prompt(str(number), set_name, (record,))
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object with a prompt; found {type(record).__name__}")
    group = str(next((record[name] for name in GROUP_FIELDS if record.get(name)), set_name))
    group = MT_BENCH if group in MT_BENCH_CATEGORIES else group
    prompt_id = str(next((record[name] for name in ID_FIELDS if record.get(name) is not None), number))
    if "messages" in record:
        history, turn = _split_messages(record["messages"], where)
        return Prompt(prompt_id, group, (turn,), history)
    return Prompt(prompt_id, group, _turns_of(record, where))


def _turns_of(record: dict[str, Any], where: str) -> tuple[str, ...]:
    if "turns" in record:
        turns = record["turns"]
    else:
        name = next((name for name in TURN_FIELDS if name in record), None)
        if name is None:
            expected = ", ".join(("turns", "messages", *TURN_FIELDS))
            raise InputError(f"{where}: none of the fields {expected}; found {', '.join(sorted(record)) or 'none'}")
        turns = [record[name]]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise InputError(f"{where}: a prompt must be text that is not empty")
    return tuple(turns)


def _split_messages(messages: object, where: str) -> tuple[tuple[dict[str, str], ...], str]:
    """What comes before the last user message, and that message; an answer that follows it is dropped."""
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    ):
        raise InputError(f"{where}: messages must be objects with a role and a content, both text")
    last = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise InputError(f"{where}: no message is from the user")
    history = tuple({"role": m["role"], "content": m["content"]} for m in messages[:last])
    return history, messages[last]["content"]
