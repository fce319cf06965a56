"""Reading a corpus as a stream of records: text, JSON lines, JSON, parquet; packed or not; files, globs, stdin."""

import codecs
import glob
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hothead.errors import InputError
from hothead.ranking.records import KNOWN_FIELDS, Record, TextRecord, record_of

Format = Literal["text", "jsonl", "json", "parquet"]

STDIN = "-"
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
SNIFFED: dict[str, Format] = {"{": "jsonl", "[": "json"}

SPACE = " \t\r\n"
BLOCK_BYTES = 1 << 16
PARQUET_ROWS = 256

# A long text is counted in pieces, cut where tokenizers cut anyway: best between two lines, else after an
# empty line, else before a word's space.
PIECE_CHARS = 1 << 14
PIECE_CHARS_MAX = 1 << 16
CUTS = (re.compile(r"(?<=\S)\n(?=\S)"), re.compile(r"\n(?=\S)"), re.compile(r"(?<=\S)(?=\s\S)"))


class Corpus:
    """Some files as one stream of records, read again from the start by each iteration.

    Args:
        inputs: file names, glob patterns, or ``-`` for standard input.
        format: of every input; None goes by the file name, and for standard input by the first character.
        field: the JSON field or parquet column to take (``record_of``); None guesses.
        lines: each line of a plain text is a record of its own, as in a list of prompts.

    Raises:
        InputError: an input does not exist or is a folder. Iterating raises it for a file that cannot be read.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        format: Format | None = None,
        field: str | None = None,
        lines: bool = False,
    ):
        self.format = format
        self.field = field
        self.lines = lines
        self.files = tuple(file for name in inputs for file in _expand(str(name)))
        self.bytes_total = sum(Path(file).stat().st_size for file in self.files if file != STDIN)
        self._bytes_done = 0
        self._bytes_in_file: Callable[[], int] = int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("standard input" if file == STDIN else Path(file).name for file in self.files)

    @property
    def has_stdin(self) -> bool:
        return STDIN in self.files

    @property
    def bytes_read(self) -> int:
        """How far the running iteration is, in bytes of the files as they are on disk."""
        return self._bytes_done + self._bytes_in_file()

    def identity(self) -> list[object]:
        """Tells this corpus from another, or from itself after a change: paths, sizes, times and options."""
        stats = [(str(Path(file).resolve()), Path(file).stat()) for file in self.files if file != STDIN]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats] + [self.format, self.field]

    def __iter__(self) -> Iterator[Record]:
        self._bytes_done = 0
        for file in self.files:
            if file == STDIN:
                with _readable("standard input"):
                    yield from self._records(sys.stdin.buffer, STDIN, "standard input")
                continue
            with _readable(file), Path(file).open("rb") as raw:
                self._bytes_in_file = raw.tell
                yield from self._records(raw, file, file)
                self._bytes_in_file = int
            self._bytes_done += Path(file).stat().st_size

    def _records(self, raw: BinaryIO, file: str, name: str) -> Iterator[Record]:
        kind = _format_of(file, self.format)
        if kind == "parquet":
            yield from self._parquet_records(raw, name)
            return
        blocks = _blocks(raw, COMPRESSIONS.get(Path(file).suffix))
        if kind is None:
            start = next(blocks, "")
            blocks = chain([start], blocks)
            kind = SNIFFED.get(start.lstrip()[:1], "text") if file == STDIN else "text"
        if kind == "text":
            texts, unit = (_lines(blocks), "line") if self.lines else (_pieces(blocks), "piece")
            for number, text in enumerate(texts, 1):
                if text.strip():
                    yield TextRecord(text, f"{name} {unit} {number}")
        else:
            values = _line_values(blocks, name) if kind == "jsonl" else _json_values(blocks, name)
            for value, where in values:
                yield record_of(value, where, self.field)

    def _parquet_records(self, raw: BinaryIO, name: str) -> Iterator[Record]:
        import pyarrow
        import pyarrow.parquet

        if not raw.seekable():
            raise InputError(f"{name}: parquet needs a file")
        try:
            table = pyarrow.parquet.ParquetFile(raw)
            columns = table.schema_arrow.names
            wanted = [self.field.split(".")[0]] if self.field else list(KNOWN_FIELDS)
            chosen = [column for column in columns if column in wanted]
            if not chosen:
                what = f"column {self.field!r}" if self.field else "column of text, messages, turns or ids"
                raise InputError(f"{name}: no {what}; there are: {', '.join(columns)} (choose one with --field)")
            size, rows, done = Path(name).stat().st_size, max(1, table.metadata.num_rows), 0
            for batch in table.iter_batches(PARQUET_ROWS, columns=chosen):
                self._bytes_in_file = (size * done // rows).__int__
                for value in batch.to_pylist():
                    done += 1
                    yield record_of(value, f"{name} row {done}", self.field)
        except pyarrow.ArrowException as error:
            raise InputError(f"{name}: not a readable parquet file ({error})") from error


def _expand(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or path.is_file():
        return [name]
    if path.is_dir():
        raise InputError(f"{name}: is a folder; name files in it, such as {name.rstrip('/')}/*.jsonl")
    matches = glob.glob(name, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    found = sorted(file for file in matches if Path(file).is_file())
    if not found:
        raise InputError(f"{name}: no such file")
    return found


def _format_of(file: str, chosen: Format | None) -> Format | None:
    """The format of a file, or None where its name does not tell."""
    if chosen is not None:
        return chosen
    suffixes = [suffix for suffix in Path(file).suffixes if suffix not in COMPRESSIONS]
    return SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn what goes wrong while reading ``name`` into an InputError that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text ({error.reason})") from error
    except OSError as error:  # a damaged .gz or .zst too
        raise InputError(f"{name}: cannot be read ({error.strerror or error})") from error


def _blocks(raw: BinaryIO, compression: str | None) -> Iterator[str]:
    """The text of a UTF-8 file in blocks; line ends stay as they are."""
    stream: Any = raw
    if compression:
        import pyarrow

        stream = pyarrow.CompressedInputStream(raw, compression)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while block := stream.read(BLOCK_BYTES):
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Cut a long text into pieces; where depends on the text alone, not on the blocks."""
    text = ""
    for block in blocks:
        text += block
        while len(text) > PIECE_CHARS_MAX:
            found = (pattern.search(text, PIECE_CHARS, PIECE_CHARS_MAX) for pattern in CUTS)
            cut = next((match.end() for match in found if match), PIECE_CHARS_MAX)
            yield text[:cut]
            text = text[cut:]
    if text:
        yield text


def _line_values(blocks: Iterable[str], name: str) -> Iterator[tuple[Any, str]]:
    for number, line in enumerate(_lines(blocks), 1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error})") from error
        yield value, where


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []
    for block in blocks:
        first, *others = block.split("\n")
        parts.append(first)
        for line in others:
            yield "".join(parts)
            parts = [line]
    yield "".join(parts)


def _json_values(blocks: Iterable[str], name: str) -> Iterator[tuple[Any, str]]:
    """The items of a JSON array (or values one after the other), without holding the whole array."""
    blocks = iter(blocks)
    text = _skip("", blocks, SPACE)
    in_array = text.startswith("[")
    if in_array:
        text = text[1:]
    number = 0
    while text := _skip(text, blocks, SPACE + "," if number else SPACE):
        if in_array and text.startswith("]"):
            return
        number += 1
        where = f"{name} item {number}"
        value, text = _decode(text, blocks, where)
        yield value, where
    if in_array:
        raise InputError(f"{name}: cut off: its JSON array is not closed")


def _skip(text: str, blocks: Iterator[str], characters: str) -> str:
    """``text`` (and the blocks after it) from its first character that is not one of ``characters``."""
    while not (rest := text.lstrip(characters)):
        block = next(blocks, None)
        if block is None:
            return ""
        text = block
    return rest


def _decode(text: str, blocks: Iterator[str], where: str) -> tuple[Any, str]:
    """The JSON value at the start of ``text``, which may go on in the blocks after it; and what follows it."""
    while True:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
            more = _at_least(blocks, 1) if end == len(text) else ""  # a number may go on
            if not more:
                return value, text[end:]
        except RecursionError as error:
            raise InputError(f"{where}: not JSON (nested too deep)") from error
        except json.JSONDecodeError as error:
            cut_off = error.pos >= len(text) - 16 or error.msg.startswith("Unterminated string")
            more = _at_least(blocks, len(text)) if cut_off else ""
            if not more:
                raise InputError(f"{where}: not JSON ({error.msg})") from error
        text += more


def _at_least(blocks: Iterator[str], size: int) -> str:
    """The next blocks, until they hold ``size`` characters or end."""
    parts, found = [], 0
    for block in blocks:
        parts.append(block)
        found += len(block)
        if found >= size:
            break
    return "".join(parts)
