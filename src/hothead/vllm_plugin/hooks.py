"""Where the plugin meets vLLM: its start, and the drafters of model runner V1. vLLM is imported in functions only.

``install`` runs in every process and wraps two functions: the one that makes the configuration (process 0: settings
are checked, and refused, there) and the one that starts a worker. Only if that worker's configuration asks for
hothead are the drafter's classes touched, so an installed plugin that is off costs nothing.
"""

import functools
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hothead.errors import InputError
from hothead.tokenizer import load_tokenizer
from hothead.vllm_plugin import guard, hooks_v2
from hothead.vllm_plugin.drafter import HotDrafter
from hothead.vllm_plugin.rows import RowSource
from hothead.vllm_plugin.settings import Settings, read_settings
from hothead.vllm_plugin.traffic import (
    Collector,
    CounterFile,
    Reporter,
    TrafficRecorder,
    counter_file,
    save_what_is_left,
)
from hothead.vllm_plugin.vocabulary import make_vocab
from hothead.vocab import DraftVocab


def install() -> None:
    """Wrap what every process runs. Idempotent."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    wrap(EngineArgs, "create_engine_config", _checked_config)
    wrap(WorkerWrapperBase, "init_device", _hooked_worker)


def wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(original, *arguments)``, once."""
    original = getattr(owner, name)
    if getattr(original, "hothead", None) is wrapper:
        return

    @functools.wraps(original)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        return wrapper(original, *arguments, **keywords)

    wrapped.hothead = wrapper  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


# --- process 0 --------------------------------------------------------------------------------------


def _checked_config(original: Callable[..., Any], self: Any, *arguments: Any, **keywords: Any) -> Any:
    settings = read_settings(self.additional_config)
    config = original(self, *arguments, **keywords)
    if settings is not None:
        guard.check_config(config)
        _try_vocab(settings, config)
        _save_at_end(settings, config)
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        wrap(PrometheusStatLogger, "__init__", _with_counters)
    return config


def _try_vocab(settings: Settings, config: Any) -> None:
    """Make the vocabulary once before any worker does, so that a wrong file ends the start at once."""
    make_vocab(settings, config.model_config.get_vocab_size(), _tokenizer(config))


def _save_at_end(settings: Settings, config: Any) -> None:
    """See to it that counts are saved when the server ends, however its engines do; a wrong file ends the start."""
    first, count = config.parallel_config.data_parallel_index, config.parallel_config.data_parallel_size
    engines: dict[Path, TrafficRecorder | None]
    engines = {counter_file(config.instance_id, engine): None for engine in range(first, first + count)}
    if settings.record_counts is not None:
        if config.model_config.skip_tokenizer_init:
            raise InputError("record_counts writes a ranking, which needs the tokenizer; leave skip_tokenizer_init off")
        tokenizer = load_tokenizer(config.model_config.tokenizer)
        for engine, file in enumerate(engines, first):
            engines[file] = TrafficRecorder(_record_path(settings, engine), tokenizer)
    Finalize(None, save_what_is_left, (engines,), exitpriority=0)


def _tokenizer(config: Any) -> str | None:
    return None if config.model_config.skip_tokenizer_init else config.model_config.tokenizer


def _record_path(settings: Settings, engine: int) -> Path:
    """Data-parallel engines each keep a file of their own; ``hothead rank merge`` adds them up."""
    assert settings.record_counts is not None
    path = settings.record_counts
    return path if engine == 0 else path.with_name(f"{path.stem}.{engine}{path.suffix}")


def _with_counters(
    original: Callable[..., Any], self: Any, vllm_config: Any, engine_indexes: list[int] | None = None
) -> None:
    original(self, vllm_config, engine_indexes)
    if read_settings(vllm_config.additional_config) is None:
        return
    from prometheus_client import REGISTRY

    files = {engine: counter_file(vllm_config.instance_id, engine) for engine in self.engine_indexes}
    REGISTRY.register(Collector(vllm_config.model_config.served_model_name, files))  # type: ignore[arg-type]


# --- workers ----------------------------------------------------------------------------------------


def _hooked_worker(original: Callable[..., Any], self: Any) -> None:
    if read_settings(self.vllm_config.additional_config) is not None:
        import vllm
        from vllm.logger import init_logger
        from vllm.v1.worker.worker_base import WorkerBase

        if vllm.__version__ not in guard.TESTED_VERSIONS:
            init_logger("vllm.hothead").warning(
                "hothead was tested with vLLM %s and this is %s; its functions and logits are checked now",
                ", ".join(guard.TESTED_VERSIONS),
                vllm.__version__,
            )
        guard.check_config(self.vllm_config)
        if self.vllm_config.use_v2_model_runner:
            _hook_v2(vllm.__version__)
        else:
            _hook_v1(vllm.__version__)
        for worker in _all_subclasses(WorkerBase):
            if "finish_weight_update" in vars(worker):
                wrap(worker, "finish_weight_update", _hot_weight_update)
    original(self)


def _hook_v1(version: str) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    guard.check_signatures(SpecDecodeBaseProposer, guard.PROPOSER_SIGNATURES, version)
    wrap(SpecDecodeBaseProposer, "load_model", _hot_load)
    wrap(GPUModelRunner, "reload_weights", _hot_reload)


def _hook_v2(version: str) -> None:
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    hooks_v2.check_contract(DraftModelSpeculator, InputBatch, version)
    wrap(DraftModelSpeculator, "load_model", _hot_load)
    wrap(GPUModelRunner, "reload_weights", _hot_reload)


def _all_subclasses(owner: type) -> set[type]:
    found: set[type] = {owner}
    child: type
    for child in owner.__subclasses__():
        found |= _all_subclasses(child)
    return found


def _hot_load(original: Callable[..., Any], self: Any, target_model: Any) -> None:
    original(self, target_model)
    settings = read_settings(self.vllm_config.additional_config)
    if settings is not None:
        attach(self, settings)


def _hot_reload(original: Callable[..., Any], self: Any, *arguments: Any, **keywords: Any) -> None:
    original(self, *arguments, **keywords)
    _reload_rows(self)


def _hot_weight_update(original: Callable[..., Any], self: Any, *arguments: Any, **keywords: Any) -> Any:
    result = original(self, *arguments, **keywords)
    _reload_rows(self.model_runner)
    return result


def _reload_rows(runner: Any) -> None:
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    hot = getattr(drafter, "hothead", None)
    if hot is not None:
        hot.head.reload_rows()


def attach(proposer: Any, settings: Settings) -> HotDrafter:
    """Make the loaded drafter of ``proposer`` (V1) or speculator (V2) draft from hot rows.

    Raises:
        HotheadError: its head cannot be read, or the rows do not give its logits.
    """
    from vllm.logger import init_logger

    config, model = proposer.vllm_config, proposer.model
    source = row_source(model, config.model_config.get_vocab_size())
    vocab = _with_rows(make_vocab(settings, source.vocab_size, None), source)
    processor = guard.logits_processor_of(model)
    hot = HotDrafter(
        source,
        vocab,
        min(settings.dynamic_slots, _rows_in_use(source) - len(vocab)),
        settings.policies,
        processor,
        soft_capped=processor.soft_cap is not None,
        count_emitted=settings.record_counts is not None,
    )
    error = guard.check_logits(model.compute_logits, hot.logits, hot.head.target_ids, source.weight)
    reporter = _reporter(hot, settings, config)
    replace = hooks_v2.replace_methods if config.use_v2_model_runner else _replace_methods
    replace(proposer, hot, reporter)
    proposer.hothead = hot
    sizes = hot.describe()
    init_logger("vllm.hothead").info(
        "hothead: the draft head is hot: %d static rows and %d slots of %d rows (%.1f%%), policy %s, %s; "
        "logits checked (largest difference %.1e of the largest logit)",
        sizes["static"],
        sizes["slots"],
        sizes["total"],
        100 * (sizes["static"] + sizes["slots"]) / sizes["total"],
        sizes["policies"],
        type(model).__name__,
        error,
    )
    return hot


def row_source(model: Any, target_vocab_size: int) -> RowSource:
    """The rows of a loaded draft model's head, by target id.

    Raises:
        InputError: a head of a kind the plugin does not read.
    """
    from vllm.distributed import tensor_model_parallel_all_reduce
    from vllm.lora.layers import BaseLayerWithLoRA
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    lm_head = getattr(model, "lm_head", None)
    guard.check_head(model, lm_head, (UnquantizedEmbeddingMethod, UnquantizedLinearMethod), BaseLayerWithLoRA)
    assert lm_head is not None  # check_head
    weight = lm_head.weight.detach()
    row_id_of = None
    offsets = getattr(model, "draft_id_to_target_id", None)
    if offsets is not None:  # EAGLE-3: the head has rows for its own choice of ids
        draft_ids = torch.arange(len(offsets), device=weight.device)
        row_id_of = draft_ids.new_full((target_vocab_size,), -1)
        row_id_of[draft_ids + offsets.detach().to(weight.device)] = draft_ids
    elif lm_head.org_vocab_size != target_vocab_size:
        raise guard.refuse(
            f"a draft head of {lm_head.org_vocab_size} rows for a target of {target_vocab_size} ids",
            "use a draft of the same vocabulary",
        )
    shard = lm_head.shard_indices
    return RowSource(
        weight=weight,
        bias=None if getattr(lm_head, "bias", None) is None else lm_head.bias.detach(),
        total=target_vocab_size,
        row_id_of=row_id_of,
        start=shard.org_vocab_start_index,
        stop=shard.org_vocab_end_index,
        all_reduce=tensor_model_parallel_all_reduce if lm_head.tp_size > 1 else None,
    )


def _rows_in_use(source: RowSource) -> int:
    return source.vocab_size if source.row_id_of is None else int((source.row_id_of >= 0).sum())


def _with_rows(vocab: DraftVocab, source: RowSource) -> DraftVocab:
    """Of a vocabulary, what the draft has rows for."""
    if source.row_id_of is None:
        return vocab
    has_row = (source.row_id_of >= 0).cpu().numpy()
    kept = vocab.target_ids[has_row[vocab.target_ids]]
    if not len(kept):
        raise InputError("the draft's own reduced head has none of the rows asked for: is it of another tokenizer?")
    following = vocab.next_target_ids[has_row[vocab.next_target_ids]]
    return DraftVocab(kept, vocab.target_vocab_size, vocab.tokenizer_fingerprint, following, source=vocab.source)


def _reporter(hot: HotDrafter, settings: Settings, config: Any) -> Reporter | None:
    """One rank reports for all: they count the same."""
    from vllm import envs
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.logger import init_logger

    if get_tensor_model_parallel_rank() != 0:
        return None
    engine = config.parallel_config.data_parallel_index  # vLLM calls every rank 0 where the model is dense
    recorder = None
    if settings.record_counts is not None:
        recorder = TrafficRecorder(_record_path(settings, engine), load_tokenizer(config.model_config.tokenizer))
    file = CounterFile(counter_file(config.instance_id, engine), 0 if hot.emitted is None else len(hot.emitted))
    return Reporter(hot, file, recorder, envs.VLLM_LOG_STATS_INTERVAL, init_logger("vllm.hothead"))


def _replace_methods(proposer: Any, hot: HotDrafter, reporter: Reporter | None) -> None:
    """Give this one proposer the hot functions; its class stays as it is."""
    next_padded, next_cpu = proposer.prepare_next_token_ids_padded, proposer.prepare_next_token_ids_cpu
    known: set[str] = set()  # requests whose prompt was offered

    def sample_draft_tokens(hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, Tensor | None]:
        if not proposer._enable_probabilistic_draft_probs or sampling_metadata.all_greedy:
            return hot.greedy(hidden_states), None
        return hot.sample(hidden_states, lambda logits: proposer._sample_from_logits(logits, sampling_metadata))

    def observe(sampled: Tensor, valid: Tensor, batch: Any) -> None:
        prompts = _new_prompts(batch, known)
        hot.observe(sampled, valid, [prompt.to(sampled.device, non_blocking=True) for prompt in prompts])
        if reporter is not None:
            reporter.tick()

    def prepare_next_token_ids_padded(
        sampled_token_ids: Tensor, requests: Any, gpu_input_batch: Any, discard_request_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        result = next_padded(sampled_token_ids, requests, gpu_input_batch, discard_request_mask)
        valid = (sampled_token_ids >= 0) & (sampled_token_ids < hot.source.vocab_size)
        valid &= ~discard_request_mask[: len(sampled_token_ids), None]
        observe(sampled_token_ids, valid, gpu_input_batch)
        return result

    def prepare_next_token_ids_cpu(
        sampled_token_ids: list[list[int]], requests: Any, gpu_input_batch: Any, num_scheduled_tokens: Any
    ) -> Tensor:
        result = next_cpu(sampled_token_ids, requests, gpu_input_batch, num_scheduled_tokens)
        width = max(1, *map(len, sampled_token_ids), 1)
        padded = torch.tensor([ids + [-1] * (width - len(ids)) for ids in sampled_token_ids], device=proposer.device)
        observe(padded, padded >= 0, gpu_input_batch)
        return result

    proposer._greedy_sample = hot.greedy
    proposer._sample_draft_tokens = sample_draft_tokens
    proposer.prepare_next_token_ids_padded = prepare_next_token_ids_padded
    proposer.prepare_next_token_ids_cpu = prepare_next_token_ids_cpu


def _new_prompts(batch: Any, known: set[str]) -> list[Tensor]:
    """Target ids of the prompts of requests that were not in the last batch; the whole prompt, cached parts too."""
    request_ids = batch.req_ids
    prompts = []
    for index, request_id in enumerate(request_ids):
        if request_id not in known:
            length = int(batch.num_prompt_tokens[index])
            ids = batch.token_ids_cpu[index, :length][batch.is_token_ids[index, :length]]
            prompts.append(torch.from_numpy(np.asarray(ids, dtype=np.int64)))
    known.clear()
    known.update(request_ids)
    return prompts
