"""``torch.save`` files: SGLang's and FR-Spec's map, vLLM's and speculators' frequencies, SpecForge's d2t and t2d.

They are pickles: only what torch's weights-only loader allows is opened, and the archive's own checksums, which that
loader does not look at, are checked first.
"""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import InputError
from hothead.export import checks
from hothead.export.base import Content, Known, Loaded, TokenMap
from hothead.files import atomic_path
from hothead.ranking.ranking import TokenRanking


def read(path: Path, known: Known, name: str | None) -> Loaded:
    value = load(path)
    if isinstance(value, dict):
        if "d2t" in value and name in (None, "specforge"):
            ids, size, notes = checks.ids_of_offsets(value["d2t"], value.get("t2d"), known.target_vocab_size)
            made = known.token_map(ids, vocab_size=size, source="specforge", notes=notes)
            return Loaded("specforge", made)
        if name not in (None, "speculators"):
            raise InputError(f"expected {name}'s form; found a table with the keys {_some(value)}")
        if value and not all(type(key) is int for key in value):
            raise InputError(f"expected {{id: count}} or {{d2t, t2d}}; found a table with the keys {_some(value)}")
        return Loaded("speculators", TokenRanking(checks.counts_of_pairs(value, known.size()), known.fingerprint()))
    if name in ("speculators", "specforge"):
        raise InputError(f"expected {name}'s table; found {_kind(value)}")
    if name is None:
        name = _list_or_frequencies(value, known.size())
    if name == "vllm-frequency":
        return Loaded(name, TokenRanking(checks.counts_by_id(value, known.size()), known.fingerprint()))
    ids = checks.target_ids(value, known.size())
    return Loaded("sglang", known.token_map(ids, is_ranked=True, source="sglang"))


def write(path: Path, content: Content, name: str) -> None:
    import torch

    value: Any
    if isinstance(content, TokenMap):
        if name == "sglang":
            value = content.ordered_ids.tolist()
        else:
            d2t, t2d = np.array(content.vocab.d2t), np.array(content.vocab.t2d)
            value = {"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}
    elif name == "vllm-frequency":
        value = torch.from_numpy(np.array(content.counts))
    else:
        seen = np.flatnonzero(content.counts)
        value = dict(zip(seen.tolist(), content.counts[seen].tolist(), strict=True))
    with atomic_path(path) as temporary:
        torch.save(value, temporary)


def load(path: Path) -> Any:
    """What a ``torch.save`` file holds, tensors as numpy arrays; nothing in it is run.

    Raises:
        InputError: torch is missing, or the file is damaged, truncated, or holds more than plain data.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError("reading a .pt file needs torch: pip install 'hothead[engine]'") from error
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise InputError(f"damaged: the checksum of {damaged} in it does not hold")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle or archive fails in as many ways as it has bytes
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"damaged, or holds more than plain numbers, which could run code when loaded; not opened ({first[:120]})"
        ) from error
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return _plain(value)


def _plain(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise InputError(f"expected plain numbers; found a {value.layout} tensor of {value.dtype}")
    try:
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()
        return value.detach().contiguous().numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"expected plain numbers; found a tensor of {value.dtype}") from error


def _list_or_frequencies(value: Any, vocab_size: int) -> str:
    """Whether a list or tensor is ids in order of frequency, or a frequency for each id.

    Raises:
        InputError: it can be read as both.
    """
    array = checks.as_array(value, "target ids or frequencies")
    if array.size != vocab_size or array.dtype == bool:
        return "sglang"
    if array.dtype.kind in "iu" and np.array_equal(np.sort(array), np.arange(vocab_size)):
        raise InputError(
            f"holds each of the numbers 0 to {vocab_size - 1} once: ids in order of frequency or a frequency for each "
            "id? Name the format (--from sglang or --from vllm-frequency)"
        )
    return "vllm-frequency"


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _some(table: dict[Any, Any]) -> str:
    return ", ".join(repr(key)[:40] for key in list(table)[:5]) or "(none)"
