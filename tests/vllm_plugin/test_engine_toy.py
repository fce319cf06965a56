"""vLLM engines on toy models: every kind of drafter, greedy and sampled, in batches, against plain decoding."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_toys import EAGLE3_IDS, TOY_VOCAB, start_engine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

Engine = Callable[..., dict[str, Any]]
K = 3


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 256, (count, length)).tolist()


def speculation(toys: dict[str, Path], method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "model": str(toys[method]), "num_speculative_tokens": K, **more}


def hothead(**settings: Any) -> dict[str, Any]:
    return {"hothead": {"special_tokens": "ignore", **settings}}


# Prompts of 50 tokens are prefilled in chunks of 32; 15 blocks of 32 tokens hold less than four whole requests, so that
# some are preempted.
BATCHES = [{"token_ids": prompts(6, 50)}, {"token_ids": prompts(6, 50)[:3] + prompts(3, 9, seed=1)}]
CROWDED = {
    "max_num_batched_tokens": 32,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "num_gpu_blocks_override": 15,
    "block_size": 32,
    "max_model_len": 256,
}


@pytest.fixture(scope="module")
def plain_answers(toys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_engine(tmp_path_factory.mktemp("plain"), toys["target"], BATCHES, {"max_tokens": 90}, **CROWDED)[
        "answers"
    ]


@pytest.mark.parametrize("slots", [0, 16])
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_greedy_text_is_plain_decodings(
    toys: dict[str, Path], run_engine: Engine, plain_answers: Any, method: str, slots: int
) -> None:
    settings = hothead(token_ids=list(range(0, 240, 3)), dynamic_slots=slots)
    result = run_engine(
        toys["target"],
        BATCHES,
        {"max_tokens": 90},
        speculative_config=speculation(toys, method),
        additional_config=settings,
        **CROWDED,
    )
    assert result["answers"] == plain_answers
    (check,) = result["checks"]
    assert check["wrong"] == []
    metrics = result["metrics"]
    assert metrics["vllm:num_preemptions"] > 0
    assert metrics["vllm:hothead_accepted_tokens"] == metrics["vllm:spec_decode_num_accepted_tokens"]
    assert metrics["vllm:hothead_observed_tokens"] >= 12 * 90
    assert (metrics["vllm:hothead_inserted_tokens"] > 0) == (slots > 0)
    static = 80 if method != "eagle3" else len(set(range(0, 240, 3)) & set(EAGLE3_IDS))
    assert (check["sizes"]["static"], check["sizes"]["slots"]) == (static, slots)
    assert "the draft head is hot" in result["log"]


def test_multi_token_prediction_drafts_from_hot_rows(toys: dict[str, Path], tmp_path: Path) -> None:
    batch = [{"token_ids": prompts(4, 12)}]
    plain = start_engine(tmp_path, toys["mtp"], batch, {"max_tokens": 24}, max_model_len=64)
    hot = start_engine(
        tmp_path,
        toys["mtp"],
        batch,
        {"max_tokens": 24},
        speculative_config={"method": "mtp", "num_speculative_tokens": K},
        additional_config=hothead(token_ids=list(range(0, 240, 3)), dynamic_slots=16),
        max_model_len=64,
    )
    assert hot["answers"] == plain["answers"]
    assert hot["checks"][0]["wrong"] == []
    assert hot["metrics"]["vllm:hothead_inserted_tokens"] > 0
    assert "MiMoMTP" in hot["log"]


def test_sampled_text_has_the_targets_distribution(toys: dict[str, Path], run_engine: Engine) -> None:
    """Two tokens after one prompt, the second of which is verified against a draft: a chi-square test over its pairs.

    The draft knows 80 of 320 ids and draws from them; its probabilities decide what is accepted. The exact joint
    distribution comes from the toy target itself (``run_engine.py`` mends a fault of vLLM's CPU build first). A right
    sampler falls below 1e-4 once in ten thousand seeds; this seed is fixed.
    """
    import torch
    from scipy.stats import chisquare
    from transformers import AutoModelForCausalLM

    prompt, temperature, answers = prompts(1, 12)[0], 2.0, 2400
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(toys["target"], dtype=torch.float32)
        first = (model(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
        after = torch.tensor([[*prompt, token] for token in range(TOY_VOCAB)])
        second = (model(after).logits[:, -1] / temperature).softmax(-1)
    joint = (first[:, None] * second).double().numpy()

    result = run_engine(
        toys["target"],
        [{"token_ids": [prompt]}],
        {"temperature": temperature, "max_tokens": 4, "n": answers, "seed": None},
        speculative_config=speculation(toys, "draft_model", draft_sample_method="probabilistic"),
        additional_config=hothead(token_ids=list(range(0, 240, 3)), dynamic_slots=16),
        max_model_len=64,
        seed=5,
        max_num_seqs=128,
    )
    drawn = np.zeros_like(joint)
    for one, two, *_ in result["answers"][0][0]:
        drawn[one, two] += 1
    assert drawn.sum() == answers
    assert result["metrics"]["vllm:spec_decode_num_accepted_tokens"] > answers / 40  # the draft mattered
    expected = joint.ravel() * answers
    order = np.argsort(-expected)
    likely = order[expected[order] >= 8]
    observed = np.append(drawn.ravel()[likely], answers - drawn.ravel()[likely].sum())
    expectation = np.append(expected[likely], answers - expected[likely].sum())
    assert len(likely) >= 12
    assert chisquare(observed, expectation).pvalue > 1e-4


@pytest.mark.parametrize("slots", [0, 16])
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_two_ranks_answer_as_one(
    toys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, slots: int
) -> None:
    """Tensor parallelism in real workers: each has half of every head's rows, and all of the hot ones.

    Asked twice, the second time out of the prefix cache.
    """
    batch = {"token_ids": prompts(4, 72)}
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # two ranks, maybe on one core
    one, two = (
        start_engine(
            tmp_path,
            toys["target"],
            [batch, batch],
            {"max_tokens": 24},
            speculative_config=speculation(toys, method),
            additional_config=hothead(token_ids=list(range(0, 240, 3)), dynamic_slots=slots),
            max_model_len=128,
            block_size=32,
            tensor_parallel_size=ranks,
        )
        for ranks in (1, 2)
    )
    assert two["answers"] == one["answers"]
    assert one["answers"][0] == one["answers"][1]
    assert one["metrics"]["vllm:prefix_cache_hits"] > 0
    assert two["checks"] == one["checks"] * 2  # sizes, counters and "nothing is wrong", of every rank
    assert one["checks"][0]["wrong"] == []
    assert one["checks"][0]["counters"]["observed"] >= 8 * 24
    hothead_metrics = {name for name in one["metrics"] if "hothead" in name}
    assert hothead_metrics
    assert all(two["metrics"][name] == one["metrics"][name] for name in hothead_metrics)


@pytest.mark.parametrize(
    ("speculative", "settings", "expected"),
    [
        ({}, {"token_ids": [1, 2], "dinamic_slots": 4}, "did you mean 'dynamic_slots'"),
        ({}, {"token_ids": [1, 2], "size": 2}, "token_ids are the vocabulary itself"),
        ({}, {"token_ids": [1, TOY_VOCAB]}, f"target_ids holds {TOY_VOCAB}"),
        ({"method": "ngram", "prompt_lookup_max": 3, "model": None}, {"token_ids": [1, 2]}, "the drafter 'ngram'"),
    ],
)
def test_what_cannot_work_stops_the_start(
    toys: dict[str, Path],
    failing_engine: Callable[..., str],
    speculative: dict[str, Any],
    settings: dict[str, Any],
    expected: str,
) -> None:
    config = {**speculation(toys, "eagle"), **speculative}
    config = {name: value for name, value in config.items() if value is not None}
    assert expected in failing_engine(
        toys["target"], max_model_len=64, speculative_config=config, additional_config={"hothead": settings}
    )


def test_recorded_counts_are_what_was_emitted(toys: dict[str, Path], run_engine: Engine, tmp_path: Path) -> None:
    from hothead.ranking.ranking import TokenRanking

    counts = tmp_path / "traffic.safetensors"
    total = np.zeros(TOY_VOCAB, dtype=np.int64)
    for seed in range(2):  # the second server goes on where the first ended
        result = run_engine(
            toys["target"],
            [{"token_ids": prompts(3, 9, seed)}],
            {"max_tokens": 4 * K + 1},  # whole rounds, or vLLM draws more than it shows
            speculative_config=speculation(toys, "draft_model"),
            additional_config=hothead(token_ids=[1, 2, 3], dynamic_slots=8, record_counts=str(counts)),
            max_model_len=64,
        )
        for answer in result["answers"][0]:
            total += np.bincount(answer[0], minlength=TOY_VOCAB)
    ranking = TokenRanking.load(counts)
    assert np.all(ranking.counts >= total[: len(ranking.counts)])
    assert json.dumps([source.counted for source in ranking.sources]) == '["output", "output"]'
