"""The shape of the project: imports point one way along the chain, files stay short, the light parts need no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hothead

SOURCE = Path(hothead.__file__).parent
MAX_LINES = 400

# Each layer may import from those before it (and from itself). A new module goes where its imports allow.
LAYERS = (
    ("errors", "files", "spans", "threads"),
    ("tokenizer",),
    ("ranking",),
    ("vocab",),
    ("export",),
    ("packed", "native", "head"),
    ("dynamic",),
    ("models",),
    ("engine",),
    ("vllm_plugin",),
    ("bench",),
    ("replay",),
    ("plan",),
    ("report",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or not path.stem.startswith("__"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("hothead.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert layer in LEVEL, f"{layer} has no place in LAYERS yet"
    later = {name for name in imported_layers(path) if LEVEL[name] > LEVEL[layer]}
    assert not later, f"{layer} imports {later}, which come after it"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_every_public_name_can_be_imported() -> None:
    assert sorted(hothead._HOME) == sorted(hothead.__all__)
    for name in hothead.__all__:
        assert getattr(hothead, name).__module__.startswith("hothead.")


def test_ranking_and_mapping_need_no_torch() -> None:
    code = "import sys, hothead; hothead.TokenRanking, hothead.DraftVocab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
