"""What the plugin refuses: configurations, heads and logits. The stand-ins have vLLM's attributes; no vLLM here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hothead.errors import InputError
from hothead.vllm_plugin import guard


def config(**spec: Any) -> Any:
    parallel = spec.pop("pipeline_parallel_size", 1)
    v2 = spec.pop("use_v2_model_runner", False)
    kind = spec.pop("model_type", "llama")
    watermark = spec.pop("watermark_config", None)
    settings = {
        "method": "eagle",
        "use_heterogeneous_vocab": False,
        "use_local_argmax_reduction": False,
        "parallel_drafting": False,
        "draft_model_config": SimpleNamespace(hf_config=SimpleNamespace(model_type=kind)),
        "use_gemma4_mtp": lambda: kind == "gemma4_mtp",
        "use_step3p5_mtp": lambda: kind == "step3p5_mtp",
        **spec,
    }
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**settings),
        parallel_config=SimpleNamespace(pipeline_parallel_size=parallel),
        use_v2_model_runner=v2,
        watermark_config=watermark,
    )


@pytest.mark.parametrize("method", guard.METHODS)
def test_supported_methods_pass(method: str) -> None:
    guard.check_config(config(method=method))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"method": "ngram"}, "the drafter 'ngram'"),
        ({"method": "medusa"}, "the drafter 'medusa'"),
        ({"method": "mtp", "model_type": "gemma4_mtp"}, "the drafter 'gemma4_mtp'"),
        ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab"),
        ({"use_local_argmax_reduction": True}, "use_local_argmax_reduction"),
        ({"parallel_drafting": True}, "parallel drafting"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"use_v2_model_runner": True, "enable_adaptive_verification": True}, "adaptive verification"),
        ({"use_v2_model_runner": True, "watermark_config": object()}, "watermarking"),
    ],
)
def test_what_is_not_supported_is_named(spec: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as error:
        guard.check_config(config(**spec))
    assert named in str(error.value)


def test_no_draft_is_said() -> None:
    with pytest.raises(InputError, match="give --speculative-config"):
        guard.check_config(SimpleNamespace(speculative_config=None))


class Plain:
    """A quantization method that leaves weights alone."""


class Quantized:
    pass


class WithLoRA(nn.Module):
    pass


def model(**changes: Any) -> Any:
    processor = SimpleNamespace(logits_as_input=False, head_dtype=None)
    head = SimpleNamespace(quant_method=Plain(), weight=torch.zeros(2, 2))
    return SimpleNamespace(**{"lm_head": head, "logits_processor": processor, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lm_head": None}, "no lm_head and logits_processor of its own"),
        ({"lm_head": WithLoRA()}, "LoRA on the draft's head"),
        ({"logits_processor": WithLoRA()}, "LoRA on the draft's head"),
        ({"lm_head": SimpleNamespace(quant_method=Quantized())}, "a quantized draft head (Quantized)"),
        ({"logits_processor": SimpleNamespace(logits_as_input=True)}, "whose logits do not come from an LM head"),
        (
            {"logits_processor": SimpleNamespace(logits_as_input=False, head_dtype=torch.float64)},
            "a head of another dtype than the model (torch.float64)",
        ),
    ],
)
def test_heads_that_cannot_be_read(changes: dict[str, Any], named: str) -> None:
    found = model(**changes)
    with pytest.raises(InputError) as error:
        guard.check_head(found, found.lm_head, (Plain,), WithLoRA)
    assert named in str(error.value)


def test_a_plain_head_passes() -> None:
    guard.check_head(model(), model().lm_head, (Plain,), WithLoRA)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_differ_are_refused(dtype: torch.dtype) -> None:
    weight = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    ids = torch.tensor([3, 4, -1, 9])

    def hot(hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ weight[ids.clamp(min=0)].T

    assert guard.check_logits(lambda hidden: hidden @ weight.T, hot, ids, weight) < 1e-2
    for wrong in (lambda h: (h @ weight.T) * 1.2, lambda h: torch.tanh(h @ weight.T), lambda h: h @ weight.flip(0).T):
        with pytest.raises(InputError, match="do not give this draft model's logits"):
            guard.check_logits(wrong, hot, ids, weight)
    with pytest.raises(InputError):  # a NaN is not within any tolerance
        guard.check_logits(lambda hidden: hidden @ weight.T * torch.nan, hot, ids, weight)


class Changed:
    def load_model(self, target_model: Any, more: Any) -> None:
        pass


def test_another_vllm_is_refused_by_function() -> None:
    with pytest.raises(InputError, match=r"vLLM 9.9: Changed.load_model takes \(self, target_model, more\)"):
        guard.check_signatures(Changed, {"load_model": ("self", "target_model")}, "9.9")
    with pytest.raises(InputError, match=r"Changed\.gone is gone"):
        guard.check_signatures(Changed, {"gone": ("self",)}, "9.9")


@pytest.mark.vllm
def test_the_installed_vllm_has_the_hooked_functions() -> None:
    import vllm
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    guard.check_signatures(SpecDecodeBaseProposer, guard.PROPOSER_SIGNATURES, vllm.__version__)
    assert vllm.__version__ in guard.TESTED_VERSIONS
