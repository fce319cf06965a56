"""A folder of stages: each artefact is kept as long as what it was made from stays the same."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hothead.errors import InputError
from hothead.files import write_json

MANIFEST = "stages.json"


class Workspace:
    """Artefacts in a folder, and in ``stages.json`` the digest of each and of what it was made from.

    Raises:
        InputError: the folder cannot be made, or is a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write into {folder}: {error.strerror}") from error
        self._stages = _read(self.folder / MANIFEST)

    def artefact(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], None]) -> tuple[Path, bool]:
        """The file called ``name``; made now unless it is there, unchanged, from the same inputs.

        Args:
            inputs: JSON values: all that decides the contents.
            make: writes the file.

        Returns:
            (the file, whether it was made now)
        """
        path = self.folder / name
        made_from = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
        if path.is_file() and self._stages.get(name) == {"made_from": made_from, "sha256": file_digest(path)}:
            return path, False
        make(path)
        self._stages[name] = {"made_from": made_from, "sha256": file_digest(path)}
        write_json(self.folder / MANIFEST, self._stages)
        return path, True


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """What was kept; nothing if that cannot be read, so that everything is made again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
