"""Start one vLLM engine in this process, answer prompts, and say what happened: JSON on stdin, JSON in a file.

Run by the tests in a process of its own, because vLLM does not give back what it takes.
"""

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOG_STATS_INTERVAL", "1")

SELF_CHECK = "hothead.vllm_plugin.selfcheck.SelfCheck"


def main() -> None:
    job = json.load(sys.stdin)
    from vllm import LLM, SamplingParams

    _mend_cpu_temperature()
    llm = LLM(**job["engine"], enforce_eager=True, disable_log_stats=False, worker_extension_cls=SELF_CHECK)
    answers = []
    for batch in job["batches"]:  # each batch is answered before the next starts
        sampling = SamplingParams(**{**job["sampling"], **batch.get("sampling", {})})
        if "messages" in batch:
            outputs = llm.chat(batch["messages"], sampling, use_tqdm=False)
        else:
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in batch["token_ids"]], sampling, use_tqdm=False)
        answers.append([[list(choice.token_ids) for choice in output.outputs] for output in outputs])
    checks = llm.collective_rpc("hothead_check")  # of each rank
    result = {
        "answers": answers,
        "metrics": {m.name: getattr(m, "value", None) for m in llm.get_metrics() if hasattr(m, "value")},
        "checks": checks,
    }
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


def _mend_cpu_temperature() -> None:
    """Give each drafted token its request's temperature, which vLLM 0.32's CPU build fails to do.

    Its ``expand`` kernel converts a float output to integers and writes into the copy, so that the target's logits are
    divided by whatever was in memory. With that, no speculation samples what it should, with or without hothead.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> torch.Tensor:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand


if __name__ == "__main__":
    main()
