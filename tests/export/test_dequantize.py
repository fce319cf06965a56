"""Dequantized GGUF files: values as the gguf package reads them, vectors in float32, keys kept."""

from pathlib import Path

import numpy as np
import pytest
from toy_drafts import save_gguf

from hothead.errors import InputError
from hothead.export.dequantize import write_dequantized
from hothead.export.gguf_file import read_gguf

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("quantization", ["F32", "Q4_1", "Q8_0"])
@pytest.mark.parametrize(("dtype", "file_type"), [("float32", 0), ("float16", 1), ("bfloat16", 32)])
def test_values_stay_and_types_are_plain(tmp_path: Path, quantization: str, dtype: str, file_type: int) -> None:
    source = save_gguf(tmp_path / "in.gguf", None, quantization)
    write_dequantized(source, tmp_path / "out.gguf", dtype)
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    found = gguf.GGUFReader(tmp_path / "out.gguf")
    assert [tensor.name for tensor in found.tensors] == list(before)
    plain = {"float32": gguf.GGMLQuantizationType.F32, "float16": gguf.GGMLQuantizationType.F16}
    for tensor in found.tensors:
        was = before[tensor.name]
        kind = plain["float32"] if len(was.shape) == 1 else plain.get(dtype, gguf.GGMLQuantizationType.BF16)
        assert tensor.tensor_type == kind
        expected = gguf.quants.dequantize(was.data, was.tensor_type)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        step = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
        np.testing.assert_allclose(values, expected, rtol=step, atol=1e-6 if step else 0)
    keys, keys_before = read_gguf(tmp_path / "out.gguf"), read_gguf(source)
    assert keys.keys["general.file_type"] == file_type
    same = keys_before.raw_keys.keys() - {"general.file_type"}
    assert {key: keys.raw_keys[key] for key in same} == {key: keys_before.raw_keys[key] for key in same}


def test_another_dtype_or_file_is_refused(tmp_path: Path) -> None:
    source = save_gguf(tmp_path / "in.gguf", None, "F32")
    with pytest.raises(InputError, match="found 'int8'"):
        write_dequantized(source, tmp_path / "out.gguf", "int8")
    (tmp_path / "no.gguf").write_bytes(b"no")
    with pytest.raises(InputError):
        write_dequantized(tmp_path / "no.gguf", tmp_path / "out.gguf", "float32")
    assert not (tmp_path / "out.gguf").exists()
