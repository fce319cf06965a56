"""Which result files there are: found by what they say they are, read by the reader of each kind. Needs no torch."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hothead.bench import head_results
from hothead.bench import schema as comparison
from hothead.bench.head_results import HeadBench, read_head_bench
from hothead.bench.schema import Results, read_results
from hothead.errors import InputError
from hothead.files import safetensors_metadata
from hothead.plan import schema as plan
from hothead.plan.schema import Plan, read_plan
from hothead.ranking import ranking as token_ranking
from hothead.ranking.ranking import TokenRanking
from hothead.replay import curve as acceptance
from hothead.replay.curve import AcceptanceCurves, read_curves

# Adding a kind of result is one line here, a field of Evidence, and a section.
READERS: dict[str, tuple[str, Any]] = {
    token_ranking.FORMAT: ("token ranking", TokenRanking.load),
    acceptance.FORMAT: ("acceptance curves", read_curves),
    plan.PLAN_FORMAT: ("plan", read_plan),
    head_results.FORMAT: ("head times", read_head_bench),
    comparison.FORMAT: ("comparison", read_results),
}
SUFFIXES = (".safetensors", ".json", ".jsonl")
T = TypeVar("T")


@dataclass(frozen=True)
class ResultFile:
    """One file that was read.

    Attributes:
        name: without folders, which a page that is passed on should not tell.
        kind: in words.
        sha256: of its bytes.
        value: what its reader made of it.
    """

    name: str
    kind: str
    sha256: str
    value: Any

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Evidence:
    """Everything to report on, in the order of the files' names."""

    files: tuple[ResultFile, ...]

    def of(self, kind: type[T]) -> list[tuple[ResultFile, T]]:
        """The files that hold a ``kind``, with what they hold."""
        return [(file, file.value) for file in self.files if isinstance(file.value, kind)]

    @property
    def rankings(self) -> list[tuple[ResultFile, TokenRanking]]:
        return self.of(TokenRanking)

    @property
    def curves(self) -> list[tuple[ResultFile, AcceptanceCurves]]:
        return self.of(AcceptanceCurves)

    @property
    def plans(self) -> list[tuple[ResultFile, Plan]]:
        return self.of(Plan)

    @property
    def heads(self) -> list[tuple[ResultFile, HeadBench]]:
        return self.of(HeadBench)

    @property
    def comparisons(self) -> list[tuple[ResultFile, Results]]:
        return self.of(Results)


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Read result files, and those in folders and below; what else lies in a folder is left alone.

    Raises:
        InputError: nothing to report on, a file that is no result, or one that is damaged.
    """
    files = []
    for path in dict.fromkeys(_files(paths)):
        named = path in paths
        form = _format_of(path)
        if form not in READERS:
            if named:
                known = ", ".join(kind for kind, _ in READERS.values())
                found = f"it is {form}" if form else "it names no hothead format"
                raise InputError(f"{path}: not a result that a report shows ({found}); expected one of: {known}")
            continue
        kind, read = READERS[form]
        value = read(path)
        files.append(ResultFile(path.name, kind, hashlib.sha256(path.read_bytes()).hexdigest(), value))
    if not files:
        raise InputError(
            f"nothing to report on in {', '.join(map(str, paths)) or 'no files'}; expected result files of hothead "
            "rank, curve, bench head, plan or compare"
        )
    return Evidence(tuple(sorted(files, key=lambda file: file.name)))


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            inside = (found for found in path.rglob("*") if found.suffix in SUFFIXES and found.is_file())
            yield from sorted(found for found in inside if not found.name.startswith("."))
        elif path.is_file():
            yield path
        else:
            raise InputError(f"{path}: no such file or folder; expected result files")


def _format_of(path: Path) -> str | None:
    """What a file says it is; None for one that says nothing."""
    if path.suffix == ".safetensors":
        return safetensors_metadata(path).get("format")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = _json(text.partition("\n")[0]) or _json(text)  # JSON lines, or one document
    if head_results.is_head_bench(found):  # those of version 1 did not name themselves
        return head_results.FORMAT
    return found.get("format") if isinstance(found, dict) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
