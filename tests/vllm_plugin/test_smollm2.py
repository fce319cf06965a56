"""SmolLM2 with the demo draft in vLLM, float32, real prompts: every answer is plain decoding's, token by token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_toys import start_engine

from hothead.export.prune import prune
from hothead.ranking.ranking import TokenRanking

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "drafts" / "smollm2-135m-instruct-eagle"
RANKING = str(DRAFT / "ranking.safetensors")
PROMPTS = [json.loads(line)["turns"][0] for line in (ROOT / "prompts" / "demo.jsonl").open(encoding="utf-8")]
BATCHES = [{"messages": [[{"role": "user", "content": prompt}] for prompt in PROMPTS]}]
SAMPLING = {"max_tokens": 48, "ignore_eos": False}
EAGLE = {"method": "eagle", "model": str(DRAFT), "num_speculative_tokens": 4}

EAGLE3 = {**EAGLE, "method": "eagle3", "model": str(DRAFT.with_name("smollm2-135m-instruct-eagle3"))}

Engine = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def plain(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_engine(tmp_path_factory.mktemp("plain"), smollm2_folder, BATCHES, SAMPLING, max_model_len=1024)


@pytest.mark.parametrize("slots", [0, 256])
@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_answers_are_plain_decodings(
    smollm2_folder: Path, run_engine: Engine, plain: dict[str, Any], method: str, slots: int
) -> None:
    # The target as its own draft: the one standalone model with its tokenizer that is at hand.
    speculative = EAGLE if method == "eagle" else {**EAGLE, "method": method, "model": str(smollm2_folder)}
    result = run_engine(
        smollm2_folder,
        BATCHES,
        SAMPLING,
        max_model_len=1024,
        speculative_config=speculative,
        additional_config={"hothead": {"ranking": RANKING, "size": 2048, "dynamic_slots": slots}},
    )
    assert result["answers"] == plain["answers"]
    assert [check["wrong"] for check in result["checks"]] == [[]]
    metrics = result["metrics"]
    assert metrics["vllm:hothead_accepted_tokens"] == metrics["vllm:spec_decode_num_accepted_tokens"] > 0
    assert (metrics["vllm:hothead_inserted_tokens"] > 0) == (slots > 0)


def test_bf16_answers_are_unpruned_speculations(smollm2_folder: Path, run_engine: Engine) -> None:
    """In bf16 a pass over five tokens rounds otherwise than five passes over one, with or without a hot head.

    What the hot head drafts decides which passes there are, so answers may part at ties; most must not.
    """
    options = {"dtype": "bfloat16", "max_model_len": 1024, "speculative_config": EAGLE, "max_num_seqs": 1}
    full = run_engine(smollm2_folder, BATCHES, SAMPLING, **options)["answers"][0]
    settings = {"hothead": {"ranking": RANKING, "size": 8192, "dynamic_slots": 512}}
    hot = run_engine(smollm2_folder, BATCHES, SAMPLING, **options, additional_config=settings)["answers"][0]
    same_start = sum(one[0][:8] == other[0][:8] for one, other in zip(full, hot, strict=True))
    assert same_start >= len(PROMPTS) * 3 // 4


@pytest.mark.parametrize("size", [16384, 4096])
def test_stock_vllm_loads_the_eagle3_draft(
    smollm2_folder: Path, run_engine: Engine, plain: dict[str, Any], tmp_path: Path, monkeypatch: Any, size: int
) -> None:
    """No plugin is loaded: the reduced head and its d2t are all that vLLM has."""
    draft = Path(EAGLE3["model"])
    if size < 16384:
        draft = prune(draft, TokenRanking.load(Path(RANKING)), tmp_path / "pruned", sizes={"size": size}).output
    monkeypatch.setenv("VLLM_PLUGINS", "")
    options = {"max_model_len": 1024, "speculative_config": {**EAGLE3, "model": str(draft)}}
    result = run_engine(smollm2_folder, BATCHES, SAMPLING, **options)
    assert result["answers"] == plain["answers"]
    metrics = result["metrics"]
    rounds, accepted = (metrics[f"vllm:spec_decode_num_{name}"] for name in ("drafts", "accepted_tokens"))
    assert 1 + accepted / rounds > 1.2
    assert not any("hothead" in name for name in metrics)


@pytest.mark.parametrize("slots", [0, 256])
def test_the_plugin_cuts_the_eagle3_drafts_own_head(
    smollm2_folder: Path, run_engine: Engine, plain: dict[str, Any], slots: int
) -> None:
    settings = {"hothead": {"ranking": RANKING, "size": 4096, "dynamic_slots": slots}}
    options = {"max_model_len": 1024, "speculative_config": EAGLE3, "additional_config": settings}
    result = run_engine(smollm2_folder, BATCHES, SAMPLING, **options)
    assert result["answers"] == plain["answers"]
    assert [check["wrong"] for check in result["checks"]] == [[]]
    metrics = result["metrics"]
    rounds, accepted = (metrics[f"vllm:spec_decode_num_{name}"] for name in ("drafts", "accepted_tokens"))
    assert 1 + accepted / rounds > 1.2
