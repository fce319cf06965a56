"""Damaged files: whatever is cut off, flipped or random ends in an InputError or in a valid map, never a traceback."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_drafts import save_eagle3, save_gguf, some_ids

from hothead.errors import HotheadError, InputError
from hothead.export.base import FORMATS, Known, TokenMap, read_map, write_map
from hothead.export.gguf_file import read_gguf
from hothead.export.inspect import inspect_path
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

V = 300
IDS = np.random.default_rng(0).choice(V, 60, replace=False)
MAP = TokenMap(DraftVocab.from_target_ids(IDS, V), ranked_ids=IDS)
COUNTS = TokenRanking(np.random.default_rng(1).integers(0, 1000, V), "")
CASES = [(form.name, kind) for form in FORMATS for kind in form.holds]
# These say the map twice, or with a digest or checksums: a flipped bit in it cannot go unnoticed.
GUARDED = {
    *((name, "map") for name in ("sglang", "specforge", "d2t", "eagle3", "gguf", "json", "text")),
    *((name, "counts") for name in ("vllm-frequency", "speculators", "json")),
}


def written(folder: Path, name: str, kind: str) -> tuple[Path, list[Path]]:
    """(what to read, the files of it)."""
    path = folder if name == "d2t" else folder / "file"
    write_map(path, MAP if kind == "map" else COUNTS, name)
    return path, sorted(file for file in folder.iterdir())


def read_damaged(path: Path, name: str, kind: str) -> None:
    """Read it; what comes back must be a valid map or counts, and the original where the format guards it."""
    try:
        content = read_map(path, Known(V)).content
    except HotheadError as error:
        assert str(error)
        return
    if isinstance(content, TokenMap):
        assert len(np.unique(content.ordered_ids)) == len(content.vocab)
        assert 0 <= content.ordered_ids.min() <= content.ordered_ids.max() < V == content.vocab.target_vocab_size
    else:
        assert content.counts.min() >= 0
    if (name, kind) in GUARDED:
        same = (
            np.array_equal(content.vocab.target_ids, MAP.vocab.target_ids)
            if isinstance(content, TokenMap)
            else np.array_equal(content.counts, COUNTS.counts)
        )
        assert same, "a damaged file was loaded as another map"


@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_truncated_files(name: str, kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, files = written(Path(folder), name, kind)
        file = data.draw(st.sampled_from(files))
        whole = file.read_bytes()
        file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        read_damaged(path, name, kind)


@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_flipped_bits(name: str, kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, files = written(Path(folder), name, kind)
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        # A second flip could strike the digest's name and leave the map unguarded.
        for _ in range(1 if (name, kind) in GUARDED else data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        read_damaged(path, name, kind)


MAGIC = [b"", b"GGUF", b"GGUF\x03\x00\x00\x00", b"PK\x03\x04", b"\x80\x02", b"\x93NUMPY\x01\x00", b"[", b'{"counts":']


@settings(max_examples=150, deadline=None)
@given(magic=st.sampled_from([*MAGIC, b"\x10\x00\x00\x00\x00\x00\x00\x00{"]), rest=st.binary(max_size=200))
def test_random_bytes(magic: bytes, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(magic + rest)
        read_damaged(path, "", "")
        try:
            inspect_path(path, Known(V))
        except HotheadError as error:
            assert str(error)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_draft_ggufs(data: st.DataObject) -> None:
    whole = bytearray(_draft_gguf())
    header = 16384  # most of what can go wrong is in here
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.gguf"
        path.write_bytes(whole[:cut])
        try:
            inspect_path(path, Known(320))
        except HotheadError as error:
            assert str(error)


def _draft_gguf(kept: list[bytes] = []) -> bytes:  # noqa: B006 - made once
    if not kept:
        with tempfile.TemporaryDirectory() as folder:
            kept.append(save_gguf(Path(folder) / "draft.gguf", some_ids()).read_bytes())
    return kept[0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_draft_folders(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = save_eagle3(Path(name) / "draft", some_ids())
        for file in (folder / "config.json", folder / "model.safetensors"):
            content = bytearray(file.read_bytes())
            reach = min(len(content), 2048) - 1  # the header, where most can go wrong
            for _ in range(data.draw(st.integers(0, 2))):
                content[data.draw(st.integers(0, reach))] ^= 1 << data.draw(st.integers(0, 7))
            file.write_bytes(content[: data.draw(st.sampled_from([len(content), reach // 2]))])
        for use in (
            lambda: inspect_path(folder, Known()),
            lambda: read_map(folder),
            lambda: prune(folder, TokenRanking(np.arange(320), ""), Path(name) / "out", sizes={"size": 64}),
        ):
            try:
                use()
            except HotheadError as error:
                assert str(error)


@pytest.mark.parametrize("size", [0, -1, 10**15])
def test_a_size_that_no_target_has_is_not_allocated(tmp_path: Path, size: int) -> None:
    (tmp_path / "map.json").write_text(f'{{"target_ids": [1], "target_vocab_size": {size}}}')
    with pytest.raises(InputError):
        read_map(tmp_path / "map.json")
    with pytest.raises(InputError, match="vocabulary size"):
        np.save(tmp_path / "d2t.npy", np.array([1, 1]))
        read_map(tmp_path / "d2t.npy", Known(size))


def test_a_count_of_items_that_no_file_could_hold_is_an_error_at_once(tmp_path: Path) -> None:
    huge = (2**62).to_bytes(8, "little")
    one = (1).to_bytes(8, "little")
    start = b"GGUF" + (3).to_bytes(4, "little")
    key = one + b"k"
    array_of_strings = (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + huge
    for number, body in enumerate(
        [huge + huge, one + huge, bytes(8) + one + key + array_of_strings, bytes(8) + one + huge]
    ):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(start + body + bytes(64))
        with pytest.raises(InputError):
            read_gguf(path)
