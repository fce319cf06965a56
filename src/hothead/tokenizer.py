"""The target's tokenizer: finding it, telling it from others, its special tokens and its chat template.

Every id in this module is a target_id. Nothing here imports torch; a GGUF file needs it to be installed,
because transformers reads GGUF through it.
"""

import hashlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import InputError

# A transformers tokenizer. Named loosely: importing transformers for the type alone costs seconds.
Tokenizer = Any
Message = Mapping[str, Any]

PACKAGE_PREFIX = "package:"
HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model")

# Added tokens that models are trained never to emit: they must not fill a small draft vocabulary.
PLACEHOLDER = re.compile(r"reserved|unused|dummy|place.?holder|extra_id|(control|special)_\d+|\[pad\d+\]", re.I)


# --- finding a model or tokenizer -----------------------------------------------------------------


@dataclass(frozen=True)
class ModelSource:
    """Where transformers finds a model: ``from_pretrained(source.location, **source.keywords)``."""

    location: str  # a folder or a Hub name
    gguf_file: str | None = None  # the file in that folder, for GGUF
    tokenizer_file: str | None = None  # set when only a tokenizer.json was named

    @property
    def keywords(self) -> dict[str, str]:
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def resolve_model(spec: str | Path) -> ModelSource:
    """Find the model that ``spec`` names.

    ``spec`` is a folder, a ``.gguf`` file, a ``tokenizer.json``, a Hub name, or ``package:NAME`` for a Python
    package that holds one ``.gguf``. A Hub name is not looked up here.

    Raises:
        InputError: nothing of that name is there, or a folder or package holds no model or several.
    """
    text = str(spec)
    if text.startswith(PACKAGE_PREFIX):
        return _in_package(text.removeprefix(PACKAGE_PREFIX))
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return ModelSource(str(path.parent), gguf_file=path.name)
        if path.suffix == ".json":
            return ModelSource(str(path.parent), tokenizer_file=path.name)
        raise InputError(f"{text}: expected a model folder, a .gguf file or a tokenizer.json")
    if path.suffix not in (".gguf", ".json") and HUB_NAME.fullmatch(text):
        return ModelSource(text)
    raise InputError(f"{text}: no such file or folder, and not the form of a Hub name (owner/name)")


def _in_folder(folder: Path) -> ModelSource:
    if any((folder / name).is_file() for name in MODEL_FILES):
        return ModelSource(str(folder))
    return _one_gguf(folder, f"{folder}: none of {', '.join(MODEL_FILES)} and no .gguf file in this folder")


def _in_package(name: str) -> ModelSource:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise InputError(f"package:{name}: no Python package of that name is installed (pip install {name})")
    return _one_gguf(Path(next(iter(found.submodule_search_locations))), f"package:{name}: no .gguf file in it")


def _one_gguf(folder: Path, otherwise: str) -> ModelSource:
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if not files:
        raise InputError(otherwise)
    if len(files) > 1:
        raise InputError(f"{folder}: several .gguf files ({', '.join(files)}); name one of them")
    return ModelSource(str(folder), gguf_file=files[0])


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """Load the tokenizer that ``spec`` names (see ``resolve_model``).

    Raises:
        InputError: there is none, or its files cannot be read.
    """
    source = resolve_model(spec)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = Path(source.location)
    try:
        if source.tokenizer_file and not (folder / "tokenizer_config.json").is_file():
            return PreTrainedTokenizerFast(tokenizer_file=str(folder / source.tokenizer_file))
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(source.location, **source.keywords)
    except ImportError as error:
        raise InputError(f"{spec}: reading it needs more packages (pip install 'hothead[engine]'): {error}") from error
    except Exception as error:  # tokenizer files fail in as many ways as there are libraries behind them
        kind = "the file" if folder.exists() else f"no such file or folder here, and the Hub name {source.location}"
        raise InputError(f"{spec}: {kind} gives no tokenizer ({_first_line(error)})") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without the bars and advice that transformers prints while it loads; what matters comes as an exception."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the Hub client tells of each retry
    try:
        with redirect_stderr(StringIO()):  # its GGUF reader has a bar of its own
            yield
    finally:
        logging.disable(disabled)
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- the id table ---------------------------------------------------------------------------------


def token_table(tokenizer: Tokenizer) -> dict[int, str]:
    """``{target_id: token}``, added tokens included.

    Left out are the ``[PAD<id>]`` rows that GGUF converters add so that the table is as long as the
    embedding: they are no tokens, and without them a GGUF and a tokenizer.json of one model have one table.
    """
    return {target_id: token for token, target_id in tokenizer.get_vocab().items() if token != f"[PAD{target_id}]"}


def tokenizer_size(tokenizer: Tokenizer) -> int:
    """V_tok: one more than the largest target_id. A model's embedding may have more rows than that."""
    return max(token_table(tokenizer)) + 1


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 (hex) of the id -> token table: equal for one vocabulary wherever it was loaded from.

    Merges and normalisation do not enter: two tokenizers with one table can share a draft vocabulary.
    """
    digest = hashlib.sha256()
    for target_id, token in sorted(token_table(tokenizer).items()):
        digest.update(f"{target_id}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def byte_target_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Tokens that stand for one byte, which spell any text: int64, ascending; empty if there are none.

    Knows sentencepiece's ``<0xNN>`` and the 256 characters of GPT-2's byte-level BPE.
    """
    vocabulary = tokenizer.get_vocab()
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if not any(name in vocabulary for name in names):
        names = list(byte_characters()) if is_byte_level(tokenizer) else []
    return np.array(sorted(vocabulary[name] for name in names if name in vocabulary), dtype=np.int64)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hasattr(tokenizer, "byte_encoder")
    parts = (backend.pre_tokenizer, backend.decoder)
    return any(part is not None and b"ByteLevel" in part.__getstate__() for part in parts)


def byte_characters() -> str:
    """The character that GPT-2's byte-level BPE writes for each byte: printable bytes as they are, the others
    as the characters from U+0100 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(map(chr, printable)) + "".join(chr(256 + index) for index in range(len(others)))


def special_target_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Tokens a draft must always be able to propose: int64, ascending.

    They are the tokenizer's special tokens (bos, eos, pad, unk, ...), its added control tokens (GGUF files
    flag few of them as special) except reserved placeholders, and what the chat template writes between
    turns: turn markers, role names, line breaks.
    """
    added = tokenizer.added_tokens_decoder
    found = {i for i in tokenizer.all_special_ids if i is not None}
    found |= {i for i, token in added.items() if token.special and not PLACEHOLDER.search(token.content)}
    if has_chat_template(tokenizer):
        source = tokenizer.get_chat_template()
        found |= {i for i, token in added.items() if token.content.strip() and token.content in source}
        for glue in _turn_glue(tokenizer):
            found |= set(tokenizer.encode(glue, add_special_tokens=False))
    return np.array(sorted(found), dtype=np.int64)


# --- the chat template ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as the template writes it, and which characters the assistant emits."""

    text: str
    assistant_spans: tuple[tuple[int, int], ...]  # [start, end) in characters, end-of-turn token included

    def mask(self, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
        """Of tokens with these character offsets, those that start in an assistant span: bool [n]."""
        starts = np.array([start for start, _ in offsets], dtype=np.int64)
        mask = np.zeros(len(starts), dtype=bool)
        for start, end in self.assistant_spans:
            mask |= (starts >= start) & (starts < end)
        return mask


@dataclass(frozen=True)
class ChatTokens:
    target_ids: np.ndarray  # int64 [n]
    assistant_mask: np.ndarray  # bool [n], true where the assistant emitted the token


def has_chat_template(tokenizer: Tokenizer) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def chat_text(tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
    """The conversation in the model's own chat template.

    Raises:
        InputError: the tokenizer has no template, or the template refuses these messages.
    """
    if not has_chat_template(tokenizer):
        raise InputError("this tokenizer has no chat template; give plain text, or a tokenizer of a chat model")
    try:
        return tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    except Exception as error:  # jinja errors, and whatever a template's code raises
        raise InputError(f"the chat template refuses these messages ({_first_line(error)})") from error


def chat_ids(tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
    """The conversation as target_ids, in the model's own chat template (errors as ``chat_text``)."""
    text = chat_text(tokenizer, messages, add_generation_prompt)
    return tokenizer.encode(text, add_special_tokens=False)


def chat_ids_and_mask(tokenizer: Tokenizer, messages: Sequence[Message]) -> ChatTokens:
    """A finished conversation as target_ids, and which of them the assistant emitted.

    The mask holds each answer and the end-of-turn token that closes it, not the header before it. Errors as
    ``render_chat``.
    """
    chat = render_chat(tokenizer, messages)
    encoded = tokenizer(chat.text, add_special_tokens=False, return_offsets_mapping=True)
    return ChatTokens(np.array(encoded["input_ids"], dtype=np.int64), chat.mask(encoded["offset_mapping"]))


def render_chat(tokenizer: Tokenizer, messages: Sequence[Message]) -> RenderedChat:
    """Render a finished conversation and find what the assistant wrote in it.

    A template with ``{% generation %}`` says so itself. With any other, an answer starts where the rendering
    of the messages before it (generation prompt included) ends, and goes on to its end-of-turn token.

    Raises:
        InputError: as ``chat_text``, or an answer is not in the rendering.
    """
    text = chat_text(tokenizer, messages, add_generation_prompt=False)
    template = tokenizer.get_chat_template()
    if re.search(r"\{%-?\s*generation\s*-?%\}", template):
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered: Any = render_jinja_template(
            [[dict(message) for message in messages]],
            chat_template=template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        (written,), (generated,) = rendered
        return RenderedChat(written, tuple((int(start), int(end)) for start, end in generated))
    closing = _end_of_turn(tokenizer, template)
    spans: list[tuple[int, int]] = []
    done = 0
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        content = message.get("content")
        answer = content.strip() if isinstance(content, str) else ""
        start = max(done, _answer_start(tokenizer, messages[:index], text, answer, done))
        found = text.find(answer, start)
        end = found + len(answer) if found >= 0 else start  # a template may leave thoughts out of earlier turns
        closed = text.find(closing, end) if closing else -1
        if found < 0 and closed < 0:
            raise InputError(f"the chat template does not write out the answer in message {index}")
        done = end if closed < 0 else closed + len(closing)
        spans.append((start, done))
    return RenderedChat(text, tuple(spans))


def _answer_start(tokenizer: Tokenizer, before: Sequence[Message], text: str, answer: str, done: int) -> int:
    """Where the answer to ``before`` starts in ``text``, the rendering of the whole conversation."""
    if not before:
        return done
    asked = chat_text(tokenizer, before)
    if text.startswith(asked):
        return len(asked)
    if text.startswith(chat_text(tokenizer, before, add_generation_prompt=False)):
        # Earlier answers have another header than the one to come.
        return len(commonprefix([text, asked]))  # noqa: RUF071 - of characters
    # Earlier turns are written differently once there are later ones.
    header = _turn_glue(tokenizer)[0]
    found = text.find(header, done)
    return found + len(header) if header and found >= 0 else text.find(answer, done)


def _turn_glue(tokenizer: Tokenizer) -> tuple[str, str, str]:
    """What the template writes before an answer, after it up to the next turn, and before the next answer.

    The text before the first user turn (system prompt, dates) is left out: no assistant emits it.
    """
    user, answer, again = "hothead asks", "hothead answers", "hothead goes on"
    messages = [
        {"role": "user", "content": user},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": again},
    ]
    return _between(chat_text(tokenizer, messages), user, answer, again)


def _between(text: str, *marks: str) -> tuple[str, str, str]:
    first, second, third = (text.find(mark) for mark in marks)
    if min(first, second, third) < 0:
        raise InputError("the chat template does not write out the messages of a plain conversation")
    return (
        text[first + len(marks[0]) : second],
        text[second + len(marks[1]) : third],
        text[third + len(marks[2]) :],
    )


def end_of_turn(tokenizer: Tokenizer) -> str:
    """The token an assistant ends its answer with, as text; "" if the tokenizer has none."""
    written = _end_of_turn(tokenizer, tokenizer.get_chat_template()) if has_chat_template(tokenizer) else ""
    return written or tokenizer.eos_token or ""


@lru_cache(maxsize=8)
def _end_of_turn(tokenizer: Tokenizer, template: str) -> str:
    """The first control token that ``template`` writes after an answer, or "" if it writes none."""
    glue = _turn_glue(tokenizer)[1]
    words = {token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()}
    found = [(glue.find(word), -len(word), word) for word in words if word in glue]
    return min(found)[2] if found else ""
