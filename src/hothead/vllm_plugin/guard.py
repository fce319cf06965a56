"""What the plugin refuses, by name and before the first request: it is never half applied.

Three gates: the configuration (what is not supported), the signatures of the hooked functions (another vLLM), and the
logits themselves (another model than the plugin takes it for).
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hothead.errors import InputError

TESTED_VERSIONS = ("0.32.0",)
METHODS = ("eagle", "eagle3", "draft_model", "mtp")
# Largest difference of two logits that one product of rows may have, as a share of the largest logit.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
CHECKED_STATES = 4

# The parameters of the functions that the plugin wraps or calls, by class and name.
PROPOSER_SIGNATURES: dict[str, tuple[str, ...]] = {
    "load_model": ("self", "target_model"),
    "_greedy_sample": ("self", "hidden_states"),
    "_sample_draft_tokens": ("self", "hidden_states", "sampling_metadata"),
    "_sample_from_logits": ("self", "logits", "sampling_metadata"),
    "prepare_next_token_ids_padded": (
        "self",
        "sampled_token_ids",
        "requests",
        "gpu_input_batch",
        "discard_request_mask",
    ),
    "prepare_next_token_ids_cpu": (
        "self",
        "sampled_token_ids",
        "requests",
        "gpu_input_batch",
        "num_scheduled_tokens",
    ),
}


def refuse(what: str, instead: str) -> InputError:
    """The one form of a refusal."""
    return InputError(f"hothead does not support {what}; {instead}, or remove 'hothead' from --additional-config")


def check_config(config: Any) -> None:
    """Refuse a ``VllmConfig`` that the plugin cannot serve.

    Raises:
        InputError: naming what is not supported.
    """
    spec = config.speculative_config
    if spec is None:
        raise InputError("hothead shrinks a draft head and no draft is configured; give --speculative-config")
    if spec.method not in METHODS:
        raise refuse(f"the drafter {spec.method!r}", f"use one of {', '.join(METHODS)}")
    if spec.use_gemma4_mtp() or spec.use_step3p5_mtp():
        kind = spec.draft_model_config.hf_config.model_type
        raise refuse(f"the drafter {kind!r}, which has a proposer of its own", "use another method")
    if spec.use_heterogeneous_vocab:
        raise refuse("a draft with another vocabulary (use_heterogeneous_vocab)", "use a draft of the same tokenizer")
    if spec.use_local_argmax_reduction:
        raise refuse("use_local_argmax_reduction", "turn it off: hot rows are on every rank already")
    if spec.parallel_drafting:
        raise refuse("parallel drafting", "turn parallel_drafting off")
    if config.parallel_config.pipeline_parallel_size > 1:
        raise refuse("pipeline parallelism", "use tensor or data parallelism")
    if config.use_v2_model_runner:
        if getattr(spec, "enable_adaptive_verification", False):
            raise refuse("adaptive verification", "turn enable_adaptive_verification off")
        if getattr(config, "watermark_config", None) is not None:
            raise refuse("watermarking", "turn it off")


def check_signatures(owner: type, expected: dict[str, tuple[str, ...]], version: str) -> None:
    """Refuse a vLLM whose functions do not take what the hooks give.

    Raises:
        InputError: naming the function and its parameters.
    """
    for name, parameters in expected.items():
        function = getattr(owner, name, None)
        found = None if function is None else tuple(inspect.signature(function).parameters)
        if found != parameters:
            has = "is gone" if found is None else f"takes ({', '.join(found)})"
            raise InputError(
                f"hothead does not know vLLM {version}: {owner.__name__}.{name} {has}, expected "
                f"({', '.join(parameters)}); use vLLM {' or '.join(TESTED_VERSIONS)}, "
                "or remove 'hothead' from --additional-config"
            )


def logits_processor_of(model: Any) -> Any:
    """vLLM's logits processor of a draft model; MTP models may keep it one level down. None where there is none."""
    inner = getattr(model, "model", None)
    return getattr(model, "logits_processor", getattr(inner, "logits_processor", None))


def check_head(model: Any, lm_head: Any, plain_methods: Iterable[type], lora_layer: type) -> None:
    """Refuse a draft head that cannot be read row by row.

    Args:
        plain_methods: classes of ``quant_method`` that leave the weight as it is.
        lora_layer: base class of layers with adapters.

    Raises:
        InputError: naming the model and the head.
    """
    name, processor = type(model).__name__, logits_processor_of(model)
    if isinstance(lm_head, lora_layer) or isinstance(processor, lora_layer):
        raise refuse("LoRA on the draft's head", "leave lm_head out of the adapters")
    if lm_head is None or processor is None:
        raise refuse(f"the draft model {name}, which has no lm_head and logits_processor of its own", "use another")
    if not isinstance(lm_head.quant_method, tuple(plain_methods)):
        raise refuse(
            f"a quantized draft head ({type(lm_head.quant_method).__name__})", "exclude lm_head from quantization"
        )
    if processor.logits_as_input:
        raise refuse(f"the draft model {name}, whose logits do not come from an LM head", "use another")
    if processor.head_dtype is not None and processor.head_dtype != lm_head.weight.dtype:
        raise refuse(f"a head of another dtype than the model ({processor.head_dtype})", "leave head_dtype alone")


@torch.no_grad()
def check_logits(
    full_logits: Callable[[Tensor], Tensor], hot_logits: Callable[[Tensor], Tensor], target_ids: Tensor, like: Tensor
) -> float:
    """Compare the hot head with the model's own logits on random states.

    Args:
        full_logits: the model's own, [B, H] -> [B, V].
        hot_logits: the plugin's, [B, H] -> [B, Vd + D].
        target_ids: int64 [Vd + D], -1 for an empty row.
        like: a row of the head, for its width, dtype and device.

    Returns:
        The largest difference, as a share of the largest logit.

    Raises:
        InputError: they differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(CHECKED_STATES, like.shape[-1], generator=generator).to(like.device, like.dtype)
    held = target_ids >= 0
    full = full_logits(hidden).float()[:, target_ids[held]]
    hot = hot_logits(hidden).float()[:, held]
    error = float((full - hot).abs().max() / full.abs().max().clamp(min=1e-9))
    if not error <= TOLERANCE.get(like.dtype, 5e-2):
        raise InputError(
            f"hothead's rows do not give this draft model's logits (they differ by {error:.1%} of the largest): it "
            "computes them in a way hothead does not know; remove 'hothead' from --additional-config"
        )
    return error
