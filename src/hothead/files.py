"""Files that are either whole or not there: atomic writes, and safetensors reading with clear errors."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hothead.errors import InputError

Document = TypeVar("Document", bound=BaseModel)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it over ``path`` only if the body succeeds.

    A failure of any kind (full disk and interruption included) leaves an earlier ``path`` as it was.

    Raises:
        InputError: the folder does not exist, or the file could not be written (full disk, no permission).
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        # mkstemp makes private files; a result is as readable as any other file the user makes.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        # safetensors reports a failed write (full disk) as its own exception class.
        raise InputError(f"cannot write {path}: {error}; an earlier file of that name is unchanged") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def cache_folder() -> Path:
    """The user's folder for what can be made again, such as converted weights; it need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hothead"


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON to ``path`` atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, expected: str) -> Any:
    """Parse a JSON file.

    Args:
        expected: what it should be, for the message.

    Raises:
        InputError: missing, unreadable, or not JSON.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected {expected}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error}); expected {expected}") from error


def validated(kind: type[Document], found: Any, path: Path, name: str) -> Document:
    """``found``, parsed from ``path``, as a record; ``name`` says what it is.

    Raises:
        InputError: a field is missing, unknown or wrong; the first one is named.
    """
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: a damaged {name} ({where}: {first['msg']}); make it again") from error


def read_document(path: Path, kind: type[Document], format: str, version: int, name: str, expected: str) -> Document:
    """Read a versioned JSON document of ours.

    Args:
        name: what it is, as in "a damaged curve".
        expected: said of a file that is something else.

    Raises:
        InputError: missing, something else, of another version, or damaged.
    """
    shape = f"a JSON object of format {format!r}"
    found = read_json(path, shape)
    if not isinstance(found, dict) or found.get("format") != format:
        raise InputError(f"{path}: {expected} (expected {shape})")
    if found.get("version") != version:
        raise InputError(f"{path}: a {name} of version {found.get('version')}; this hothead reads version {version}")
    return validated(kind, found, path, name)


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write named arrays and string metadata to ``path`` atomically; equal contents give equal bytes."""
    with atomic_path(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, dict(metadata))
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata in a safetensors header, which the library writes in another order each time."""
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # the same text in another order; spaces may pad it
            file.seek(8)
            file.write(text.ljust(size))


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read every array and the metadata of a safetensors file.

    Raises:
        InputError: the file is missing, unreadable, truncated or not safetensors.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return arrays, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without its tensors.

    Raises:
        InputError: not a readable safetensors file.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
