"""The result file while a comparison runs: written block by block, taken up again where it ended."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from hothead.bench.schema import Header, Outcome, Record, Results, Session, read_results, to_lines
from hothead.errors import InputError
from hothead.files import write_text


class ResultLog:
    """All results so far, in memory and, given a path, in a file.

    A file that exists is continued: its complete blocks are kept and not measured again.

    Args:
        header: what is about to be measured.
        path: the file; None keeps results in memory only.

    Raises:
        InputError: the file holds something else, or results under another header.
    """

    def __init__(self, header: Header, path: Path | None = None) -> None:
        self.path = path
        earlier = Results(header, (), {})
        if path is not None and path.exists():
            earlier = read_results(path)
            _check_same(path, earlier.header, header)
        self.header = header
        self.blocks = dict(earlier.blocks)
        self.sessions = [*earlier.sessions, _session()]
        self.resumed_blocks = len(self.blocks)
        if path is not None:
            self._write_whole()

    @property
    def results(self) -> Results:
        return Results(self.header, tuple(self.sessions), self.blocks)

    def append(self, block: Sequence[Outcome]) -> None:
        """Keep a block: the outcomes of all methods for one turn of one prompt in one repeat.

        Raises:
            InputError: it cannot be written; the file still ends with the block before it.
        """
        first = block[0]
        self.blocks[first.prompt_id, first.turn, first.repeat] = tuple(block)
        if self.path is None:
            return
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(to_lines(block))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise InputError(
                f"cannot write {self.path}: {error}; the {len(self.blocks) - 1} blocks in it are whole, and the same "
                "command goes on after them"
            ) from error

    def _write_whole(self) -> None:
        assert self.path is not None
        records: list[Record] = [self.header, *self.sessions]
        records += [outcome for block in self.blocks.values() for outcome in block]
        write_text(self.path, to_lines(records))


def _session() -> Session:
    try:
        load: float | None = round(os.getloadavg()[0], 2)
    except OSError:
        load = None
    return Session(started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), load_1min=load)


def _check_same(path: Path, earlier: Header, now: Header) -> None:
    changed = _first_change(earlier.model_dump(), now.model_dump())
    if changed is not None:
        name, before, after = changed
        raise InputError(
            f"{path} holds results of another comparison ({name} was {before!r} and is {after!r} now); "
            "name another file, or remove this one"
        )


def _first_change(before: dict, after: dict, prefix: str = "") -> tuple[str, object, object] | None:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if (inner := _first_change(old, new, f"{prefix}{name}.")) is not None:
                return inner
        elif old != new:
            return f"{prefix}{name}", old, new
    return None
