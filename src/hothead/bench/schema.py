"""Result files of ``hothead compare``: versioned JSON lines that tables, plots and reports read, without torch.

The first line is the header: what was compared, on what, with what. Every other line is an answer, an error in the
place of an answer, or the start of a session. All answers to one turn of one prompt in one repeat form a block; a
block is written as a whole, which is what makes a run resumable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hothead.errors import InputError

FORMAT = "hothead.compare"
VERSION = 1

PLAIN = "plain"  # the target alone: what every other method must equal
FULL = "full"  # the draft with its full vocabulary: what a smaller one is measured against
STATIC = "static"
DYNAMIC = "dynamic"
FULL_REFRESH = "full_refresh"
METHODS = (PLAIN, FULL, STATIC, DYNAMIC, FULL_REFRESH)

# Other engines, as they come, on the same model.
TRANSFORMERS = "transformers"
ASSISTED = "transformers-assisted"  # with the same standalone draft
LOOKUP = "transformers-lookup"  # drafts copied from the prompt
LLAMA_CPP = "llama.cpp"  # our weights in our dtype
LLAMA_CPP_GGUF = "llama.cpp-gguf"  # the target's own GGUF file, as it was quantized
VLLM = "vllm"
VLLM_DRAFT = "vllm-draft"  # with the same draft, its vocabulary whole
PEERS = (TRANSFORMERS, ASSISTED, LOOKUP, LLAMA_CPP, LLAMA_CPP_GGUF, VLLM, VLLM_DRAFT)

# "other": a peer's answer that is not plain decoding's. Other kernels round otherwise, so that is no fault.
Equality = Literal["reference", "equal", "tied", "different", "sampled", "other"]


class Record(BaseModel):
    """Frozen; an unknown or missing field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Machine(Record):
    """Where it ran. ``threads`` is what torch used, ``binding`` what OMP_PROC_BIND said."""

    cpu: str
    cores: int
    threads: int
    memory_gib: float
    accelerator: str = ""
    binding: str = "none"


class ModelIdentity(Record):
    """A model by the last part of its name, and a digest of its files (empty where they are not local)."""

    name: str
    fingerprint: str = ""


class VocabIdentity(Record):
    """The draft vocabulary: Vd of V target ids, and a digest of which."""

    size: int
    target_vocab_size: int
    digest: str
    source: str = ""


class PromptSetIdentity(Record):
    name: str
    prompts: int
    digest: str


class Settings(Record):
    """What was asked for. ``policy`` and ``slots`` are those of the dynamic method."""

    methods: tuple[str, ...]
    repeats: int
    num_steps: int
    draft_topk: int = 1
    num_draft_tokens: int | None = None  # None: a chain's
    draft_p_min: float = 0.0
    verify_p_min: float = 0.0
    tree: str | None = None  # LEVELS/TOPK/TOKENS of the methods named "... tree"
    slots: int
    policy: str
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    profiled: bool = False  # the parts of a pass were timed, which takes time itself


class Header(Record):
    """The first line. Two runs with equal headers measure the same thing, and only such runs may share a file."""

    kind: Literal["header"] = "header"
    format: str = FORMAT
    version: int = VERSION
    versions: dict[str, str]
    machine: Machine
    target: ModelIdentity
    tokenizer_fingerprint: str
    draft: ModelIdentity | None = None
    vocab: VocabIdentity | None = None
    dtype: str
    device: str
    engine_mode: Literal["eager", "compiled"] = "eager"
    prompt_set: PromptSetIdentity
    settings: Settings
    peers: dict[str, tuple[str, ...]] = {}  # how each other engine was run; a word "?" for one that could not be


class Session(Record):
    """A start of the run. The dynamic vocabulary begins anew with each."""

    kind: Literal["session"] = "session"
    started: str  # UTC, ISO 8601
    load_1min: float | None = None  # of the machine, before anything was measured


class Difference(Record):
    """Where an answer first leaves plain decoding's, and what the target's logits say there.

    Both prefixes are fed through the target again, in the passes that each method made. A gap is the logit of the
    token that was emitted minus that of the other method's token.
    """

    position: int  # in the answer
    plain_target_id: int | None = None  # None: the answer was over
    target_id: int | None = None
    plain_gap: float | None = None
    gap: float | None = None
    tolerance: float = 0.0  # how close counts as a tie in this dtype


class Answer(Record):
    """One answer of one method. Times and counts are those of :class:`hothead.engine.generate.Stats`.

    Of a peer they are what it tells; ``answer_s`` is measured here for every method alike.
    """

    kind: Literal["answer"] = "answer"
    prompt_id: str
    group: str
    turn: int
    repeat: int
    method: str
    equality: Equality
    difference: Difference | None = None
    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    rounds: int
    misses: int
    rows_copied: int
    prefill_s: float
    decode_s: float
    sections_s: dict[str, float]
    ids_digest: str
    target_ids: tuple[int, ...] | None = None  # of plain's first repeat, and of every answer that differs from it
    text: str | None = None  # likewise
    answer_s: float | None = None  # from the prompt's ids to the whole answer, as who asks sees it

    @property
    def decoded_tokens(self) -> int:
        """Tokens that ``decode_s`` paid for: all but the first, which prefill emits."""
        return self.new_tokens - 1


class Failure(Record):
    """An answer that did not come."""

    kind: Literal["error"] = "error"
    prompt_id: str
    group: str
    turn: int
    repeat: int
    method: str
    error: str


Outcome = Answer | Failure
_LINE: TypeAdapter[Session | Answer | Failure] = TypeAdapter(
    Annotated[Session | Answer | Failure, Field(discriminator="kind")]
)


@dataclass(frozen=True)
class Results:
    """A result file in memory.

    Attributes:
        blocks: complete ones, by (prompt_id, turn, repeat), in file order.
        dropped: lines of blocks that are not complete; a run that goes on measures these again.
    """

    header: Header
    sessions: tuple[Session, ...]
    blocks: dict[tuple[str, int, int], tuple[Outcome, ...]]
    dropped: int = 0

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(o for block in self.blocks.values() for o in block if isinstance(o, Answer))

    @property
    def own_answers(self) -> tuple[Answer, ...]:
        """Those of our engine's methods."""
        return tuple(answer for answer in self.answers if answer.method not in PEERS)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(o for block in self.blocks.values() for o in block if isinstance(o, Failure))


def to_lines(records: Sequence[Record]) -> str:
    """Records as JSON lines; absent values are left out."""
    return "".join(record.model_dump_json(exclude_none=True) + "\n" for record in records)


def read_results(path: Path) -> Results:
    """Read a result file, finished or not.

    Raises:
        InputError: not such a file, of another version, or damaged (an unfinished last line is no damage).
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the results of hothead compare") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable result file ({error})") from error
    lines = text.split("\n")
    unfinished = lines.pop()  # what comes after the last line break; nothing in a whole file
    if not lines:
        raise InputError(f"{path}: no complete line; expected the results of hothead compare")
    header = _read_header(path, lines[0])
    sessions: list[Session] = []
    found: dict[tuple[str, int, int], dict[str, Outcome]] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            record = _LINE.validate_json(line)
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: not a result record ({_first(error)})") from error
        if isinstance(record, Session):
            sessions.append(record)
            continue
        block = found.setdefault((record.prompt_id, record.turn, record.repeat), {})
        if record.method in block or record.method not in header.settings.methods:
            raise InputError(f"{path}, line {number}: method {record.method!r} is there twice, or not in the header")
        block[record.method] = record
    methods = header.settings.methods
    blocks = {key: tuple(block[m] for m in methods) for key, block in found.items() if len(block) == len(methods)}
    dropped = sum(len(block) for block in found.values() if len(block) < len(methods)) + bool(unfinished)
    return Results(header, tuple(sessions), blocks, dropped)


def _read_header(path: Path, line: str) -> Header:
    try:
        found: Any = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: not a result file of hothead compare (its first line must be a {FORMAT} header)")
    if found.get("version") != VERSION:
        raise InputError(f"{path}: results of version {found.get('version')}; this hothead reads version {VERSION}")
    try:
        return Header.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{path}, line 1: a damaged header ({_first(error)})") from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
