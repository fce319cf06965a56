"""EAGLE-3's d2t and t2d as arrays: in ``d2t.npy`` and ``t2d.npy``, or as tensors of a safetensors checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from hothead.errors import InputError
from hothead.export import checks
from hothead.export.base import Content, Known, Loaded, TokenMap, check_digest, ids_digest
from hothead.files import atomic_path, read_json, write_safetensors

MAP_METADATA = "hothead.eagle3_map"


def read(path: Path, known: Known, name: str | None) -> Loaded:
    if name == "d2t" or (name is None and (path.suffix == ".npy" or (path / "d2t.npy").is_file())):
        return Loaded("d2t", _read_npy(path, known))
    return Loaded("eagle3", _read_checkpoint(path, known))


def write(path: Path, content: Content, name: str) -> None:
    assert isinstance(content, TokenMap)
    vocab = content.vocab
    if name == "d2t":
        folder = path.parent if path.suffix == ".npy" else path
        for key, array in (("t2d", vocab.t2d), ("d2t", vocab.d2t)):
            with atomic_path(folder / f"{key}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
        return
    metadata = {
        "format": MAP_METADATA,
        "tokenizer_fingerprint": vocab.tokenizer_fingerprint,
        "target_ids_sha256": ids_digest(vocab.target_ids, vocab.target_vocab_size),
    }
    write_safetensors(path, {"d2t": vocab.d2t, "t2d": vocab.t2d}, metadata)


def _read_npy(path: Path, known: Known) -> TokenMap:
    folder = path if path.is_dir() else path.parent
    d2t_path = folder / "d2t.npy" if path.is_dir() or path.name == "t2d.npy" else path
    t2d_path = folder / "t2d.npy"
    d2t = load_npy(d2t_path)
    t2d = load_npy(t2d_path) if t2d_path.is_file() and d2t_path.name == "d2t.npy" else None
    ids, size, notes = checks.ids_of_offsets(d2t, t2d, known.target_vocab_size)
    if t2d is None:
        notes = (*notes, "no t2d.npy beside it to check it against")
    return known.token_map(ids, vocab_size=size, source="d2t.npy", notes=notes)


def load_npy(path: Path) -> np.ndarray:
    """
    Raises:
        InputError: not a readable array of plain numbers.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # a damaged header is parsed as Python, and fails as such
        raise InputError(f"{path}: not a readable array of numbers ({str(error).splitlines()[0][:120]})") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: expected one array; found an archive of several")
    return found


def _read_checkpoint(path: Path, known: Known) -> TokenMap:
    found: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = {}
    files = checkpoint_files(path)
    if not files:
        found = _map_of_bin(path)
    for file in files:
        arrays, about = map_tensors(file)
        found.update(arrays)
        metadata.update(about)
    config = read_config(path) if path.is_dir() else {}
    if "d2t" not in found:
        raise InputError("no d2t in it: not an EAGLE-3 map, or a draft over the target's whole vocabulary")
    size = known.target_vocab_size if known.target_vocab_size is not None else vocab_size_of(config)
    if "target_ids_sha256" in metadata and "t2d" not in found:
        raise InputError("its t2d is missing")
    ids, size, notes = checks.ids_of_offsets(found["d2t"], found.get("t2d"), size)
    check_digest(np.sort(ids), size, metadata.get("target_ids_sha256"))
    fingerprint = metadata.get("tokenizer_fingerprint", "")
    return known.token_map(ids, vocab_size=size, fingerprint=fingerprint, source="eagle3", notes=notes)


def _map_of_bin(folder: Path) -> dict[str, np.ndarray]:
    from hothead.export.checkpoint import array_of, open_checkpoint

    checkpoint = open_checkpoint(folder)
    stored = {name: checkpoint.named(name) for name in ("d2t", "t2d")}
    return {name: array_of(tensor) for name, tensor in stored.items() if tensor is not None}


def checkpoint_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, or the one file itself."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("."))


def map_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The d2t and t2d of one safetensors file, and its metadata; no other tensor is read.

    Raises:
        InputError: not a readable safetensors file.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = {name.rpartition(".")[2]: name for name in file.keys() if name.rpartition(".")[2] in ("d2t", "t2d")}  # noqa: SIM118 - not a dict
            return {key: file.get_tensor(name) for key, name in names.items()}, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json; {} if there is none.

    Raises:
        InputError: it is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config = read_json(path, "a checkpoint's config")
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object; found a {type(config).__name__}")
    return config


def vocab_size_of(config: dict[str, Any]) -> int | None:
    """The target ids a draft's config counts: its own ``vocab_size``, or that of the part that describes its layer."""
    parts = [config, *(config.get(key) for key in ("transformer_layer_config", "text_config"))]
    for part in parts:
        if isinstance(part, dict) and type(part.get("vocab_size")) is int:
            return part["vocab_size"]
    return None
