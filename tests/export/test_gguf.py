"""Draft GGUFs: rows cut without requantizing, absolute ids as llama.cpp reads them, all else byte for byte."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_drafts import ROWS, V, save_gguf, some_ids

from hothead.errors import DraftMismatch, InputError
from hothead.export.base import Known, TokenMap, read_map
from hothead.export.gguf_file import read_gguf
from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

gguf = pytest.importorskip("gguf")

RUN_LLAMA = Path(__file__).parents[1] / "llama_logits.py"
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K"]


def ranking() -> TokenRanking:
    return TokenRanking(np.random.default_rng(5).permutation(V) + 1, "fp")


def raw_tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """By the gguf package's own reader: {name: (type, shape, bytes)}."""
    return {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize("quantization", TYPES)
@pytest.mark.parametrize("ids", [None, some_ids()], ids=["full vocabulary", "reduced before"])
def test_rows_are_cut_in_any_type_and_everything_else_is_the_same(
    tmp_path: Path, quantization: str, ids: np.ndarray | None
) -> None:
    draft = save_gguf(tmp_path / "draft.gguf", ids, quantization)
    pruned = prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    before, after = raw_tensors(draft), raw_tensors(tmp_path / "out.gguf")
    assert after.keys() == before.keys() | {"d2t"}
    for name, tensor in before.items():
        if name not in ("output.weight", "d2t"):
            assert after[name] == tensor
    kind, shape, data = before["output.weight"]
    row_bytes = len(data) // shape[1]
    has = np.arange(V) if ids is None else ids
    rows = np.searchsorted(has, pruned.vocab.target_ids)
    cut = b"".join(data[row * row_bytes : (row + 1) * row_bytes] for row in rows)
    assert after["output.weight"] == (kind, [shape[0], 64], cut)
    assert after["d2t"] == ("I64", [64], pruned.vocab.target_ids.astype("<i8").tobytes())
    assert set(pruned.vocab.target_ids.tolist()) <= set(has.tolist())


def test_the_keys_stay_and_say_where_the_map_is_from(tmp_path: Path) -> None:
    draft = save_gguf(tmp_path / "draft.gguf", some_ids())
    prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 128})
    prune(tmp_path / "out.gguf", ranking(), tmp_path / "again.gguf", sizes={"size": 64})
    before, after = gguf.GGUFReader(draft).fields, gguf.GGUFReader(tmp_path / "again.gguf").fields
    for key, field in before.items():
        if not key.startswith("GGUF."):
            assert [part.tobytes() for part in field.parts] == [part.tobytes() for part in after[key].parts]
    new = {key for key in after if key not in before}
    assert {"hothead.tokenizer_fingerprint", "hothead.target_ids_sha256", "hothead.target_vocab_size"} < new
    assert after["hothead.tokenizer_fingerprint"].contents() == "fp"
    content = read_map(tmp_path / "again.gguf").content
    assert isinstance(content, TokenMap)
    assert len(content.vocab) == 64
    assert (V - 1 in content.vocab) == (V - 1 in some_ids())  # the end token, which the keys name


@pytest.mark.parametrize("ids", [None, some_ids()], ids=["full vocabulary", "reduced before"])
@pytest.mark.parametrize("quantization", ["F32", "Q8_0", "Q4_K"])
def test_llama_cpp_loads_what_was_written(
    tmp_path: Path, quantization: str, ids: np.ndarray | None, capfd: pytest.CaptureFixture[str]
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    draft = save_gguf(tmp_path / "draft.gguf", ids, quantization)
    prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    parameters = llama_cpp.llama_model_default_params()
    for path, rows in ((draft, V if ids is None else ROWS), (tmp_path / "out.gguf", 64)):
        capfd.readouterr()
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        log = capfd.readouterr().err
        assert model, log
        assert llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)) == V
        if rows != V:
            assert f"draft_vocab_size = {rows}" in log
        llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("ids", [None, some_ids()], ids=["full vocabulary", "reduced before"])
@pytest.mark.parametrize("quantization", ["F32", "Q8_0", "Q4_K"])
def test_llama_cpp_drafts_with_the_same_logits(tmp_path: Path, quantization: str, ids: np.ndarray | None) -> None:
    pytest.importorskip("llama_cpp")
    embedding = np.random.default_rng(1).standard_normal((V, 256)).astype(np.float32)
    draft = save_gguf(tmp_path / "draft.gguf", ids, quantization, extra={"token_embd.weight": embedding})
    pruned = prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    found = []
    for path in (draft, tmp_path / "out.gguf"):
        out = path.with_suffix(".npy")
        subprocess.run([sys.executable, str(RUN_LLAMA), str(path), str(out), str(V)], check=True, capture_output=True)
        found.append(np.load(out))
    before, after = found
    kept = pruned.vocab.target_ids
    assert np.isfinite(before[:, kept]).all()
    assert np.array_equal(after[:, kept], before[:, kept])
    assert np.isneginf(np.delete(after, kept, axis=1)).all()


def test_llama_cpp_refuses_a_head_cut_without_a_map(tmp_path: Path) -> None:
    """The check above would notice a wrong file."""
    llama_cpp = pytest.importorskip("llama_cpp")
    from hothead.export.gguf_file import NewTensor, write_gguf
    from hothead.export.streams import read_pieces

    draft = read_gguf(save_gguf(tmp_path / "draft.gguf", some_ids()))
    with draft.path.open("rb") as file:
        tensors = [
            NewTensor(t.name, t.shape, t.type, lambda t=t: read_pieces(file, t.start, t.size))
            for t in draft.tensors.values()
            if t.name != "d2t"
        ]
        write_gguf(tmp_path / "cut.gguf", 3, list(draft.raw_keys.values()), tensors, draft.alignment)
    parameters = llama_cpp.llama_model_default_params()
    assert not llama_cpp.llama_model_load_from_file(str(tmp_path / "cut.gguf").encode(), parameters)


def test_a_dflash_draft_and_its_markov_head(tmp_path: Path) -> None:
    ids = some_ids()
    table = np.random.default_rng(0).standard_normal((ROWS, 32)).astype(np.float32)
    inputs = np.zeros((V, 32), dtype=np.float32)
    extra = {"markov_w1.weight": inputs, "markov_w2.weight": table}
    draft = save_gguf(tmp_path / "draft.gguf", ids, "F32", "dflash", extra=extra)
    pruned = prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    after = raw_tensors(tmp_path / "out.gguf")
    assert after["markov_w2.weight"][2] == table[np.searchsorted(ids, pruned.vocab.target_ids)].tobytes()
    assert after["markov_w1.weight"][2] == inputs.tobytes()
    assert pruned.kind == "gguf dflash"


def test_what_llama_cpp_could_not_load_is_refused(tmp_path: Path) -> None:
    llama = save_gguf(tmp_path / "llama.gguf", architecture="llama")
    with pytest.raises(DraftMismatch, match=r"'llama': llama\.cpp reads a reduced head only of eagle3 and dflash"):
        prune(llama, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    headless = save_gguf(tmp_path / "headless.gguf", head=False)
    with pytest.raises(DraftMismatch, match=r"no output\.weight"):
        prune(headless, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    with pytest.raises(InputError, match=r"a pruned GGUF is a \.gguf file"):
        prune(headless, ranking(), tmp_path / "out", sizes={"size": 64})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["headless.gguf", "llama.gguf"]


def test_a_map_of_other_ids_than_the_head_was_pruned_with(tmp_path: Path) -> None:
    draft = save_gguf(tmp_path / "draft.gguf")
    pruned = prune(draft, ranking(), tmp_path / "out.gguf", sizes={"size": 64})
    data = (tmp_path / "out.gguf").read_bytes()
    ids = pruned.vocab.target_ids
    other = DraftVocab.from_target_ids(np.append(ids[:-1], ids[-1] - 1 if ids[-1] - 1 not in ids else ids[-1] + 1), V)
    swapped = data.replace(ids.astype("<i8").tobytes(), other.target_ids.astype("<i8").tobytes())
    assert swapped != data
    (tmp_path / "swapped.gguf").write_bytes(swapped)
    with pytest.raises(InputError, match="not the one that was written"):
        prune(tmp_path / "swapped.gguf", ranking(), tmp_path / "again.gguf", sizes={"size": 32}, known=Known(V))


def test_the_strict_reader_reads_what_the_package_reads(tmp_path: Path) -> None:
    draft = save_gguf(tmp_path / "draft.gguf", some_ids(), "Q4_K")
    ours, theirs = read_gguf(draft), gguf.GGUFReader(draft)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        found = (list(mine.shape), mine.type, mine.start, mine.size)
        assert found == (tensor.shape.tolist(), int(tensor.tensor_type), tensor.data_offset, tensor.n_bytes)
    assert ours.keys["tokenizer.ggml.eos_token_id"] == V - 1
